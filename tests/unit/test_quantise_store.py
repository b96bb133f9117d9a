"""A quantised model on a node: its source stays as it is and is the reference; made whole, or not at all."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    checkpoint_directory,
    checkpoint_store,
    quantise_convert,
    quantise_wish,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_store import (
    Wish,
    install,
    installed,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_plan import Plan
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_wish import Quantise, run_awq
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import Done, run_worker

from tests.unit.test_quantise_convert import DAMAGED, HIDDEN, checkpoint

REFERENCE = {"token_ids": [1, 2, 3], "logprobs": [-1.0, -2.0], "top": [2, 3], "vocab_size": 260}
ROUNDED = Quantise("rtn-w4a16", 128)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where the likelihood of the source was asked for; everything else really runs in a Python of its own."""
    sources: list[Path] = []

    def worker(python: str, module: str, needs: tuple[str, ...], job: str, **options: Any) -> Done:
        if module == "likelihood_reference":
            sources.append(Path(json.loads(job)["source"]))
            config = json.loads((sources[-1] / "config.json").read_text())
            assert "quantization_config" not in config
            return Done(REFERENCE, 0)
        return run_worker(python, module, needs, job, **options)

    monkeypatch.setattr(checkpoint_store, "run_worker", worker)
    return sources


def wish_for(tmp_path: Path, source: Path, **changes: Any) -> Wish:
    given = {
        "root": tmp_path / "models",
        "name": "tiny",
        "source": source,
        "source_sha256": checkpoint_directory.digest(source),
        "format": "safetensors",
        "dtype": "bfloat16",
        "text": "Some text.",
        "engine_python": sys.executable,
        "quantise": ROUNDED,
    }
    return Wish(**{**given, **changes})


def left(wish: Wish) -> list[str]:
    parent = wish.path.parent
    return sorted(path.name for path in parent.iterdir()) if parent.exists() else []


def test_a_directory_is_quantised_from_where_it_lies(tmp_path: Path, asked: list[Path]) -> None:
    source = checkpoint(tmp_path / "source")
    wish = wish_for(tmp_path, source)
    manifest, _ = install(wish)
    assert asked == [source]
    assert manifest["quantised"]["method"] == "rtn-w4a16"
    assert manifest["quantised"]["parameters"] > HIDDEN * HIDDEN
    assert manifest["tensors"][f"{DAMAGED}.weight_packed"]["dtype"] == "I32"
    assert left(wish) == [wish.revision]
    found = installed(wish)
    assert found is not None
    assert found[0] == manifest
    assert checkpoint_directory.digest(source) == wish.source_sha256


def test_pieces_are_written_in_full_precision_first_and_removed(tmp_path: Path, asked: list[Path]) -> None:
    source = checkpoint(tmp_path / "source")
    whole = source / "model.safetensors"
    data = whole.read_bytes()
    whole.unlink()
    (source / "model.safetensors00").write_bytes(data[:100_000])
    (source / "model.safetensors01").write_bytes(data[100_000:])
    wish = wish_for(tmp_path, source)
    manifest, _ = install(wish)
    assert asked == [wish.full]
    assert manifest["quantised"]["weights"] == 2
    assert left(wish) == [wish.revision]


@pytest.mark.parametrize(
    "other",
    [
        None,
        Quantise("rtn-w8a16", 128),
        Quantise("rtn-w4a16", 64),
        Quantise("awq-w4a16", 128, "c.txt", "0" * 64),
        Quantise("awq-w4a16", 128, "c.txt", "1" * 64),
        Quantise("awq-w4a16", 128, "c.txt", "0" * 64, samples=8),
    ],
)
def test_each_way_to_quantise_is_a_revision_of_its_own(tmp_path: Path, other: Quantise | None) -> None:
    wish = wish_for(tmp_path, checkpoint(tmp_path / "source"))
    same = replace(wish, quantise=Quantise("rtn-w4a16", 128, python="/elsewhere/python"))
    assert same.revision == wish.revision
    assert replace(wish, quantise=other).revision != wish.revision


def test_a_wrong_sha256_leaves_nothing(tmp_path: Path, asked: list[Path]) -> None:
    wish = wish_for(tmp_path, checkpoint(tmp_path / "source"), source_sha256="0" * 64)
    with pytest.raises(CheckpointError, match="model_source_sha256"):
        install(wish)
    assert left(wish) == []
    assert asked == []


def test_too_little_memory_counts_the_sources_parameters(
    tmp_path: Path, asked: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "available_memory", lambda: 1 << 20)
    wish = wish_for(tmp_path, checkpoint(tmp_path / "source"))
    with pytest.raises(CheckpointError, match=r"needs 1\.1 GB of memory"):
        install(wish)
    assert left(wish) == []
    assert asked == []


