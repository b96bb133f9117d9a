"""One forward pass of a tiny model in the engine, with the very options that will serve. Runs in the engine's Python."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
import time
from typing import Any

from .engine_smoke_model import SCHEMES, Layout, write_model
from .worker_result import say

PLUGIN_GROUP = "plumbline.engine_smoke"
_LENGTH = 128
_TOKENS = 4
_PROMPTS = ([5], [7, 11, 13, 17, 19, 23, 29], list(range(30, 70)))
_KV_CACHE_BYTES = 256 << 20
# A CUDA context, the tiny weights and vLLM's own buffers.
_GPU_BYTES = 4 << 30
# Quantisation methods that vLLM applies to a plain checkpoint while it loads it.
_WHILE_LOADING = ("fp8", "bitsandbytes", "experts_int8", "rtn", "torchao", "inc")
_OF_SCHEME = {"compressed-tensors": "w4a16", "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq"}
# What speaks of the real model, of other machines or of files that are not there yet.
_NOT_HERE = (
    ("speculative_config", None),
    ("hf_overrides", None),
    ("kv_transfer_config", None),
    ("tokenizer", None),
    ("hf_config_path", None),
    ("reasoning_parser_plugin", ""),
)


def main(job_text: str) -> int:
    """Carry out a job in JSON (model, options, scheme, device) and say how it went."""
    job = json.loads(job_text)
    started = time.monotonic()
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        arguments = _parsed(directory, job["options"])
        if arguments is None:
            return 0
        scheme = _scheme(job.get("scheme", ""), arguments, left_out)
        _fit(arguments, job["device"], left_out)
        writers = _writers()
        try:
            if job["model"] == "llama":
                layout = Layout(scheme, int(job.get("group_size", 128)))
                ways = (arguments.tensor_parallel_size, arguments.pipeline_parallel_size)
                write_model(directory, str(arguments.dtype), layout, *ways)
            else:
                writers[job["model"]].load()(directory, _plain_options(arguments))
                if scheme:
                    left_out.append(f"quantisation (the tiny {job['model']} is plain)")
                    scheme = ""
                if arguments.quantization in _OF_SCHEME:
                    arguments.quantization = None
        except Exception as error:
            say({"error": f"the tiny {job['model']} model could not be written ({type(error).__name__}: {error})"})
            return 0
        found = _generate(arguments)
    problem = _judged(found)
    if problem:
        say({"error": f"the tiny {job['model']} model {problem}"})
    else:
        say(
            {
                "model": job["model"],
                "scheme": scheme,
                "left_out": left_out,
                "tokens": sum(len(one["ids"]) for one in found[0]),
                "seconds": round(time.monotonic() - started, 1),
                "others": sorted(writers),
            }
        )
    return 0


def command_line(options: dict[str, Any]) -> list[str]:
    """The options as `vllm serve` takes them, by the rule of serving_options."""
    words: list[str] = []
    for name, value in sorted(options.items()):
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        elif isinstance(value, dict):
            words += [f"--{flag}", json.dumps(value)]
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def _parsed(model: str, options: dict[str, Any]) -> Any:
    """The options as vLLM's own command line understands them; what it refuses is said, and None returned."""
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
    from vllm.entrypoints.cli import serve  # noqa: PLC0415

    parser = serve.FlexibleArgumentParser(prog="vllm")
    serve.ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            told = parser.parse_args(["serve", model, *command_line(options)])
    except SystemExit:
        lines = [line for line in words.getvalue().splitlines() if "error:" in line]
        say({"error": (lines or ["vllm serve refuses these options"])[-1].strip()})
        return None
    told.model = model
    return EngineArgs.from_cli_args(told)


