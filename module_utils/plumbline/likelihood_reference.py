"""How likely the *source* of a model finds a known text: transformers in float32, on its own path from file to logits.

Runs in the engine's Python. What comes out is what the converted model must reproduce in the engine.
"""

from __future__ import annotations

import json
from pathlib import Path

from .worker_result import say

_LOGITS_AT_ONCE = 128


def main(job_text: str) -> int:
    """Carry out a job in JSON (source, format, text)."""
    job = json.loads(job_text)
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    torch.set_grad_enabled(False)
    source = Path(job["source"])
    where = source.parent if job["format"] == "gguf" else source
    how = {"gguf_file": source.name} if job["format"] == "gguf" else {}
    common = {"local_files_only": True, "trust_remote_code": False, **how}
    tokenizer = AutoTokenizer.from_pretrained(str(where), **common)
    model, loading = AutoModelForCausalLM.from_pretrained(
        str(where), dtype=torch.float32, output_loading_info=True, **common
    )
    lacking = sorted(loading["missing_keys"])
    if lacking:
        # transformers fills them with random numbers and goes on.
        told = f"The source lacks {len(lacking)} tensors, the first is {lacking[0]}"
        say({"error": f"{told}: it is incomplete; copy it again from where it came."})
        return 1
    model.eval()
    ids = tokenizer(job["text"], return_tensors="pt").input_ids
    states = model.get_decoder()(ids).last_hidden_state[0]
    logprobs: list[float] = []
    top: list[int] = []
    head = model.get_output_embeddings()
    for first in range(0, states.shape[0] - 1, _LOGITS_AT_ONCE):
        last = min(first + _LOGITS_AT_ONCE, states.shape[0] - 1)
        scores = head(states[first:last]).float().log_softmax(-1)
        logprobs += scores.gather(1, ids[0, first + 1 : last + 1, None])[:, 0].tolist()
        top += scores.argmax(-1).tolist()
    say(
        {
            "token_ids": ids[0].tolist(),
            "logprobs": logprobs,
            "top": top,
            "vocab_size": int(model.config.get_text_config().vocab_size),
        }
    )
    return 0
