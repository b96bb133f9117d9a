"""The command plumbline-checkpoint: look at a checkpoint, convert it, verify what was made. Works offline and without Ansible.

Exit status: 0 done, 1 the checkpoint or the machine does not allow it (one sentence on standard error), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from . import checkpoint_convert, checkpoint_directory
from .checkpoint_errors import CheckpointError
from .checkpoint_report import form_of, gigabytes, inspect
from .checkpoint_writer import DEFAULT_SHARD_BYTES, JOURNAL, forget
from .engine_architectures import check_known
from .engine_fitness import free_bytes
from .manifest import MANIFEST, REINSTALL, SCHEMA, Refused, check_files, read_manifest, sha256_of_file
from .safetensors_file import read_tensors
from .safetensors_source import SafetensorsSource
from .tensor_source import TensorSource, files_of
from .yuan_architecture import check as check_yuan
from .yuan_architecture import is_yuan

_MARGIN_BYTES = 64 << 20
# In halves of a step, as the gate's model_rounding_error.
_LARGEST_ROUNDING = 1.01
_QUANTISE = ("rtn-w4a16", "rtn-w8a16")
_EPILOG = """\
examples:
  plumbline-checkpoint inspect /srv/Yuan2-M32
  plumbline-checkpoint convert /srv/Yuan2-M32 /srv/served/Yuan2-M32
  plumbline-checkpoint convert /srv/Yuan2-M32 /srv/served/Yuan2-M32-w4a16 --quantise rtn-w4a16
  plumbline-checkpoint verify /srv/served/Yuan2-M32

