"""Make .cache/engine-venv: the engine's locked packages, pytest of the developers' lock, and the Yuan plugin of this checkout.

    .venv/bin/python tests/tools/engine_venv.py PYTHON

PYTHON is a Python 3.11, for which the lock of the CPU engine is. Packages come from where pip of this machine finds them. A finished
environment is kept as long as neither lock has changed; only the plugin is installed anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import engine_sources  # noqa: E402

VENV = ROOT / ".cache/engine-venv"
LOCK = ROOT / "roles/engine/files/locks/cpu-cp311.txt"
DEVELOPERS = ROOT / "requirements-dev.txt"
UV = Path(sys.executable).parent / "uv"
# pytest and hypothesis with what they need and the engine's lock lacks.
TEST_PACKAGES = ("hypothesis", "iniconfig", "pluggy", "pytest", "pytest-asyncio", "sortedcontainers")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def fail(sentence: str) -> None:
    """End with one sentence."""
    sys.exit(f"make test-yuan: {sentence}")


def test_requirements(lock: str, engine: str) -> str:
    """The entries of TEST_PACKAGES in the developers' lock, with their hashes, but those that the engine's lock has."""
    entries = {
        re.split(r"==", entry, maxsplit=1)[0]: entry
        for entry in re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
        if "==" in entry
    }
    missing = [name for name in TEST_PACKAGES if name not in entries]
    if missing:
        fail(f"requirements-dev.txt no longer locks {', '.join(missing)}.")
    return "".join(entries[name] for name in TEST_PACKAGES if not re.search(rf"(?m)^{name}==", engine))


def uv(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run uv without its own configuration."""
    return subprocess.run(
        [str(UV), *arguments, "--no-config"],
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=False,
    )


def make(python: str) -> None:
    """Make what is not there yet."""
    described = subprocess.run(
        [python, "-c", "import json, sys; print(json.dumps([list(sys.version_info[:2]), sys.version]))"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    version, full = json.loads(described.stdout) if described.returncode == 0 else ([0, 0], "")
    if version != [3, 11]:
        fail(
            f"{python} is Python {version[0]}.{version[1]}; the lock of the CPU engine is for 3.11: install it or set ENGINE_PYTHON."
        )
    engine = LOCK.read_text(encoding="utf-8")
    tests = test_requirements(DEVELOPERS.read_text(encoding="utf-8"), engine)
    stamp = hashlib.sha256("\0".join((engine, tests, full)).encode()).hexdigest()
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    sources = engine_sources.from_pip_config(listing.stdout)
    environment = engine_sources.uv_environment(sources, str(ROOT / ".cache/uv"))
    into = ["--python", str(VENV / "bin/python")]
    if not (VENV / ".stamp").exists() or (VENV / ".stamp").read_text() != stamp:
        shutil.rmtree(VENV, ignore_errors=True)
        print(f"making {VENV.relative_to(ROOT)} from {LOCK.relative_to(ROOT)} (2.1 GB)", flush=True)
        done = uv(["venv", "--python", python, str(VENV)], environment)
        (VENV / "tests.txt").write_text(tests) if done.returncode == 0 else None
        install = ["pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:", *into]
        if done.returncode == 0:
            wanted = ["-r", str(LOCK), "-r", str(VENV / "tests.txt")]
            done = uv([*install, *wanted, *engine_sources.uv_arguments(sources)], environment)
            if done.returncode != 0 and "torch" in done.stderr and not sources.no_index:
                # torch's CPU build is not on PyPI. Asked only now: an index out of reach fails an installation that needs it not.
                done = uv([*install, *wanted, *engine_sources.uv_arguments(sources, TORCH_INDEX)], environment)
        if done.returncode != 0:
            fail(f"the engine's environment could not be made: {' '.join(done.stderr.split())[-600:]}")
        (VENV / ".stamp").write_text(stamp)
    with tempfile.TemporaryDirectory() as directory:
        # A copy: setuptools leaves its build directories beside what it builds.
        plugin = shutil.copytree(ROOT / "engine_plugins/yuan", Path(directory) / "yuan")
        done = uv(
            ["pip", "install", "--no-deps", "--no-build-isolation", "--reinstall", *into, str(plugin)], environment
        )
    if done.returncode != 0:
        fail(f"the plugin could not be installed: {' '.join(done.stderr.split())[-600:]}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    make(sys.argv[1])
