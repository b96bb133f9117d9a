"""A middleware that keeps something of every request in a real `vllm serve` is caught by the soak; the same without the leak is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import load_program, soak_program
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge as judge_measurement
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_judgement import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_sampler import read_lines

from tests.engine_python.serving_support import KEY, MODEL, serve, write_model

SECONDS, WARMUP = 180, 50
HORIZON = 72 * 3600.0
RULE = {"kind": "growth", "unit": "fraction", "fail": 0.003}
# As a cache of sessions without an end: a little of each request is kept.
LEAKING = """
import os
KEPT = []
class Middleware:
    def __init__(self, app):
        self.app = app
    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and BYTES:
            KEPT.append(os.urandom(BYTES))
        await self.app(scope, receive, send)
"""


@pytest.mark.long
@pytest.mark.parametrize("kept_bytes", [0, 8192])
def test_a_leaking_middleware_is_caught(kept_bytes: int, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    runtime = tmp_path / "run"
    site = runtime / "site"
    site.mkdir(parents=True)
    (site / "leaking.py").write_text(f"BYTES = {kept_bytes}\n" + LEAKING)
    with serve(model, runtime, {}, "--middleware", "leaking.Middleware") as server:
        folder = soak(tmp_path, server.process.pid, f"http://127.0.0.1:{server.port}/v1")
    spec = json.loads((folder / "spec.json").read_text())
    samples, load = read_lines(folder / "samples.jsonl"), read_lines(folder / "load.jsonl")
    found = judge(samples, load, spec, HORIZON)
    growth = {each["scope"]: each for each in found if each["name"] == "soak_memory_growth"}
    checks = {scope: judge_measurement(each, {"soak_memory_growth": RULE}) for scope, each in growth.items()}
    if place := os.environ.get("PLUMBLINE_KEEP_SOAK"):
        keep = {scope: {k: v for k, v in each.items() if not k.startswith("sample")} for scope, each in growth.items()}
        Path(place, f"soak-leak-{kept_bytes}.json").write_text(json.dumps(keep, indent=1))
        subprocess.run(["cp", "-r", str(folder), f"{place}/soak-{kept_bytes}"], check=True)
    errors = next(each for each in found if each["name"] == "request_error_fraction")
    assert errors["value"] == 0, errors
    status = checks["engine, anonymous memory"].status
    assert (status == "CRITICAL") is bool(kept_bytes), checks["engine, anonymous memory"].reason


def soak(tmp_path: Path, process: int, base_url: str) -> Path:
    """Run the sampler as its unit does; the service manager is a script that names the process."""
    folder, runtime, tools = tmp_path / "soak", tmp_path / "soak-run", tmp_path / "bin"
    for each in (folder, runtime, tools):
        each.mkdir()
    (tools / "systemctl").write_text(f"#!/bin/sh\necho MainPID={process}\necho ControlGroup=\n")
    (tools / "systemctl").chmod(0o755)
    (folder / "plumbline-soak.pyz").write_bytes(soak_program.program())
    (folder / "plumbline-load.pyz").write_bytes(load_program.program())
    (runtime / "key").write_text(KEY)
    spec: dict[str, Any] = {
        "unit": "plumbline-serving.service",
        "python": sys.executable,
        "duration_seconds": SECONDS,
        "interval_seconds": 0.5,
        "warmup_seconds": WARMUP,
        "load": {
            "base_url": base_url,
            "model": MODEL,
            "arrival": "poisson",
            "rate_per_second": 8,
            "prompt_tokens": 64,
            "output_tokens": 4,
            "interval_seconds": 2,
        },
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    command = ["/usr/bin/python3", "-I", str(folder / "plumbline-soak.pyz"), str(folder), str(runtime)]
    subprocess.run(command, env=environment, check=True, timeout=SECONDS + 120)
    return folder