A conversion that was interrupted or killed goes on where it stopped when the same command is run again. One that fails leaves nothing.
Nothing is downloaded, and no code of a checkpoint is run: pickles are read, Python files stay behind.
exit status: 0 done; 1 refused, one sentence on standard error says why; 2 wrong usage; 130 interrupted.
"""


def main(arguments: Optional[Sequence[str]] = None) -> int:  # noqa: UP045 - any Python from 3.9 on
    """The command line; returns its exit status."""
    given = _parser().parse_args(arguments)
    work: Callable[[argparse.Namespace], int] = given.work
    try:
        return work(given)
    except CheckpointError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        _say("interrupted: run the same command again, it goes on where it stopped.")
        return 130
    except MemoryError:
        return _refused("There is too little memory: stop what else runs on this machine, then run again.")
    except ModuleNotFoundError as error:
        return _refused(
            f"This Python ({sys.executable}) lacks {error.name}: run it with the engine's, "
            "PLUMBLINE_PYTHON=/opt/plumbline/engines/current/bin/python."
        )
    except OSError as error:
        return _refused(
            f"{error.filename or 'The file system'}: {error.strerror or error}; look at its file system and rights."
        )


def _inspect(given: argparse.Namespace) -> int:
    report = inspect(given.path, given.sha256)
    if given.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print("\n".join(report.lines()))
    return _refused(report.problem) if report.problem else 0


def _convert(given: argparse.Namespace) -> int:
    source, target = given.source.resolve(), given.target.absolute()
    if os.path.lexists(target):
        raise CheckpointError(
            f"{target} is there already: expected a name that is free; give another one, or remove it."
        )
    form = form_of(source)
    conversion = checkpoint_convert.prepared(source, form, given.dtype, given.shard_bytes)
    whole, rounded = conversion.source, None
    partial = target.with_name(f".{target.name}.partial")
    try:
        if source.is_dir():
            check_known(checkpoint_directory.read_json(source, "config.json"))
        files = files_of(conversion.source)
        if given.quantise:
            from .quantise_convert import quantised  # noqa: PLC0415 - needs more than the rest

            conversion, rounded = quantised(conversion, given.quantise, given.group, shard_bytes=given.shard_bytes)
        _claim(conversion.size_bytes, target, partial)
        copied = [path.name for path in conversion.copied]
        same = all(shard.head is not None for shard in conversion.shards)
        partial.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _nothing_left(partial), _Progress(not given.quiet) as progress:
            written = checkpoint_convert.write(
                conversion, partial, _key(source, given), hash_source=bool(files) and not same, progress=progress
            )
            known = written.shards if same else written.source
            digest = _digest(source, partial, known, copied)
            if given.source_sha256 and digest != given.source_sha256.lower():
                raise CheckpointError(
                    f"{source}: expected the SHA-256 {given.source_sha256.lower()}, found {digest}; copy it again from where it came."
                )
            if rounded is not None:
                _check_rounding(whole, partial, list(written.shards), rounded)
            _write_manifest(
                partial, target.name, {"file": source.name, "sha256": digest, "format": form}, written.shards
            )
            forget(partial)
            partial.rename(target)
    finally:
        conversion.source.close()
    count = f"{len(written.shards)} shard{'s' if len(written.shards) > 1 else ''}"
    print(f"{target}: {count}, {gigabytes(conversion.size_bytes)}, from {source} with the SHA-256 {digest}")
    return 0


def _verify(given: argparse.Namespace) -> int:
    directory: Path = given.directory
    try:
        manifest, _ = read_manifest(directory)
        check_files(directory, manifest)
    except Refused as refusal:
        raise CheckpointError(str(refusal).replace(REINSTALL, "convert the checkpoint again")) from None
    specs = [spec for path in sorted(directory.glob("*.safetensors")) for spec in read_tensors(path)]
    found = {spec.name: [spec.dtype, list(spec.shape)] for spec in specs}
    stated = {name: [entry["dtype"], entry["shape"]] for name, entry in (manifest.get("tensors") or {}).items()}
    wrong = sorted(name for name in {**found, **stated} if found.get(name) != stated.get(name))
    if wrong:
        raise CheckpointError(
            f"{directory}: the tensor {wrong[0]} is {found.get(wrong[0], 'not there')}, the manifest says "
            f"{stated.get(wrong[0], 'nothing of it')}: convert the checkpoint again."
        )
    config = checkpoint_directory.read_json(directory, "config.json")
    if is_yuan(config):
        check_yuan(config, specs)
    size = sum(int(entry["bytes"]) for entry in manifest["files"].values())
    print(f"{directory}: {len(manifest['files'])} files, {len(specs)} tensors, {gigabytes(size)}, as the manifest says")
    return 0


def _claim(wanted: int, target: Path, partial: Path) -> None:
    there = sum(path.stat().st_blocks * 512 for path in partial.iterdir()) if partial.is_dir() else 0
    free = free_bytes(str(target))
    if free + there < wanted + _MARGIN_BYTES:
        raise CheckpointError(
            f"{target} needs {gigabytes(wanted + _MARGIN_BYTES)}, {gigabytes(free + there)} are free there: "
            "free some, or name another place."
        )


def _key(source: Path, given: argparse.Namespace) -> str:
    """What an interrupted run must have in common with this one so that it can be gone on with."""
    paths = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    state = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    made_of = [state, given.dtype, given.quantise, given.group, given.shard_bytes]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def _digest(source: Path, partial: Path, known: dict[str, str], copied: list[str]) -> str:
    """SHA-256 of the source as model_source_sha256 means it; `known` are hashes that were taken on the way."""
    if source.is_file():
        return known.get(source.name) or sha256_of_file(source)
    taken = {name: sha256_of_file(partial / name) for name in copied if (partial / name).is_file()}
    return checkpoint_directory.digest(source, {**taken, **known})


def _check_rounding(source: TensorSource, partial: Path, shards: Sequence[str], made: Any) -> None:
    """Read back what was written: every rounded weight must be the nearest to its source's."""
    from .quantise_check import rounding  # noqa: PLC0415

    written = SafetensorsSource(partial, sorted(shards))
    try:
        worst = rounding(source, written, made)
    finally:
        written.close()
    if worst.largest > _LARGEST_ROUNDING:
        raise CheckpointError(
            f"A weight of {worst.where} lies {worst.largest:.2f} half steps from its source's: expected at most 1, the nearest; "
            "look at this machine's memory and disk, then run again."
        )


