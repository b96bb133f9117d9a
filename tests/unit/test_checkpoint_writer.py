"""The writer: same bytes however often it is killed, bounded memory, a full disk and bad values said in one sentence."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    checkpoint_convert,
    checkpoint_pipeline,
    checkpoint_writer,
    finite,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_writer import (
    JOURNAL,
    forget,
    plan,
    write_shards,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.finite import FiniteCheck, all_finite
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.manifest import sha256_of_file
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import TensorSpec
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.source_hashes import SourceHashes
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tensor_source import (
    Data,
    TensorSource,
    Transform,
    files_of,
    rows_of,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.torch_source import TorchBinSource
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import run_worker

from tests.unit import torch_support

CHUNK = 16384
BIN = "pytorch_model.bin"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few megabytes are many pieces, and a tensor's elements are cut by them."""
    monkeypatch.setattr(checkpoint_writer, "Pipeline", partial(checkpoint_pipeline.Pipeline, CHUNK))
    monkeypatch.setattr(checkpoint_writer, "PIECE_BYTES", 5000)
    monkeypatch.setattr(checkpoint_pipeline, "CHECKPOINT_BYTES", 2 * CHUNK)
    monkeypatch.setattr(checkpoint_pipeline, "_SYNC_BYTES", CHUNK)
    monkeypatch.setattr(finite, "_BLOCK_BYTES", 1024)


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Odd sizes, so that what follows is not aligned."""
    random = np.random.default_rng(seed)
    return {
        "odd": random.integers(0, 255, 4097).astype("u1"),
        "wide": random.standard_normal((3, 30_001)).astype("<f4"),
        "empty": np.zeros((0, 7), "<f4"),
        "long": random.standard_normal((20_000, 3)),
        "half": random.standard_normal(9_999).astype("<f2"),
        "scalar": np.array(1.5, "<f4"),
    }


@pytest.fixture
def source(tmp_path: Path) -> Iterator[TorchBinSource]:
    torch_support.save(tmp_path / BIN, arrays())
    made = TorchBinSource(tmp_path, [BIN])
    yield made
    made.close()


class Unplaced(Transform):
    """The same, but does not say where anything lies."""


def target(tmp_path: Path, name: str = "out") -> Path:
    directory = tmp_path / name
    directory.mkdir()
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("wrapper", [lambda source: source, Unplaced])
@pytest.mark.parametrize("shard_bytes", [1, 400_000, 1 << 30])
def test_what_is_written_is_what_was_read(
    tmp_path: Path, source: TorchBinSource, shard_bytes: int, wrapper: Any
) -> None:
    out = target(tmp_path)
    shards = plan(source.specs(), shard_bytes)
    progress: list[tuple[int, int]] = []
    hashes = write_shards(out, shards, "key", wrapper(source), lambda *done: progress.append(done))
    assert hashes == {path.name: sha256_of_file(path) for path in out.iterdir()}
    assert progress[-1] == (sum(path.stat().st_size for path in out.iterdir()),) * 2
    for shard in shards:
        data = (out / shard.name).read_bytes()[len(shard.head_bytes) :]
        assert data == b"".join(arrays()[spec.name].tobytes() for spec in shard.tensors)


@pytest.mark.parametrize("refused", ["open", "write"])
def test_a_file_system_that_has_only_the_page_cache(
    tmp_path: Path, source: TorchBinSource, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    expected = target(tmp_path, "expected")
    write_shards(expected, plan(source.specs()), "key", source)
    really_open, really_write = os.open, os.pwrite
    direct: set[int] = set()

    def opening(path: Any, flags: int, *mode: Any, **more: Any) -> int:
        if flags & os.O_DIRECT and refused == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        descriptor = really_open(path, flags, *mode, **more)
        if flags & os.O_DIRECT:
            direct.add(descriptor)
        return descriptor

    def writing(descriptor: int, data: Any, offset: int) -> int:
        if descriptor in direct:
            direct.remove(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        return really_write(descriptor, data, offset)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "pwrite", writing)
    out = target(tmp_path)
    write_shards(out, plan(source.specs()), "key", source)
    assert contents(out) == contents(expected)


def test_a_file_system_that_claims_no_space(
    tmp_path: Path, source: TorchBinSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = target(tmp_path, "expected")
    write_shards(expected, plan(source.specs()), "key", source)

    def refused(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    out = target(tmp_path)
    write_shards(out, plan(source.specs()), "key", source)
    assert contents(out) == contents(expected)


@pytest.mark.parametrize("wrapper", [lambda source: source, Unplaced])
def test_the_source_is_hashed_while_it_is_read(tmp_path: Path, source: TorchBinSource, wrapper: Any) -> None:
    wrapped: TensorSource = wrapper(source)
    hashes = SourceHashes(files_of(wrapped))
    write_shards(target(tmp_path), plan(source.specs()), "key", wrapped, source_hashes=hashes)
    assert hashes.finish() == {BIN: sha256_of_file(tmp_path / BIN)}
    hashes.close()


# Runs in a Python of its own and kills itself at the Nth write.
KILLED = """
import os, signal, sys
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[1])
base = "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline."
from importlib import import_module
pipeline, writer, torch_source = (import_module(base + name) for name in ("checkpoint_pipeline", "checkpoint_writer", "torch_source"))
writer.Pipeline = partial(pipeline.Pipeline, int(sys.argv[4]))
pipeline.CHECKPOINT_BYTES = 2 * int(sys.argv[4])
really, left = os.pwrite, [int(sys.argv[5])]
def write(descriptor, data, offset):
    left[0] -= 1
    if left[0] < 0:
        really(descriptor, data[: 4096], offset)
        os.kill(os.getpid(), signal.SIGKILL)
    return really(descriptor, data, offset)
