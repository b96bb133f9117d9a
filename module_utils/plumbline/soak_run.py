"""The soak of a node as a transient systemd unit: what lies in its folder, whether it runs, starting, going on and putting it away."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .soak_sampler import LOAD, PROGRESS, SAMPLES, SPEC, done_seconds, read_lines

UNIT = "plumbline-soak.service"
RUNTIME = Path("/run/plumbline-soak")
SAMPLER_PROGRAM, LOAD_PROGRAM = "plumbline-soak.pyz", "plumbline-load.pyz"
ARCHIVE = "archive"
_KEPT_ARCHIVES = 5
_STOP_SECONDS = 120


class SoakError(Exception):
    """What keeps a soak from going on, as one sentence."""


class Soak:
    """A soak in its folder. `absent`, `running`, `finished` (its time is over) or `interrupted` (it can go on)."""

    def __init__(self, folder: Path, unit: str = UNIT, runtime: Path = RUNTIME) -> None:
        """Take the folder on the node, and where the unit and its key are."""
        self.folder, self.unit, self.runtime = folder, unit, runtime

    def spec(self) -> dict[str, Any]:
        """What the soak in the folder is to do; empty where there is none."""
        try:
            content = json.loads((self.folder / SPEC).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise SoakError(
                f"{self.folder / SPEC} was expected to say what the soak does and cannot be read ({error}): "
                f"move {self.folder} away, and a new soak can begin"
            ) from error
        return content if isinstance(content, dict) else {}

    def active(self) -> bool:
        """Whether the unit runs, starts or ends."""
        try:
            done = subprocess.run(
                ["systemctl", "is-active", self.unit], capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise SoakError(f"a soak runs as a unit of systemd, and systemctl was not found ({error})") from error
        return done.stdout.strip() in ("active", "activating", "deactivating", "reloading")

    def state(self) -> str:
        """Which of the four it is."""
        if self.active():
            return "running"
        if not self.spec():
            return "absent"
        return "finished" if self.over() else "interrupted"

    def over(self) -> bool:
        """Whether the last session ended because the time was over."""
        last = read_lines(self.folder / SAMPLES)[-1:]
        return bool(last) and last[0].get("kind") == "end" and last[0].get("reason") == "over"

    def progress(self) -> dict[str, Any]:
        """How far it is, from the runtime folder, or after the end from what was written."""
        with contextlib.suppress(OSError, ValueError):
            content = json.loads((self.runtime / PROGRESS).read_text(encoding="utf-8"))
            if isinstance(content, dict):
                return content
        spec = self.spec()
        if not spec:
            return {}
        done = done_seconds(read_lines(self.folder / SAMPLES), float(spec["interval_seconds"]))
        return {"done_seconds": done, "wanted_seconds": float(spec["duration_seconds"])}

    def start(self, spec: dict[str, Any], key: str, sampler: bytes, load: bytes) -> None:
        """Begin, or go on with what lies in the folder. Raises SoakError, OSError."""
        self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.runtime / PROGRESS).unlink(missing_ok=True)
        _write(self.folder / SAMPLER_PROGRAM, sampler, 0o640)
        _write(self.folder / LOAD_PROGRAM, load, 0o640)
        _write(self.runtime / "key", key.encode(), 0o600)
        # Last: a folder without it is no soak.
        _write(self.folder / SPEC, json.dumps(spec, indent=1, sort_keys=True).encode(), 0o640)
        subprocess.run(["systemctl", "reset-failed", self.unit], capture_output=True, check=False)
        properties = {
            "Type": "exec",
            # The sampler goes on where it was: a kill by the kernel costs a few samples.
            "Restart": "on-failure",
            "RestartSec": "10",
            "RestartPreventExitStatus": "2",
            "TimeoutStopSec": str(_STOP_SECONDS - 30),
            "KillMode": "mixed",
            "OOMScoreAdjust": "-900",
            "UMask": "0027",
        }
        command = ["systemd-run", f"--unit={self.unit}", "--description=Plumbline: load and readings for hours"]
        command += [f"--property={name}={value}" for name, value in properties.items()]
        command += [sys.executable, "-I", str(self.folder / SAMPLER_PROGRAM), str(self.folder), str(self.runtime)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise SoakError(f"systemd-run was expected to start {self.unit} and said: {done.stderr.strip()[-300:]}")

    def stop(self) -> None:
        """End the unit; what was measured stays, and the soak can go on."""
        done = subprocess.run(
            ["systemctl", "stop", self.unit],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_STOP_SECONDS,
            check=False,
        )
        if done.returncode and self.active():
            raise SoakError(f"{self.unit} does not stop: {done.stderr.strip()[-300:]}")
        shutil.rmtree(self.runtime, ignore_errors=True)

    def archive(self) -> str:
        """Put the measured lines away, so that the next soak is a new one; the key goes. Returns where they lie."""
        place = self.folder / ARCHIVE / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        place.mkdir(mode=0o750, parents=True, exist_ok=True)
        for name in (SPEC, SAMPLES, LOAD):
            if (self.folder / name).exists():
                (self.folder / name).replace(place / name)
        for old in sorted((self.folder / ARCHIVE).iterdir())[:-_KEPT_ARCHIVES]:
            shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(self.runtime, ignore_errors=True)
        return str(place)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file in one step, never readable by others."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(handle, mode)
        while content:
            content = content[os.write(handle, content) :]
    finally:
        os.close(handle)
    fresh.replace(path)
