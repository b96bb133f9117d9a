"""Models on a node: one directory a revision, made aside and put in place by one rename, with a manifest of every byte.

ROOT/NAME/REVISION/   config, tokenizer, weights, reference.json (how likely the source finds the known text), manifest.json
ROOT/NAME/.REVISION.partial/   what is being made
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from . import checkpoint_convert, checkpoint_directory, quantise_convert
from .checkpoint_errors import CheckpointError
from .checkpoint_writer import forget, require_alone
from .engine_fitness import free_bytes
from .likelihood_served import ENVIRONMENT
from .manifest import MANIFEST, SCHEMA, Refused, check_files, read_manifest, sha256_of_file
from .quantise_wish import AWQ, Quantise, engines_job, run_awq
from .safetensors_file import TensorSpec, read_tensors
from .tensor_source import files_of
from .worker import run_worker

# Raised when the same source would give other bytes; it is part of the revision.
CONVERTER = 1
REFERENCE = "reference.json"
# Architectures that transformers does not know: the worker that tells how likely their source finds a text, and the modules it needs.
REFERENCE_WORKERS: dict[str, tuple[str, tuple[str, ...]]] = {"YuanForCausalLM": ("likelihood_yuan", ())}
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_MARGIN_BYTES = 64 << 20
# Measured on a model of 135 million parameters: transformers holds the weights 1.3 times while it dequantises, and torch itself 0.6 GB.
_REFERENCE_FACTOR = 1.5
_REFERENCE_BYTES = 1 << 30


@dataclass(frozen=True)
class Wish:
    """The model that shall be there. `source` lies on the node; its SHA-256 is what the inventory says it must be."""

    root: Path
    name: str
    source: Path
    source_sha256: str
    format: str
    dtype: str
    text: str
    engine_python: str
    timeout_seconds: int = 3600
    quantise: Optional[Quantise] = None  # noqa: UP045 - evaluated on the node, whose Python may be 3.9

    def __post_init__(self) -> None:
        """Refuse what would end up in a path or could not be compared."""
        if not _NAME.match(self.name):
            raise CheckpointError(
                f"model_name is {self.name!r}: expected letters, digits, '.', '_' and '-', for it names a directory."
            )
        if not _SHA256.match(self.source_sha256):
            raise CheckpointError(
                f"model_source_sha256 is {self.source_sha256!r}: expected the 64 hex digits of the source's SHA-256."
            )
        if not self.text.strip():
            raise CheckpointError(
                "The known text of the likelihood is empty: name a file with some sentences in model_likelihood_text_file."
            )

    @property
    def revision(self) -> str:
        """Names the model's bytes and what they are judged by: equal revisions mean equal directories."""
        made_of = [
            CONVERTER,
            self.source_sha256,
            self.format,
            self.dtype,
            hashlib.sha256(self.text.encode()).hexdigest(),
        ]
        if self.quantise is not None:
            made_of.append(self.quantise.key)
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]

    @property
    def path(self) -> Path:
        """Directory of this revision."""
        return self.root / self.name / self.revision

    @property
    def partial(self) -> Path:
        """Where it is made before it is put in place."""
        return self.root / self.name / f".{self.revision}.partial"

    @property
    def full(self) -> Path:
        """Where a model that is to be quantised lies in full precision, when its source cannot be read so."""
        return self.root / self.name / f".{self.revision}.full"

    @property
    def rounded(self) -> Path:
        """Where another quantiser leaves its weights."""
        return self.root / self.name / f".{self.revision}.rounded"


def installed(wish: Wish) -> tuple[dict[str, Any], str] | None:
    """Manifest and its SHA-256 of the model in place, every file of it checked; None where there is none. Raises CheckpointError."""
    if not wish.path.exists():
        return None
    try:
        manifest, manifest_sha256 = read_manifest(wish.path)
        check_files(wish.path, manifest)
    except Refused as refusal:
        raise CheckpointError(
            f"The model on the node is not what was put there: {refusal} A file that changed by itself means a failing disk or memory."
        ) from None
    return manifest, manifest_sha256


def install(wish: Wish) -> tuple[dict[str, Any], str]:
    """Make the model from its source and put it in place. Raises CheckpointError, and leaves nothing, when it cannot be done."""
    wish.root.mkdir(parents=True, exist_ok=True)
    with _alone(wish):
        wish.partial.mkdir(mode=0o755, parents=True, exist_ok=True)
        # The worker of a run that was killed may still be at it; what it does is not thrown away.
        require_alone(wish.partial)
        try:
            hashes, told = (
                (_convert(wish, wish.partial), None) if wish.quantise is None else _quantise(wish, wish.quantise)
            )
            tensors = _tensors(wish.partial, hashes)
            _memory(wish, told["parameters"] if told else sum(math.prod(spec.shape) for _, spec in tensors.values()))
            reference = _reference(wish)
            (wish.partial / REFERENCE).write_text(json.dumps(reference) + "\n", encoding="utf-8")
            forget(wish.partial)
            manifest = _manifest(wish, tensors, hashes)
            if told:
                manifest["quantised"] = told
            text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
            (wish.partial / MANIFEST).write_text(text, encoding="utf-8")
            _settle(wish.partial)
            wish.partial.rename(wish.path)
            _forget_helpers(wish)
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                shutil.rmtree(wish.partial, ignore_errors=True)
                _forget_helpers(wish)
                with contextlib.suppress(OSError):
                    # Only where no other revision lies in it.
                    wish.partial.parent.rmdir()
            if isinstance(error, OSError):
                raise CheckpointError(
                    f"The model {wish.name} could not be made at {wish.root} ({error}): free disk there, then run again."
                ) from None
            raise
    return manifest, hashlib.sha256(text.encode()).hexdigest()