os.pwrite = write
source = torch_source.TorchBinSource(Path(sys.argv[2]).parent, [Path(sys.argv[2]).name])
writer.write_shards(Path(sys.argv[3]), writer.plan(source.specs(), 500_000), "key", source)
"""


def killed_after(writes: int, tmp_path: Path, out: Path) -> int:
    arguments = [Path(__file__).parents[2] / "collections", tmp_path / BIN, out]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, arguments), str(CHUNK), str(writes)], check=False, timeout=60
    )
    return done.returncode


@pytest.mark.parametrize("writes", [0, 1, 2, 5, 11, 23, 31, 40, 50])
def test_killed_at_any_point_the_next_run_ends_with_the_same_bytes(
    tmp_path: Path, source: TorchBinSource, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    shards = plan(source.specs(), 500_000)
    expected = target(tmp_path, "expected")
    total: list[int] = []
    really = os.pwrite

    def counting(descriptor: int, data: Any, offset: int) -> int:
        total.append(offset)
        return really(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", counting)
    write_shards(expected, shards, "key", source)
    whole = len(total)
    assert whole > 50
    out = target(tmp_path)
    assert killed_after(writes, tmp_path, out) == -signal.SIGKILL
    total.clear()
    hashes = write_shards(out, shards, "key", source)
    assert contents(out) == contents(expected)
    assert hashes == {path.name: sha256_of_file(path) for path in out.iterdir()}
    # What had been written is not written again, but for what came after the last entry of the journal.
    assert len(total) <= whole - writes + 4


@pytest.mark.parametrize("damage", ["flipped", "shorter", "journal", "another source"])
def test_a_partial_shard_that_is_not_what_the_journal_says(tmp_path: Path, source: TorchBinSource, damage: str) -> None:
    out = target(tmp_path)
    killed_after(11, tmp_path, out)
    journal = json.loads((out / JOURNAL).read_text())
    assert journal["partial"]["offset"] >= CHUNK
    partial_file = out / (journal["partial"]["shard"] + ".partial")
    data = bytearray(partial_file.read_bytes())
    if damage == "flipped":
        data[100] ^= 1
        partial_file.write_bytes(data)
    elif damage == "shorter":
        partial_file.write_bytes(data[:-1])
    elif damage == "journal":
        (out / JOURNAL).write_text(json.dumps({**journal, "partial": {"shard": 7}}))
    else:
        (out / JOURNAL).write_text(json.dumps({**journal, "source_key": "another"}))
    hashes = write_shards(out, plan(source.specs(), 500_000), "key", source)
    assert hashes == {path.name: sha256_of_file(path) for path in out.iterdir()}


def test_a_kept_journal_means_that_nothing_is_written_again(
    tmp_path: Path, source: TorchBinSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = target(tmp_path)
    hashes = write_shards(out, plan(source.specs()), "key", source, keep_journal=True)
    monkeypatch.setattr(os, "pwrite", lambda *_: pytest.fail("written again"))
    assert write_shards(out, plan(source.specs()), "key", source, keep_journal=True) == hashes
    forget(out)
    assert set(contents(out)) == set(hashes)


def test_two_writers(tmp_path: Path, source: TorchBinSource) -> None:
    out = target(tmp_path)
    with checkpoint_writer._alone(out), pytest.raises(CheckpointError, match="Another process is writing"):
        write_shards(out, plan(source.specs()), "key", source)


@pytest.mark.parametrize("which", ["write", "sync"])
def test_a_disk_that_fills_in_the_middle(
    tmp_path: Path, source: TorchBinSource, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    really = os.pwrite
    left = [7]

    def full(descriptor: int, data: Any, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(descriptor, data, offset)

    def failing(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, *(("pwrite", full) if which == "write" else ("fdatasync", failing)))
    out = target(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        write_shards(out, plan(source.specs()), "key", source)
    monkeypatch.undo()
    # No thread is left behind that writes on.
    assert write_shards(out, plan(source.specs()), "key", source)
    assert set(contents(out)) == {"model-00001-of-00001.safetensors"}


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """What the module says when the system refuses: one sentence, and no traceback."""
    directory = hugging_face(tmp_path, arrays())
    out = target(tmp_path)
    job = {"source": str(directory), "target": str(out), "format": "safetensors", "dtype": "float32", "source_key": "k"}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"could not be written to .*out \(File too large\): free disk there"):
            run_worker(
                sys.executable,
                "checkpoint_convert",
                checkpoint_convert.NEEDS,
                json.dumps(job),
                timeout=60,
                unprivileged=False,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def hugging_face(tmp_path: Path, values: dict[str, np.ndarray]) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (directory / "tokenizer.json").write_text("{}")
    torch_support.save(directory / BIN, values)
    return directory


@pytest.mark.parametrize("turned", [False, True])
def test_memory_is_bounded_whatever_the_size_of_a_tensor(tmp_path: Path, turned: bool) -> None:
    rows, columns = 4096, 30_000
    size = rows * columns * 2
    directory = hugging_face(tmp_path, {})
    view = torch_support.View("0", "BF16", rows * columns, (rows, columns), (1, rows) if turned else (columns, 1))
    pickled = torch_support.pickled(torch_support.mapping({"w": torch_support.tensor(view)}))
    torch_support.write(directory / BIN, pickled, {"0": (bytes(columns * 2) for _ in range(rows))})
    out = target(tmp_path)
    job = {"source": str(directory), "target": str(out), "format": "safetensors", "dtype": "float32", "source_key": "k"}
    try:
        done = run_worker(
            sys.executable,
            "checkpoint_convert",
            checkpoint_convert.NEEDS,
            json.dumps(job),
            timeout=120,
            unprivileged=False,
        )
        assert (out / "model-00001-of-00001.safetensors").stat().st_size > size
    finally:
        for path in (*out.iterdir(), directory / BIN):
            path.unlink()
    # The bound is 1.5 times the largest tensor and 512 MB; a tensor in C order is never in memory as a whole.
    assert done.result["peak_bytes"] < (size if turned else 0) + (200 << 20)


# Infinity, NaN and the largest number of each type, as integers.
PATTERNS = {
    "F64": (0x7FF0_0000_0000_0000, 0xFFF0_0000_0000_0001, 0x7FEF_FFFF_FFFF_FFFF),
    "F32": (0x7F80_0000, 0xFFC0_0000, 0xFF7F_FFFF),
    "F16": (0xFC00, 0x7C01, 0x7BFF),
    "BF16": (0x7F80, 0xFFFF, 0xFF7F),
    "F8_E5M2": (0x7C, 0xFF, 0x7B),
    "F8_E4M3": (0x7F, 0xFF, 0x7E),
    "F8_E8M0": (0xFF, 0xFF, 0xFE),
}


def feed(check: FiniteCheck, data: bytes, at_once: int) -> None:
    for begin in range(0, len(data), at_once):
        check.feed(memoryview(data)[begin : begin + at_once])


@pytest.mark.parametrize("place", [0, 511, 512, 1499])
@pytest.mark.parametrize("dtype", PATTERNS)
def test_values_that_are_not_finite_are_seen(dtype: str, place: int) -> None:
    size = rows_of(TensorSpec("x", dtype, ()))[1]
    infinity, nan, largest = PATTERNS[dtype]
    values = np.full(1500, largest, dtype=f"<u{size}")
    assert all_finite(values.tobytes(), dtype)
    for bad in (infinity, nan):
        values[place] = bad
        assert not all_finite(values.tobytes(), dtype)
        # However it is cut.
        for cut in {1, size - 1 or 1, size, 100 * size + 1, place * size + 1}:
            with pytest.raises(CheckpointError, match="tensor x holds values that are not finite"):
                feed(FiniteCheck("x", dtype), values.tobytes(), cut)


def test_whole_numbers_may_be_anything() -> None:
    assert all_finite(b"\xff" * 64, "I32")
    assert all_finite(b"", "F32")


@pytest.mark.parametrize("wrapper", [lambda source: source, Unplaced])
@pytest.mark.parametrize("place", [0, 16_383, 89_999])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_weight_that_is_not_finite(tmp_path: Path, wrapper: Any, place: int, bad: float) -> None:
    values = arrays()
    values["wide"].reshape(-1)[place] = bad
    torch_support.save(tmp_path / BIN, values)
    source = TorchBinSource(tmp_path, [BIN])
    with pytest.raises(CheckpointError, match="tensor wide holds values that are not finite"):
        write_shards(target(tmp_path), plan(source.specs()), "key", wrapper(source))
    source.close()


def test_a_source_that_is_cut_while_it_is_read(tmp_path: Path, source: TorchBinSource) -> None:
    shards = plan(source.specs())
    os.truncate(tmp_path / BIN, 200_000)
    for number, one in enumerate((source, Unplaced(source))):
        with pytest.raises(CheckpointError, match=r"gave \d+ bytes, \d+ were expected .* copy it again"):
            write_shards(target(tmp_path, str(number)), shards, "key", one)


class Short(Transform):
    """Gives a row too few."""

    def read(self, name: str, first_row: int, rows: int) -> Data:
        return self._inner.read(name, first_row, rows - 1)


def test_a_transform_that_gives_too_little(tmp_path: Path, source: TorchBinSource) -> None:
    with pytest.raises(CheckpointError, match="The tensor long gave"):
        write_shards(target(tmp_path), plan(source.specs()), "key", Short(source))