def test_the_engine_itself_computes_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a source that is too large for float32: no memory is asked for, and the engine loads it in full precision."""
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def worker(python: str, module: str, needs: tuple[str, ...], job: str, **options: Any) -> Done:
        if module == "likelihood_served":
            seen.append((json.loads(job), options))
            assert "quantization_config" not in (Path(seen[-1][0]["model"]) / "config.json").read_text()
            return Done({**REFERENCE, "cache_tokens": 4096}, 0)
        return run_worker(python, module, needs, job, **options)

    monkeypatch.setattr(checkpoint_store, "run_worker", worker)
    monkeypatch.setattr(checkpoint_store, "available_memory", lambda: 1 << 20)
    source = checkpoint(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100}))
    asked = Quantise("rtn-w4a16", 128, reference="engine", environment={"NAME": "value"})
    wish = wish_for(tmp_path, source, quantise=asked)
    install(wish)
    assert seen[0][0] == {
        "model": str(source),
        "text": "Some text.",
        "options": {"dtype": "bfloat16"},
        "max_model_len": 100,
    }
    assert seen[0][1]["environment"]["NAME"] == "value"
    kept = json.loads((wish.path / "reference.json").read_text())
    assert (kept["computed_in"], kept["cache_tokens"]) == ("the engine, bfloat16", 4096)
    assert wish.revision != replace(wish, quantise=ROUNDED).revision


# --- AWQ ---


def awq(tmp_path: Path, text: str = "Some text to calibrate on.") -> Quantise:
    file = tmp_path / "calibration.txt"
    file.write_text(text)
    return Quantise(
        "awq-w4a16",
        128,
        str(file),
        hashlib.sha256(text.encode()).hexdigest(),
        samples=4,
        length=8,
        python=sys.executable,
    )


def leaving(method: str) -> Callable[[Quantise, Path, Path, Plan], None]:
    """A quantiser that leaves weights of some format."""

    def run(_wish: Quantise, source: Path, target: Path, _made: Plan) -> None:
        target.mkdir()
        common = {"format": "safetensors", "dtype": "bfloat16", "source_key": "k", "group": 128}
        quantise_convert.convert({"source": str(source), "target": str(target), "method": method, **common})

    return run


def test_the_quantisers_weights_are_put_in_place(
    tmp_path: Path, asked: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "run_awq", leaving("rtn-w4a16"))
    source = checkpoint(tmp_path / "source")
    wish = wish_for(tmp_path, source, quantise=awq(tmp_path))
    manifest, _ = install(wish)
    assert asked == [source]
    assert manifest["quantised"]["rounding_error"] is None
    assert left(wish) == [wish.revision]


def test_a_quantiser_that_leaves_something_else_leaves_nothing(
    tmp_path: Path, asked: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "run_awq", leaving("rtn-w8a16"))
    wish = wish_for(tmp_path, checkpoint(tmp_path / "source"), quantise=awq(tmp_path))
    with pytest.raises(CheckpointError, match="other than they were asked for"):
        install(wish)
    assert left(wish) == []
    assert asked == []


def test_the_quantiser_is_told_what_to_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def worker(_python: str, module: str, _needs: tuple[str, ...], job: str, **_options: Any) -> Done:
        seen.append({"module": module, **json.loads(job)})
        return Done({}, 0)

    monkeypatch.setattr(quantise_wish, "run_worker", worker)
    made = Plan(quantise_convert.scheme("awq-w4a16", 128), (), {"model.layers.0.mlp.gate": "a router"})
    run_awq(awq(tmp_path), tmp_path, tmp_path / "out", made)
    assert seen[0]["module"] == "quantise_awq"
    assert seen[0]["text"] == "Some text to calibrate on."
    assert seen[0]["ignore"] == ["lm_head", "model.layers.0.mlp.gate"]


def test_a_calibration_file_that_changed_is_refused(tmp_path: Path) -> None:
    wish = awq(tmp_path)
    Path(wish.calibration_file).write_text("Something else.")
    with pytest.raises(CheckpointError, match="changed meanwhile"):
        run_awq(wish, tmp_path, tmp_path / "out", Plan(quantise_convert.scheme(wish.method, 128), (), {}))


def test_awq_without_text_says_how_much_is_needed() -> None:
    with pytest.raises(
        CheckpointError, match=r"model_quantise_calibration_file .* 64 pieces of 512 tokens \(about 131 kB\)"
    ):
        Quantise("awq-w4a16", 128)


def test_a_grid_that_tries_nothing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="model_quantise_awq_grid is 3"):
        Quantise("awq-w4a16", 128, "c.txt", "0" * 64, grid=3)
