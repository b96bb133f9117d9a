"""The smoke test of an engine: its own kernel computes right, and a tiny model answers with the very options that will serve."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

# The modules of the worker are named so that Ansible carries them to the node.
from . import engine_smoke_model, engine_smoke_run  # noqa: F401
from .checkpoint_errors import CheckpointError
from .worker import run_worker

_PREFIX = "plumbline-smoke "
# Places that only the unit's own user may write to.
_OF_THE_UNIT = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

# Runs in the engine's Python. Importing the server also leaves the compiled bytecode that the service's user may not write.
SMOKE_SOURCE = (
    r"""
import importlib.metadata, json, sys

device = sys.argv[1]
import torch
import vllm
from vllm.platforms import current_platform
import vllm.entrypoints.openai.api_server

current_platform.import_kernels()
torch.manual_seed(0)
x = torch.randn(3, 64, device=device)
out = torch.empty(3, 32, device=device)
torch.ops._C.silu_and_mul(out, x)
expected = torch.nn.functional.silu(x[:, :32]) * x[:, 32:]
error = float((out - expected).abs().max())
if not error < 1e-4:
    raise SystemExit("the kernel silu_and_mul of vLLM is off by %g" % error)
importlib.metadata.version("vllm")
print("\n"""
    + _PREFIX
    + r"""" + json.dumps({
    "vllm_version": vllm.__version__,
    "torch_version": torch.__version__,
    "device": current_platform.device_type,
    "device_name": torch.cuda.get_device_name() if device == "cuda" else str(torch.backends.cpu.get_cpu_capability()),
}))
"""
)


def read_smoke(output: str) -> dict[str, Any]:
    """Return what the smoke test printed; ValueError where it did not come to its end."""
    for line in reversed(output.splitlines()):
        if line.startswith(_PREFIX):
            found = json.loads(line[len(_PREFIX) :])
            if isinstance(found, dict):
                return found
    raise ValueError("the smoke test did not come to its end")


class SmokeError(Exception):
    """The engine does not serve a tiny model; the message holds vLLM's own last words."""


def job_digest(job: dict[str, Any]) -> str:
    """What the forward pass was made with, time limits left out: another digest asks for another pass."""
    told = {key: value for key, value in job.items() if key != "timeout_seconds"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def forward_passes(python: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """A few tokens of a tiny model, and of one of each plugin that brings its own, each in a process that ends with all it started.

    `job` holds `options` (those of `vllm serve`), `environment`, `device`, `scheme` (of the checkpoint's quantisation, empty for none),
    `group_size` and `timeout_seconds` for each model. Raises SmokeError.
    """
    passes = [_forward_pass(python, job, "llama")]
    passes += [_forward_pass(python, job, name) for name in passes[0]["others"]]
    return [{key: value for key, value in one.items() if key != "others"} for one in passes]


def _forward_pass(python: str, job: dict[str, Any], model: str) -> dict[str, Any]:
    told = {"model": model, **{key: job[key] for key in ("options", "scheme", "group_size", "device")}}
    # In one process where one will do: half the time, and what goes wrong is said where it is heard.
    environment = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if job["device"] == "cpu":
        # GiB of key/value cache; and nothing is compiled, which would need a compiler even for an eager model.
        environment.update(VLLM_CPU_KVCACHE_SPACE="1", TORCHDYNAMO_DISABLE="1")
    environment.update(
        {str(name): str(value) for name, value in job["environment"].items() if name not in _OF_THE_UNIT}
    )
    try:
        done = run_worker(
            python,
            "engine_smoke_run",
            ("engine_smoke_model",),
            json.dumps(told),
            timeout=int(job["timeout_seconds"]),
            environment=environment,
        )
    except CheckpointError as error:
        # vLLM's own last words are enough; which Python it was, the sentence around them says.
        inner = re.search(r"ended without a result \((.*)\)\.?$", str(error), re.DOTALL)
        raise SmokeError(inner[1] if inner else str(error).rstrip(".")) from None
    return done.result
