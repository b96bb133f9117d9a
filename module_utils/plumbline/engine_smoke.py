"""The smoke test of an engine: vLLM and its server import, and one of its own compiled kernels computes right on the device."""

from __future__ import annotations

import json
from typing import Any

_PREFIX = "plumbline-smoke "

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