def _fit(arguments: Any, device: str, left_out: list[str]) -> None:
    """What a tiny model on a machine that may be serving needs otherwise; what is left out of the test is noted."""
    for name, neutral in _NOT_HERE:
        if getattr(arguments, name, neutral):
            setattr(arguments, name, neutral)
            left_out.append(name)
    for name in ("data_parallel_size", "nnodes"):
        if (getattr(arguments, name, 1) or 1) > 1:
            setattr(arguments, name, 1)
            left_out.append(name)
    if arguments.load_format in (
        "gguf",
        "sharded_state",
        "tensorizer",
        "mistral",
        "npcache",
        "pt",
        "runai_streamer_sharded",
    ):
        left_out.append("load_format")
        arguments.load_format = "auto"
    if getattr(arguments, "runner", "auto") not in ("auto", "generate"):
        left_out.append("runner")
        arguments.runner, arguments.convert = "auto", "auto"
    arguments.served_model_name = None
    arguments.skip_tokenizer_init = True
    arguments.trust_remote_code = False
    arguments.max_model_len = _LENGTH
    arguments.disable_log_stats = True
    if device == "cpu":
        # Compiling takes a minute and more; the real model's start does it and says so where it fails.
        if not arguments.enforce_eager:
            left_out.append("compilation (the CPU engine is tested eager)")
        arguments.enforce_eager = True
    else:
        arguments.kv_cache_memory_bytes = _KV_CACHE_BYTES
        arguments.gpu_memory_utilization = min(arguments.gpu_memory_utilization, _gpu_share())


def _gpu_share() -> float:
    """The part of the smallest GPU's memory that the test may take: little, since an endpoint may be serving from it."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    # By NVML: no CUDA context in this process.
    total = int(current_platform.get_device_total_memory())
    return min(0.9, _GPU_BYTES / total)


def _scheme(asked: str, arguments: Any, left_out: list[str]) -> str:
    """The layout of the tiny checkpoint for the quantisation that will serve."""
    method = str(arguments.quantization or "")
    scheme = asked or _OF_SCHEME.get(method, "")
    if scheme not in SCHEMES:
        left_out.append(f"quantisation {scheme} (no tiny checkpoint of that kind is made)")
        return ""
    if not scheme and method and method not in _WHILE_LOADING:
        left_out.append(f"quantization {method} (no tiny checkpoint of that kind is made)")
        arguments.quantization = None
    return scheme


def _writers() -> dict[str, Any]:
    """Plugins that write a tiny checkpoint of their own architecture: a function (directory, options)."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {entry.name: entry for entry in entry_points(group=PLUGIN_GROUP)}


def _plain_options(arguments: Any) -> dict[str, Any]:
    names = ("dtype", "tensor_parallel_size", "pipeline_parallel_size", "quantization")
    found = {name: getattr(arguments, name) for name in names}
    return {name: value if isinstance(value, (str, int)) else None for name, value in found.items()}


def _generate(arguments: Any) -> list[list[dict[str, Any]]]:
    """The same prompts twice: token ids and log probabilities."""
    from vllm import LLMEngine, SamplingParams  # noqa: PLC0415

    engine = LLMEngine.from_engine_args(arguments)
    asked = SamplingParams(
        max_tokens=_TOKENS, min_tokens=_TOKENS, temperature=0.0, logprobs=1, detokenize=False, ignore_eos=True
    )
    rounds = []
    for number in range(2):
        for index, prompt in enumerate(_PROMPTS):
            engine.add_request(f"{number}-{index}", {"prompt_token_ids": prompt}, asked)
        done: dict[str, dict[str, Any]] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    one = output.outputs[0]
                    ids = list(one.token_ids)
                    done[output.request_id] = {
                        "ids": ids,
                        "logprobs": [step[token].logprob for step, token in zip(one.logprobs, ids)],
                    }
        rounds.append([done[f"{number}-{index}"] for index in range(len(_PROMPTS))])
    with contextlib.suppress(Exception):
        engine.engine_core.shutdown()
    return rounds


def _judged(rounds: list[list[dict[str, Any]]]) -> str:
    """Why this is no right computation, or an empty text."""
    for first, second in zip(*rounds):
        numbers = first["logprobs"] + second["logprobs"]
        if len(first["ids"]) != _TOKENS or len(second["ids"]) != _TOKENS:
            return f"gave {len(first['ids'])} tokens where {_TOKENS} were asked for"
        if not all(math.isfinite(number) and number <= 1e-6 for number in numbers):
            return f"gave log probabilities that are none ({numbers[:4]})"
        if (
            first["ids"] != second["ids"]
            or max(abs(a - b) for a, b in zip(first["logprobs"], second["logprobs"])) > 0.1
        ):
            return f"answered the same prompt in two ways (tokens {first['ids']} and {second['ids']})"
    best = [one["logprobs"][0] for one in rounds[0]]
    if max(best) - min(best) < 1e-6 and len({tuple(one["ids"]) for one in rounds[0]}) == 1:
        return "answers every prompt alike"
    return ""
