"""How likely the source of a Yuan2.0 finds a known text: the plain PyTorch reference in float32, for transformers has no class for it.

Runs in the engine's Python, where the stage `engine` has put `yuan_reference` beside the plugin `yuan` (engine_plugins/yuan).
"""

from __future__ import annotations

import json
from pathlib import Path

from .worker_result import say

_LOGITS_AT_ONCE = 128


def main(job_text: str) -> int:
    """Carry out a job in JSON (source, text), as likelihood_reference does."""
    job = json.loads(job_text)
    try:
        from yuan_reference.checkpoints import read_hf  # noqa: PLC0415
        from yuan_reference.model import YuanReference  # noqa: PLC0415
    except ImportError:
        say(
            {
                "error": "The engine has no Yuan2.0: expected its plugin; add yuan to engine_plugins and run the stage engine."
            }
        )
        return 0
    import torch  # noqa: PLC0415
    from transformers import AutoTokenizer  # noqa: PLC0415

    source = Path(job["source"])
    tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False)
    config, tensors = read_hf(source)
    try:
        model = YuanReference(config, tensors, torch.float32)
    except ValueError as error:
        say(
            {
                "error": f"The source is no Yuan2.0 that the reference computes: {error} Copy it again from where it came."
            }
        )
        return 0
    del tensors
    ids = torch.tensor(tokenizer(job["text"]).input_ids)
    logits = model.logits(ids)
    logprobs: list[float] = []
    top: list[int] = []
    for first in range(0, len(ids) - 1, _LOGITS_AT_ONCE):
        last = min(first + _LOGITS_AT_ONCE, len(ids) - 1)
        scores = logits[first:last].float().log_softmax(-1)
        logprobs += scores.gather(1, ids[first + 1 : last + 1, None])[:, 0].tolist()
        top += scores.argmax(-1).tolist()
    say({"token_ids": ids.tolist(), "logprobs": logprobs, "top": top, "vocab_size": int(logits.shape[1])})
    return 0
