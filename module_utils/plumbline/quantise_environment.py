"""The quantiser's own environment, from a hash lock as an engine's, complete or absent. It serves nothing and nothing is switched to it."""

from __future__ import annotations

import time

from .engine_install import alone, examine, write_marker
from .engine_lock import differences, installed_versions, parse_lock
from .engine_packages import fill
from .engine_wish import EngineError, Run, Wish, discard, last_line, run_command

# Imports all that quantising needs: what is missing is told here and not after hours of calibration.
_SMOKE = (
    "import compressed_tensors, datasets, transformers; from llmcompressor import oneshot; "
    "from llmcompressor.modifiers.transform.awq import AWQModifier; "
    "from importlib.metadata import version; print(version('llmcompressor'))"
)
_SMOKE_SECONDS = 300


def lacking(wish: Wish) -> list[str]:
    """Why the environment must be made anew, empty where it is complete."""
    return examine(wish).why


def make(wish: Wish, run: Run = run_command) -> float:
    """Make it, whatever lay there before; return the seconds that it took. Nothing half-made stays. Raises EngineError."""
    pins = parse_lock(wish.lock_text, wish.lock_name)
    wish.root.mkdir(parents=True, exist_ok=True)
    with alone(wish.root):
        discard(wish.path)
        started = time.monotonic()
        try:
            filled = fill(wish, run)
            drift = differences(pins, installed_versions(wish.site_packages), {})
            if drift:
                raise EngineError(
                    f"The quantiser {wish.id} does not hold what its lock says ({'; '.join(drift[:3])}): "
                    "make the lock anew with tools/lock-engine."
                )
            _smoke(wish, run)
            seconds = round(time.monotonic() - started, 1)
            write_marker(
                wish, {"id": wish.id, "manager": filled.manager, "install_seconds": seconds, "found_there": []}
            )
        except BaseException:
            discard(wish.path)
            raise
    return seconds


def _smoke(wish: Wish, run: Run) -> None:
    done = run(
        [str(wish.python), "-I", "-c", _SMOKE], {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}, _SMOKE_SECONDS
    )
    found = done.stdout.strip().splitlines()[-1:] if done.returncode == 0 else []
    if found != [wish.version]:
        reason = f"it has llmcompressor {found[0]}" if found else last_line(done)
        raise EngineError(
            f"The quantiser {wish.id} is there but does not work on this machine ({reason}; expected was llmcompressor {wish.version}): "
            "it was removed again; look at the processor and the free memory, or set model_quantise to rtn-w4a16."
        )