def source_bytes(source: Path) -> int:
    """Size of a source, a file or a directory."""
    if source.is_dir():
        return sum((source / name).stat().st_size for name in checkpoint_directory.taken_files(source))
    return source.stat().st_size


def _check_kind(wish: Wish) -> None:
    kind = "file" if wish.format == "gguf" else "directory"
    if not (wish.source.is_dir() if kind == "directory" else wish.source.is_file()):
        raise CheckpointError(
            f"The source of the model, {wish.source}: expected a {kind} for the format {wish.format}, found none; look at model_source."
        )


def _check_digest(wish: Wish, found: str) -> None:
    if found != wish.source_sha256:
        raise CheckpointError(
            f"The source of the model, {wish.source}: expected the SHA-256 {wish.source_sha256} (model_source_sha256), found {found}; "
            "copy it again from where it came, or correct the variable if this is the file you trust."
        )


def _convert(wish: Wish, target: Path) -> dict[str, str]:
    """Write the weights and what goes with them; return the SHA-256 of each shard."""
    _check_kind(wish)
    conversion = checkpoint_convert.prepared(wish.source, wish.format, wish.dtype)
    files = files_of(conversion.source)
    same_bytes = all(shard.head is not None for shard in conversion.shards)
    conversion.source.close()
    _claim(wish, conversion.size_bytes)
    if not files:
        _check_digest(wish, checkpoint_directory.digest(wish.source))
    # Where files keep their bytes, the hashes of what is written are the source's.
    job = _job(wish, target, hash_source=bool(files) and not same_bytes)
    done = _carried_out(wish, "checkpoint_convert", checkpoint_convert.NEEDS, job)
    hashes: dict[str, str] = done["shards"]
    if files:
        copied = {path.name: sha256_of_file(target / path.name) for path in conversion.copied}
        _check_read(wish, {**(hashes if same_bytes else done["source"]), **copied})
    return hashes


def _quantise(wish: Wish, wanted: Quantise) -> tuple[dict[str, str], dict[str, Any]]:
    """Write the weights quantised; return the SHA-256 of each shard, and what the manifest says of it.

    The source is read and rounded in one pass where it is such that its likelihood can be asked of it as it is. Else it is written in full
    precision first, beside the model, and removed at the end.
    """
    _check_kind(wish)
    conversion = checkpoint_convert.prepared(wish.source, wish.format, wish.dtype)
    try:
        changed, made = quantise_convert.quantised(conversion, wanted.method, wanted.group)
        as_it_is = all(shard.head is not None for shard in conversion.shards) and not conversion.made
        direct = as_it_is or (wish.format == "gguf" and wanted.method != AWQ and wanted.reference != "engine")
    finally:
        conversion.source.close()
    rounded_bytes = changed.size_bytes * (2 if wanted.method == AWQ else 1)
    _claim(wish, rounded_bytes + (0 if direct else conversion.size_bytes))
    if not direct:
        wish.full.mkdir(mode=0o755, exist_ok=True)
        _convert(wish, wish.full)
        _readable(wish.full)
    elif wanted.method == AWQ:
        _check_digest(wish, checkpoint_directory.digest(wish.source))
    job = _job(wish, wish.partial, hash_source=direct and wanted.method != AWQ)
    if not direct:
        job.update(source=str(wish.full), format="safetensors")
    if wanted.method == AWQ:
        shutil.rmtree(wish.rounded, ignore_errors=True)
        run_awq(wanted, Path(job["source"]), wish.rounded, made)
        job["by_another"] = str(wish.rounded)
    job.update(method=wanted.method, group=wanted.group)
    done = _carried_out(wish, "quantise_convert", quantise_convert.NEEDS, job)
    if job["hash_source"]:
        _check_read(wish, done["source"])
    return done["shards"], done["quantised"]


def _job(wish: Wish, target: Path, *, hash_source: bool) -> dict[str, Any]:
    return {
        "source": str(wish.source),
        "target": str(target),
        "format": wish.format,
        "dtype": wish.dtype,
        "source_key": wish.revision,
        "hash_source": hash_source,
    }


def _carried_out(wish: Wish, worker: str, needs: tuple[str, ...], job: dict[str, Any]) -> dict[str, Any]:
    timeout = wish.timeout_seconds
    return run_worker(wish.engine_python, worker, needs, json.dumps(job), timeout=timeout, unprivileged=False).result


