"""How likely the engine finds a known text with a converted model, under the very options that will serve. Runs in the engine's Python."""

from __future__ import annotations

import json
from typing import Any

from .worker_result import say

# vLLM's in-process engine: one start of Python instead of two. No compiler is asked for, since a node has none.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TORCHDYNAMO_DISABLE": "1",
}
# Lengths are whole numbers of cache blocks.
BLOCK = 128


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
    say({"token_ids": ids, "logprobs": logprobs, "top": top, **_cache(engine)})
    return 0


def _cache(engine: Any) -> dict[str, Any]:
    """What the engine says of its key/value cache: tokens in all, bytes of one, and whether it takes the memory that weights leave."""
    config = engine.llm_engine.vllm_config
    cache, model = config.cache_config, config.model_config
    kind = str(cache.cache_dtype)
    bytes_of_value = 1 if "fp8" in kind else model.dtype.itemsize
    heads = model.get_num_kv_heads(config.parallel_config)
    layers = model.get_num_layers(config.parallel_config)
    return {
        "cache_tokens": (cache.num_gpu_blocks or 0) * cache.block_size,
        "cache_bytes_per_token": 2 * layers * heads * model.get_head_size() * bytes_of_value,
        "vocab_size": int(model.get_vocab_size()),
        "cache_takes_the_rest": str(config.device_config.device_type) != "cpu",
    }