def _write_manifest(directory: Path, name: str, source: dict[str, Any], hashes: dict[str, str]) -> None:
    for path in directory.iterdir():
        path.chmod(0o644)
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashes.get(path.name) or sha256_of_file(path)}
        for path in sorted(directory.iterdir())
        if path.name != JOURNAL
    }
    tensors = {
        spec.name: {"file": shard, "dtype": spec.dtype, "shape": list(spec.shape)}
        for shard in hashes
        for spec in read_tensors(directory / shard)
    }
    manifest = {
        "schema": SCHEMA,
        "name": name,
        "source": source,
        "files": files,
        "tensors": dict(sorted(tensors.items())),
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _nothing_left(partial: Path) -> Iterator[None]:
    """Remove what was begun when it fails; keep it when it is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"The checkpoint could not be written to {partial.parent} ({error.strerror or error}): free disk there, then run again."
        ) from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


class _Progress:
    """A line on standard error: rewritten on a terminal, one for each tenth elsewhere."""

    def __init__(self, shown: bool) -> None:
        self._shown, self._terminal = shown, sys.stderr.isatty()
        self._begin, self._told = time.monotonic(), -1

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._shown and self._terminal and self._told >= 0:
            sys.stderr.write("\n")

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if not self._shown or (not self._terminal and tenth == self._told):
            return
        self._told = tenth
        rate = done / max(time.monotonic() - self._begin, 1e-6)
        left = (total - done) / rate if rate else 0.0
        line = f"{gigabytes(done)} of {gigabytes(total)}, {gigabytes(rate)}/s, {left:.0f} s left"
        sys.stderr.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()


def _refused(sentence: str) -> int:
    _say(sentence)
    return 1


def _say(sentence: str) -> None:
    print(f"plumbline-checkpoint: {sentence}", file=sys.stderr)


def _size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdigit() or int(number) * unit < 1:
        raise argparse.ArgumentTypeError(f"expected a size such as 2G, found {text!r}")
    return int(number) * unit


def _sha256(text: str) -> str:
    if len(text) != 64 or any(digit not in "0123456789abcdefABCDEF" for digit in text):
        raise argparse.ArgumentTypeError(f"expected 64 hex digits, found {text!r}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plumbline-checkpoint",
        description="Look at a model's checkpoint, convert it to safetensors that vLLM serves, and verify the result.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    look = commands.add_parser(
        "inspect", help="say what a checkpoint is and whether it can be converted; reads headers only"
    )
    look.add_argument("path", type=Path, help=".gguf file or directory")
    look.add_argument(
        "--sha256", action="store_true", help="also take its SHA-256 (model_source_sha256); reads every byte"
    )
    look.add_argument("--json", action="store_true", help="print JSON")
    look.set_defaults(work=_inspect)
    make = commands.add_parser("convert", help="write a directory of safetensors with config, tokenizer and manifest")
    make.add_argument(
        "source",
        type=Path,
        help=".gguf file, or directory: safetensors, pieces, pytorch_model*.bin, Megatron partitions of Yuan",
    )
    make.add_argument("target", type=Path, help="directory to be made; its name must be free")
    make.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        default="bfloat16",
        help="type that a GGUF file becomes (default: %(default)s); other weights keep theirs",
    )
    make.add_argument("--quantise", choices=_QUANTISE, help="round the weights to 4 or 8 bits while they are written")
    make.add_argument(
        "--group",
        type=int,
        choices=(32, 64, 128),
        default=128,
        help="weights of a row that share a scale (default: %(default)s)",
    )
    make.add_argument("--source-sha256", type=_sha256, metavar="HEX", help="refuse a source with another SHA-256")
    make.add_argument(
        "--shard-bytes", type=_size, default=DEFAULT_SHARD_BYTES, metavar="SIZE", help="largest shard, for example 2G"
    )
    make.add_argument("--quiet", action="store_true", help="no progress line")
    make.set_defaults(work=_convert)
    verify = commands.add_parser(
        "verify", help="check every file and tensor of a converted directory against its manifest"
    )
    verify.add_argument("directory", type=Path)
    verify.set_defaults(work=_verify)
    return parser


if __name__ == "__main__":
    sys.exit(main())
