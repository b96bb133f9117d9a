"""A model on a node: made aside and put in place whole, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    checkpoint_directory,
    checkpoint_store,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_store import (
    Wish,
    available_memory,
    install,
    installed,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.manifest import sha256_of_file
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import Done, run_worker

from tests.unit import gguf_support

REFERENCE = {"token_ids": [1, 2, 3], "logprobs": [-1.0, -2.0], "top": [2, 3], "vocab_size": 260}


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion really runs in a Python of its own; only the reference, which needs transformers, is given."""

    def worker(python: str, module: str, *arguments: Any, **options: Any) -> Done:
        if module == "likelihood_reference":
            assert Path(json.loads(arguments[1])["source"]).exists()
            return Done(REFERENCE, 0)
        return run_worker(python, module, *arguments, **options)

    monkeypatch.setattr(checkpoint_store, "run_worker", worker)


def wish_for(tmp_path: Path, source: Path | None = None, **changes: Any) -> Wish:
    source = source or gguf_support.write(tmp_path / "m.gguf")
    given = {
        "root": tmp_path / "models",
        "name": "tiny",
        "source": source,
        "source_sha256": sha256_of_file(source) if source.is_file() else "0" * 64,
        "format": "gguf",
        "dtype": "float32",
        "text": "Some text.",
        "engine_python": sys.executable,
    }
    return Wish(**{**given, **changes})


def nothing_stays(wish: Wish) -> bool:
    return not (wish.root / wish.name).exists()


def test_a_model_is_made_once(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    assert installed(wish) is None
    made = install(wish)
    manifest, digest = made
    assert installed(wish) == made
    assert digest == hashlib.sha256((wish.path / "manifest.json").read_bytes()).hexdigest()
    assert set(manifest["files"]) == {path.name for path in wish.path.iterdir()} - {"manifest.json"}
    assert manifest["tensors"]["model.norm.weight"] == {
        "file": "model-00001-of-00001.safetensors",
        "dtype": "F32",
        "shape": [gguf_support.HIDDEN],
    }
    assert json.loads((wish.path / "reference.json").read_text()) == REFERENCE
    assert not wish.partial.exists()


def test_the_servers_user_can_read_and_not_write(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    previous = os.umask(0o077)
    try:
        install(wish)
    finally:
        os.umask(previous)
    assert wish.path.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in wish.path.iterdir()} == {0o644}


def test_what_makes_another_revision(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    others = [replace(wish, dtype="bfloat16"), replace(wish, text="Another."), replace(wish, source_sha256="1" * 64)]
    assert len({other.revision for other in [wish, *others]}) == 4
    assert replace(wish, name="other", engine_python="/x").revision == wish.revision


def test_one_flipped_byte_is_refused_and_not_repaired(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    install(wish)
    shard = wish.path / "model-00001-of-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-7] ^= 0x40
    shard.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"model-00001-of-00001\.safetensors: expected the SHA-256 .* found .* remove"
    ):
        installed(wish)
    assert shard.read_bytes() == data


def test_a_wrong_sha256(tmp_path: Path) -> None:
    wish = wish_for(tmp_path, source_sha256="ab" * 32)
    with pytest.raises(
        CheckpointError, match=f"expected the SHA-256 {'ab' * 32} .* found {sha256_of_file(wish.source)}"
    ):
        install(wish)
    assert nothing_stays(wish)


def test_a_truncated_source(tmp_path: Path) -> None:
    source = gguf_support.write(tmp_path / "m.gguf")
    source.write_bytes(source.read_bytes()[:-5000])
    wish = wish_for(tmp_path, source)
    with pytest.raises(CheckpointError, match="truncated"):
        install(wish)
    assert nothing_stays(wish)


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    wish = replace(wish_for(tmp_path), source=tmp_path / "missing.gguf")
    with pytest.raises(CheckpointError, match="expected a file for the format gguf, found none"):
        install(wish)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "../x"}, "model_name"),
        ({"name": ""}, "model_name"),
        ({"source_sha256": "abc"}, "64 hex digits"),
        ({"text": " \n"}, "known text"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, change: dict[str, str], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        wish_for(tmp_path, **change)


def test_too_little_memory_for_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_store, "available_memory", lambda: 1 << 20)
    wish = wish_for(tmp_path)
    with pytest.raises(CheckpointError, match="GB of memory"):
        install(wish)
    assert nothing_stays(wish)


