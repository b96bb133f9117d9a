"""The lock files: every file of every package pinned by its hash, for Python 3.11 and everything newer at once."""

from __future__ import annotations

from pathlib import Path

from lab.shell import run_long, say


def renew(root: Path) -> None:
    """Make ``requirements.txt`` and ``requirements-dev.txt`` from their ``.in`` files."""
    compile_: list[str | Path] = [
        root / ".venv" / "bin" / "uv",
        *("pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes"),
        # What one machine is configured with must not get into the lock.
        *("--no-header", "--no-emit-index-url", "--no-emit-find-links", "--no-config", "--upgrade"),
    ]
    log = root / ".cache" / "lock.log"
    run_long([*compile_, "requirements.in", "-o", "requirements.txt"], what="locking requirements.in", log=log)
    # Tests run with the very versions that users get.
    run_long(
        [*compile_, "requirements-dev.in", "--constraint", "requirements.txt", "-o", "requirements-dev.txt"],
        what="locking requirements-dev.in",
        log=log,
    )
    say("requirements.txt and requirements-dev.txt are renewed")
