"""How likely the engine finds a known text with a converted model, under the very options that will serve. Runs in the engine's Python."""

from __future__ import annotations

import json

from .worker_result import say


def main(job_text: str) -> int:
    """Carry out a job in JSON (model, text, options, max_model_len)."""
    job = json.loads(job_text)
    from vllm import LLM, SamplingParams  # noqa: PLC0415

    engine = LLM(
        model=job["model"],
        enforce_eager=True,
        max_model_len=job["max_model_len"],
        max_num_seqs=1,
        trust_remote_code=False,
        disable_log_stats=True,
        **job["options"],
    )
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    answer = engine.generate([job["text"]], asked, use_tqdm=False)[0]
    ids = list(answer.prompt_token_ids)
    logprobs, top = [], []
    for token, candidates in zip(ids[1:], answer.prompt_logprobs[1:]):
        logprobs.append(candidates[token].logprob)
        top.append(min(candidates, key=lambda number: candidates[number].rank))
    say({"token_ids": ids, "logprobs": logprobs, "top": top})
    return 0