def test_available_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 5 kB\nMemAvailable:     3 kB\n")
    assert available_memory(meminfo) == 3072
    meminfo.write_text("MemTotal: 5 kB\n")
    assert available_memory(meminfo) is None


def test_a_failing_engine_leaves_nothing(tmp_path: Path) -> None:
    wish = wish_for(tmp_path, engine_python="/nonexistent/python")
    with pytest.raises(CheckpointError, match="could not be made"):
        install(wish)
    assert nothing_stays(wish)


def test_killed_in_the_middle_it_is_made_by_the_next_run(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    wish.partial.mkdir(parents=True)
    (wish.partial / "model-00001-of-00001.safetensors.partial").write_bytes(b"half")
    (wish.partial / "journal.json").write_text('{"source_key": "' + wish.revision + '", "sha')
    assert installed(wish) is None
    manifest, _ = install(wish)
    assert not any("partial" in name or "journal" in name for name in manifest["files"])


def test_two_runs_at_once(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    wish.root.mkdir(parents=True)
    with checkpoint_store._alone(wish), pytest.raises(CheckpointError, match="Another run"):
        install(wish)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_before_the_first_byte(tmp_path: Path, small_disk: Path) -> None:
    wish = wish_for(tmp_path, root=small_disk / "models")
    with pytest.raises(CheckpointError, match=r"needs 0\.07 GB at .* 0\.00 GB are free"):
        install(wish)
    assert nothing_stays(wish)


def test_a_disk_that_fills_in_the_middle(tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_store, "_MARGIN_BYTES", 0)
    (small_disk / "filler").write_bytes(bytes(1 << 19))
    monkeypatch.setattr(checkpoint_store, "free_bytes", lambda _path: 1 << 40)
    arrays = gguf_support.tensors()
    wide = {**gguf_support.metadata(), "llama.feed_forward_length": 4096}
    for layer in range(gguf_support.LAYERS):
        for name, shape in (("ffn_gate", (4096, 32)), ("ffn_up", (4096, 32)), ("ffn_down", (32, 4096))):
            arrays[f"blk.{layer}.{name}.weight"] = arrays["output_norm.weight"].repeat(4096).reshape(shape)
    wish = wish_for(tmp_path, gguf_support.write(tmp_path / "wide.gguf", wide, arrays), root=small_disk / "models")
    with pytest.raises(CheckpointError, match=r"could not be written to .*No space left on device"):
        install(wish)
    assert nothing_stays(wish)


def test_who_may_read_the_source(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    source.touch(mode=0o644)
    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
    assert checkpoint_store._open_to_all(source)
    source.chmod(0o640)
    assert not checkpoint_store._open_to_all(source)
    source.chmod(0o644)
    tmp_path.chmod(0o700)
    assert not checkpoint_store._open_to_all(source)


def hugging_face(tmp_path: Path) -> Path:
    """A directory as a source, made from the small GGUF file by the conversion itself."""
    wish = wish_for(tmp_path, name="from-gguf")
    install(wish)
    directory = tmp_path / "hf"
    shutil.copytree(wish.path, directory)
    (directory / "modeling_tiny.py").write_text("raise SystemExit")
    return directory


def test_a_directory_is_taken_over(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path)
    wish = wish_for(tmp_path, directory, format="safetensors", source_sha256=checkpoint_directory.digest(directory))
    manifest, _ = install(wish)
    assert "modeling_tiny.py" not in manifest["files"]
    assert manifest["files"]["config.json"]["sha256"] == sha256_of_file(directory / "config.json")
    assert installed(wish) is not None


def test_a_directory_with_another_digest(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path)
    (directory / "config.json").write_text((directory / "config.json").read_text() + " ")
    with pytest.raises(CheckpointError, match="expected the SHA-256"):
        install(wish_for(tmp_path, directory, format="safetensors"))


def test_a_directory_that_changed_leaves_nothing(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path)
    wish = wish_for(tmp_path, directory, format="safetensors", source_sha256=checkpoint_directory.digest(directory))
    shard = next(directory.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"expected the SHA-256 .* found"):
        install(wish)
    assert nothing_stays(wish)
