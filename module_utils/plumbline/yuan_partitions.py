"""Which files the partitions of a Megatron checkpoint are: the newest iteration, every rank once. Standard library only."""

from __future__ import annotations

import re
from pathlib import Path

from .checkpoint_errors import CheckpointError

LATEST = "latest_checkpointed_iteration.txt"
_RANK = re.compile(r"^mp_rank_(\d+)(?:_(\d+))?$")
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_ELSEWHERE = "copy the checkpoint again from where it came"


def partitions(directory: Path) -> dict[tuple[int, int], Path]:
    """The files of the newest iteration by tensor- and pipeline-parallel rank, none missing and none double. Raises CheckpointError."""
    root = _iteration(directory)
    found: dict[tuple[int, int], Path] = {}
    for path in sorted(root.iterdir()):
        match = _RANK.match(path.name)
        if not match or not path.is_dir():
            continue
        key = (int(match[1]), int(match[2] or 0))
        if key in found:
            raise CheckpointError(
                f"{found[key].parent.name} and {path.name} in {root} are both tensor-parallel rank {key[0]}, stage {key[1]}: "
                "expected one; remove the one that does not belong."
            )
        files = [path / name for name in _FILES if (path / name).is_file()]
        if not files:
            raise CheckpointError(f"{path} holds no {_FILES[0]}: expected the weights of this rank; {_ELSEWHERE}.")
        found[key] = files[0]
    if not found:
        raise CheckpointError(
            f"{root} holds no mp_rank_* directory: expected partitions of Megatron; look at model_source."
        )
    for stage in range(1 + max(number for _, number in found)):
        for rank in range(1 + max(number for number, _ in found)):
            if (rank, stage) not in found:
                raise CheckpointError(
                    f"{root} lacks the partition of tensor-parallel rank {rank}, stage {stage}: expected every rank; {_ELSEWHERE}."
                )
    return found


def is_megatron(directory: Path) -> bool:
    """Whether a directory looks like partitions of Megatron."""
    return (directory / LATEST).is_file() or any(directory.glob("mp_rank_*")) or any(directory.glob("iter_*/mp_rank_*"))


def _iteration(directory: Path) -> Path:
    if any(directory.glob("mp_rank_*")):
        return directory
    latest = directory / LATEST
    if latest.is_file():
        text = latest.read_text(encoding="utf-8", errors="replace").strip()
        if text != "release" and not text.isdecimal():
            raise CheckpointError(
                f"{latest} holds {text[:40]!r}: expected the number of an iteration, or the word release."
            )
        root = directory / ("release" if text == "release" else f"iter_{int(text):07d}")
        if not root.is_dir():
            raise CheckpointError(f"{latest} names {root.name}, which is not there: {_ELSEWHERE}.")
        return root
    roots = sorted(path for path in [*directory.glob("iter_*"), directory / "release"] if path.is_dir())
    if len(roots) != 1:
        raise CheckpointError(
            f"{directory} has no {LATEST} and {len(roots)} iterations: expected the file, or one iteration; name the one in model_source."
        )
    return roots[0]
