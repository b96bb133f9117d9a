"""Starts vLLM for one model after another and writes what it found: python plan_worker.py JOBS.json RESULTS.json

JOBS: {name: {"config": config.json, "options": keyword arguments of vllm.LLM, "directory": where the checkpoint lies, or ""}}.
RESULTS: {name: {"tokens", "blocks", "block_size", "concurrency", "length", "parameters" (bytes), "log" (the engine's line)}},
or {name: {"error": text}}.
Each model gets a process of its own, forked from this one, which has vLLM in it already.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)


def hear() -> list[str]:
    """Keep what the engine logs of its cache. In one process it takes itself for no first rank and would keep silent."""
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415

    lines: list[str] = []
    kv_cache_utils.logger.info_once = lambda text, *values, **_: lines.append(text % values)
    return lines


def weigh_when_loaded() -> list[int]:
    """Note the bytes of the parameters once they are loaded; the CPU engine packs them anew right after that, out of sight."""
    from vllm.model_executor.model_loader import base_loader  # noqa: PLC0415

    sizes: list[int] = []
    pack = base_loader.process_weights_after_loading

    def noted(model: Any, *arguments: Any) -> None:
        tensors = {id(tensor): tensor for tensor in model.parameters()}
        sizes.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
        pack(model, *arguments)

    base_loader.process_weights_after_loading = noted
    return sizes


def start(job: dict[str, Any]) -> dict[str, Any]:
    import vllm  # noqa: PLC0415 - slow, and there already

    heard = hear()
    sizes = weigh_when_loaded()
    with tempfile.TemporaryDirectory() as folder:
        if not job["directory"]:
            Path(folder, "config.json").write_text(json.dumps(job["config"]))
        options = {
            "dtype": "bfloat16",
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "load_format": "safetensors" if job["directory"] else "dummy",
            **job["options"],
        }
        engine = vllm.LLM(model=job["directory"] or folder, **options)
    configuration = engine.llm_engine.vllm_config
    cache = configuration.cache_config
    return {
        "tokens": cache.kv_cache_size_tokens,
        "concurrency": cache.kv_cache_max_concurrency,
        "blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "length": configuration.model_config.max_model_len,
        "batched_tokens": configuration.scheduler_config.max_num_batched_tokens,
        "requests": configuration.scheduler_config.max_num_seqs,
        "prefix_caching": cache.enable_prefix_caching,
        "parameters": sizes[0],
        "log": next((line for line in heard if "KV cache size" in line), ""),
    }


def child(job: dict[str, Any], sender: Any) -> None:
    try:
        with redirect_stdout(io.StringIO()):
            answer = start(job)
    except BaseException as error:  # the test judges the message
        answer = {"error": f"{type(error).__name__}: {error}"}
    sender.send(answer)
    sender.close()
    os._exit(0)


def main() -> None:
    import vllm.entrypoints.llm  # noqa: F401, PLC0415 - the children have it then
    from plumbline_yuan import register  # noqa: PLC0415

    register()
    fork = multiprocessing.get_context("fork")
    results = {}
    for name, job in json.loads(Path(sys.argv[1]).read_text()).items():
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=child, args=(job, sender))
        process.start()
        sender.close()
        try:
            results[name] = receiver.recv()
        except EOFError:
            results[name] = {"error": "the engine's process ended"}
        process.join()
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
