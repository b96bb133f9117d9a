"""Runs vLLM with the Yuan plugin in a process of its own and writes what it answered: python engine_worker.py JOB.json RESULT.pt

JOB: {"options": keyword arguments of vllm.LLM, "batches": [[[token, ...], ...], ...], "tokens": number of tokens to generate}.
RESULT: {"answers": for each batch and prompt {"ids": prompt and answer, "logits": [len(ids) - 1, vocabulary]}, "metrics": {name: value}},
or {"error": the message of the exception with which the engine refused}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# The engine runs in this very process: it ends with it.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch


def answer(job: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - slow

    options = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "skip_tokenizer_init": True,
        "max_logprobs": -1,
        "logprobs_mode": "raw_logits",
        "disable_log_stats": False,
        "seed": 0,
        **job["options"],
    }
    llm = LLM(**options)
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    wish = SamplingParams(
        temperature=0,
        max_tokens=job["tokens"],
        ignore_eos=True,
        logprobs=-1,
        # Asked for, prompt logits keep vLLM from using what it has cached of a prompt.
        prompt_logprobs=None if options.get("enable_prefix_caching") else -1,
        detokenize=False,
    )
    answers = []
    for batch in job["batches"]:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in batch], wish, use_tqdm=False)
        answers.append([])
        for output in outputs:
            ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
            rows = [*(output.prompt_logprobs or [None])[1:], *output.outputs[0].logprobs]
            logits = torch.full((len(rows), vocabulary), float("nan"))
            for row, values in enumerate(rows):
                for token, value in values.items():
                    logits[row, token] = value.logprob
            answers[-1].append({"ids": ids, "logits": logits})
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return {"answers": answers, "metrics": metrics}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as stream:  # noqa: PTH123
        job = json.load(stream)
    try:
        result = answer(job)
    except Exception as error:  # the test judges the message
        result = {"error": f"{type(error).__name__}: {error}"}
    torch.save(result, sys.argv[2])


if __name__ == "__main__":
    main()