def _check_read(wish: Wish, known: dict[str, str]) -> None:
    """The source is read once: it was hashed on its way. What does not match is not put in place."""
    whole = checkpoint_directory.digest(wish.source, known) if wish.source.is_dir() else known[wish.source.name]
    _check_digest(wish, whole)


def _forget_helpers(wish: Wish) -> None:
    for path in (wish.full, wish.rounded):
        shutil.rmtree(path, ignore_errors=True)


def _tensors(directory: Path, shards: Iterable[str]) -> dict[str, tuple[str, TensorSpec]]:
    """File and spec of each tensor, from the headers of what was written."""
    return {spec.name: (shard, spec) for shard in shards for spec in read_tensors(directory / shard)}


def _claim(wish: Wish, wanted: int) -> None:
    # What an interrupted run has finished need not be written again.
    made = [path for place in (wish.partial, wish.full) if place.is_dir() for path in place.iterdir()]
    there = sum(path.stat().st_size for path in made if path.is_file())
    free = free_bytes(str(wish.partial))
    if free + there < wanted + _MARGIN_BYTES:
        raise CheckpointError(
            f"The model {wish.name} needs {(wanted + _MARGIN_BYTES) / 1e9:.2f} GB at {wish.root}, {(free + there) / 1e9:.2f} GB are free: "
            "free some, or set model_root to a larger file system."
        )


def _memory(wish: Wish, parameters: int) -> None:
    if wish.quantise is not None and wish.quantise.reference == "engine":
        # The engine says itself whether it has room.
        return
    wanted, found = int(4 * parameters * _REFERENCE_FACTOR) + _REFERENCE_BYTES, available_memory()
    if found is not None and found < wanted:
        raise CheckpointError(
            f"The likelihood of the source of {wish.name} needs {wanted / 1e9:.1f} GB of memory (float32), "
            f"{found / 1e9:.1f} GB are available: stop what else runs on this machine, or use a larger one."
        )


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that new work could use without swapping, None where the kernel does not say."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="ascii"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _reference(wish: Wish) -> dict[str, Any]:
    """How likely the source finds the known text. Of a directory the copy is asked, whose digest is the source's.

    Of a model that is quantised it is the source itself, or its copy in full precision.
    """
    source = wish.source
    if wish.full.is_dir() or wish.format != "gguf":
        source = wish.partial if wish.quantise is None else wish.full if wish.full.is_dir() else wish.source
    _readable(wish.partial)
    if wish.quantise is not None and wish.quantise.reference == "engine":
        served = run_worker(
            wish.engine_python,
            "likelihood_served",
            (),
            json.dumps(engines_job(source, wish.text, wish.dtype)),
            timeout=wish.timeout_seconds,
            environment={**ENVIRONMENT, **wish.quantise.environment},
            unprivileged=_open_to_all(source),
        )
        return {**served.result, "computed_in": f"the engine, {wish.dtype}"}
    architecture = checkpoint_directory.read_json(wish.partial, "config.json")["architectures"][0]
    worker, needs = REFERENCE_WORKERS.get(architecture, ("likelihood_reference", ()))
    form = "gguf" if source == wish.source else "safetensors"
    job = json.dumps(
        {"source": str(source), "format": form if wish.format == "gguf" else wish.format, "text": wish.text}
    )
    done = run_worker(
        wish.engine_python,
        worker,
        needs,
        job,
        timeout=wish.timeout_seconds,
        unprivileged=_open_to_all(source),
    )
    return done.result


def _open_to_all(path: Path) -> bool:
    """Whether a user without rights could read it."""
    ways = [parent.stat().st_mode & 0o001 for parent in path.resolve().parents]
    return all(ways) and bool(path.stat().st_mode & 0o004)


def _manifest(wish: Wish, tensors: dict[str, tuple[str, TensorSpec]], hashes: dict[str, str]) -> dict[str, Any]:
    files = {}
    for path in sorted(wish.partial.iterdir()):
        files[path.name] = {"bytes": path.stat().st_size, "sha256": hashes.get(path.name) or sha256_of_file(path)}
    return {
        "schema": SCHEMA,
        "name": wish.name,
        "revision": wish.revision,
        "source": {"file": wish.source.name, "sha256": wish.source_sha256, "format": wish.format},
        "dtype": wish.dtype,
        "text_sha256": hashlib.sha256(wish.text.encode()).hexdigest(),
        "files": files,
        "tensors": {
            name: {"file": shard, "dtype": spec.dtype, "shape": list(spec.shape)}
            for name, (shard, spec) in sorted(tensors.items())
        },
    }


def _readable(directory: Path) -> None:
    """Readable for the server's user, and not writable."""
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)


def _settle(directory: Path) -> None:
    """Readable, and on the disk."""
    _readable(directory)
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _alone(wish: Wish) -> Iterator[None]:
    with (wish.root / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(
                f"Another run is making a model in {wish.root}: wait for it to end, then run again."
            ) from None
        yield
