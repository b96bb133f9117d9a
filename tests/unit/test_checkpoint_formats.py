"""A directory in Hugging Face's layout, whatever holds its weights: made into the same model, or refused with nothing left."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    checkpoint_directory,
    checkpoint_store,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_store import (
    Wish,
    install,
    installed,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.manifest import sha256_of_file
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import (
    TensorSpec,
    header_bytes,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_source import (
    SafetensorsSource,
    SplitSource,
    ordered_pieces,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tensor_source import place_of, rows_of
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import Done, run_worker

from tests.unit import torch_support

VOCABULARY, HIDDEN, LAYERS = 11, 8, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
}


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion really runs in a Python of its own; only the likelihood, which needs transformers, is given."""

    def worker(python: str, module: str, *arguments: Any, **options: Any) -> Done:
        if module == "likelihood_reference":
            return Done({"token_ids": [1, 2], "logprobs": [-1.0], "top": [2], "vocab_size": VOCABULARY}, 0)
        return run_worker(python, module, *arguments, **options)

    monkeypatch.setattr(checkpoint_store, "run_worker", worker)


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)

    def matrix(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype("<f4")

    layers = {f"model.layers.{number}.mlp.up_proj.weight": matrix(3 * HIDDEN, HIDDEN) for number in range(LAYERS)}
    return {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN), **layers, "model.norm.weight": matrix(HIDDEN)}


def safetensors(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    specs = [TensorSpec(name, "F32", array.shape) for name, array in arrays.items()]
    path.write_bytes(header_bytes(specs) + b"".join(array.tobytes() for array in arrays.values()))
    return path


def in_two(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    names = list(arrays)
    return {name: arrays[name] for name in names[:2]}, {name: arrays[name] for name in names[2:]}


def index(directory: Path, name: str, places: dict[str, str]) -> None:
    (directory / name).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def as_safetensors(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    parts = dict(zip(("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), in_two(arrays)))
    for name, part in parts.items():
        safetensors(directory / name, part)
    index(directory, checkpoint_directory.INDEX, {tensor: name for name, part in parts.items() for tensor in part})


def as_torch(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    parts = dict(zip(("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"), in_two(arrays)))
    for name, part in parts.items():
        torch_support.save(directory / name, part)
    index(
        directory, checkpoint_directory.TORCH_INDEX, {tensor: name for name, part in parts.items() for tensor in part}
    )
    # Pickles of something else stay behind.
    (directory / "training_args.bin").write_bytes(b"\x80\x02cposix\nsystem\n.")


def as_one_torch(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    torch_support.save(directory / "pytorch_model.bin", arrays)


def as_pieces(directory: Path, arrays: dict[str, np.ndarray], size: int = 200) -> None:
    data = safetensors(directory / "gptq_model-4bit-128g.safetensors", arrays).read_bytes()
    (directory / "gptq_model-4bit-128g.safetensors").unlink()
    for number, begin in enumerate(range(0, len(data), size)):
        (directory / f"gptq_model-4bit-128g.safetensors{number:02d}").write_bytes(data[begin : begin + size])


LAYOUTS: dict[str, Callable[[Path, dict[str, np.ndarray]], None]] = {
    "safetensors": as_safetensors,
    "torch": as_torch,
    "one torch file": as_one_torch,
    "pieces": as_pieces,
}


def directory_of(tmp_path: Path, layout: str, arrays: dict[str, np.ndarray] | None = None) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "modeling_own.py").write_text("raise SystemExit")
    LAYOUTS[layout](directory, weights() if arrays is None else arrays)
    return directory


def wish_for(tmp_path: Path, source: Path, sha256: str = "") -> Wish:
    return Wish(
        root=tmp_path / "models",
        name="tiny",
        source=source,
        source_sha256=sha256 or checkpoint_directory.digest(source),
        format="safetensors",
        dtype="bfloat16",
        text="Some text.",
        engine_python=sys.executable,
    )


def refusal(tmp_path: Path, source: Path, sha256: str = "") -> str:
    """What is said of a source, after it has been seen that nothing is left behind."""
    wish = wish_for(tmp_path, source, sha256)
    with pytest.raises(CheckpointError) as refused:
        install(wish)
    assert not (wish.root / wish.name).exists()
    message = str(refused.value)
    assert "\n" not in message
    return message


def values_in(directory: Path) -> dict[str, bytes]:
    source = SafetensorsSource(directory, sorted(path.name for path in directory.glob("*.safetensors")))
    found = {spec.name: bytes(source.read(spec.name, 0, rows_of(spec)[0])) for spec in source.specs()}
    source.close()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_the_same_model(tmp_path: Path, layout: str) -> None:
    source = directory_of(tmp_path, layout)
    wish = wish_for(tmp_path, source)
    manifest, _ = install(wish)
    assert installed(wish) is not None
    assert values_in(wish.path) == {name: array.tobytes() for name, array in weights().items()}
    assert {name: entry["shape"] for name, entry in manifest["tensors"].items()} == {
        name: list(array.shape) for name, array in weights().items()
    }
    beside = {"config.json", "tokenizer.json", "reference.json", checkpoint_directory.INDEX}
    assert {name for name in manifest["files"] if not name.endswith(".safetensors")} == beside
    places = json.loads((wish.path / checkpoint_directory.INDEX).read_text())["weight_map"]
    assert places == {name: entry["file"] for name, entry in manifest["tensors"].items()}
    if layout == "safetensors":
        for path in source.glob("*.safetensors"):
            assert manifest["files"][path.name]["sha256"] == sha256_of_file(path)


def test_safetensors_are_taken_where_there_are_pickles_too(tmp_path: Path) -> None:
    source = directory_of(tmp_path, "safetensors")
    before = checkpoint_directory.digest(source)
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n.")
    assert checkpoint_directory.digest(source) == before
    install(wish_for(tmp_path, source))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_digest_sees_every_byte_of_the_weights(tmp_path: Path, layout: str) -> None:
    source = directory_of(tmp_path, layout)
    meant = checkpoint_directory.digest(source)
    shard = source / checkpoint_directory.weights_of(source).names[-1]  # type: ignore[union-attr]
    data = bytearray(shard.read_bytes())
    place = data.index(weights()["model.norm.weight"].tobytes()[-8:])
    data[place] ^= 1
    shard.write_bytes(data)
    assert f"expected the SHA-256 {meant} (model_source_sha256), found " in refusal(tmp_path, source, meant)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_that_are_not_finite(tmp_path: Path, layout: str) -> None:
    arrays = weights()
    arrays["model.layers.1.mlp.up_proj.weight"][5, 3] = np.nan
    message = refusal(tmp_path, directory_of(tmp_path, layout, arrays))
    assert "model.layers.1.mlp.up_proj.weight holds values that are not finite" in message


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cut", [1, 200])
def test_a_truncated_shard(tmp_path: Path, layout: str, cut: int) -> None:
    source = directory_of(tmp_path, layout)
    shard = source / checkpoint_directory.weights_of(source).names[-1]  # type: ignore[union-attr]
    shard.write_bytes(shard.read_bytes()[:-cut])
    message = refusal(tmp_path, source)
    assert "truncated" in message
    assert "copy it again from where it came" in message


@pytest.mark.parametrize("layout", ["safetensors", "torch"])
def test_a_tensor_that_only_the_index_knows(tmp_path: Path, layout: str) -> None:
    source = directory_of(tmp_path, layout)
    name = checkpoint_directory.INDEX if layout == "safetensors" else checkpoint_directory.TORCH_INDEX
    places = json.loads((source / name).read_text())["weight_map"]
    index(source, name, {**places, "model.layers.1.mlp.down_proj.weight": next(iter(places.values()))})
    message = refusal(tmp_path, source)
    assert "says that model.layers.1.mlp.down_proj.weight lies in" in message
    assert "where it is not: the checkpoint is incomplete" in message


@pytest.mark.parametrize("layout", ["safetensors", "torch"])
def test_a_shard_that_is_missing(tmp_path: Path, layout: str) -> None:
    source = directory_of(tmp_path, layout)
    (source / checkpoint_directory.weights_of(source).names[1]).unlink()  # type: ignore[union-attr]
    assert "the checkpoint is incomplete" in refusal(tmp_path, source)


@pytest.mark.parametrize("layout", ["safetensors", "torch"])
@pytest.mark.parametrize("where", ["../secret", "/etc/passwd", "sub/../../secret", "..", ""])
def test_an_index_that_names_a_file_outside(tmp_path: Path, layout: str, where: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    source = directory_of(tmp_path, layout)
    name = checkpoint_directory.INDEX if layout == "safetensors" else checkpoint_directory.TORCH_INDEX
    places = json.loads((source / name).read_text())["weight_map"]
    index(source, name, {**places, "model.norm.weight": where})
    assert f"names the file {where!r}, which does not lie in its directory" in refusal(tmp_path, source)


@pytest.mark.parametrize("layout", ["safetensors", "torch"])
def test_a_shard_that_is_a_link_out_of_the_directory(tmp_path: Path, layout: str) -> None:
    source = directory_of(tmp_path, layout)
    shard = source / checkpoint_directory.weights_of(source).names[1]  # type: ignore[union-attr]
    outside = tmp_path / shard.name
    shard.rename(outside)
    shard.symlink_to(outside)
    assert "does not lie in its directory" in refusal(tmp_path, source)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        (
            "model.embed_tokens.weight",
            (VOCABULARY + 1, HIDDEN),
            "has the shape [12, 8], [11, 8] was expected from config.json",
        ),
        ("model.embed_tokens.weight", (VOCABULARY * HIDDEN,), "has the shape [88], [11, 8] was expected"),
        ("model.norm.weight", (HIDDEN + 1,), "has the shape [9], [8] was expected"),
        ("lm_head.weight", (VOCABULARY, HIDDEN - 1), "has the shape [11, 7], [11, 8] was expected"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shape_that_contradicts_the_configuration(
    tmp_path: Path, layout: str, name: str, shape: tuple[int, ...], sentence: str
) -> None:
    arrays = {**weights(), name: np.ones(shape, "<f4")}
    message = refusal(tmp_path, directory_of(tmp_path, layout, arrays))
    assert f"the tensor {name} {sentence}" in message


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_hidden_layers": 3}, "says 3 layers, the tensors of layer 2 are missing"),
        ({"hidden_size": "8"}, "says hidden_size is '8', a positive whole number was expected"),
        ({"vocab_size": 0}, "says vocab_size is 0"),
    ],
)
def test_a_configuration_of_another_model(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    source = directory_of(tmp_path, "torch")
    (source / "config.json").write_text(json.dumps({**CONFIG, **change}))
    assert sentence in refusal(tmp_path, source)


def test_a_pickle_that_would_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return subprocess.call, (["touch", str(tmp_path / "mark")],)

    source = directory_of(tmp_path, "one torch file")
    pickled = pickle.dumps({"model.norm.weight": Evil()}, protocol=4)
    torch_support.write(source / "pytorch_model.bin", pickled, {})
    message = refusal(tmp_path, source)
    assert "pytorch_model.bin holds a pickle that would run subprocess.call" in message
    assert not (tmp_path / "mark").exists()


def test_pieces_are_read_as_one(tmp_path: Path) -> None:
    # More than ten, so that their order is that of their numbers; each shorter than a tensor, some within the header.
    source = directory_of(tmp_path, "pieces")
    names = checkpoint_directory.weights_of(source).names  # type: ignore[union-attr]
    assert len(names) > 10
    split = SplitSource(source, names)
    for name, array in weights().items():
        assert bytes(split.read(name, 0, array.shape[0])) == array.tobytes()
        assert bytes(split.read(name, 2, 3)) == array[2:5].tobytes()
    assert place_of(split, "model.layers.0.mlp.up_proj.weight") is None
    split.close()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["m.safetensors00", "m.safetensors02"], r"Piece 1 of m\.safetensors is missing, m\.safetensors02 is there"),
        (["m.safetensors02", "m.safetensors03"], r"first piece is m\.safetensors02"),
        (["m.safetensors1", "m.safetensors01"], r"m\.safetensors1 and m\.safetensors01 are both piece 1"),
        (["m.safetensors00", "n.safetensors01"], r"pieces of 2 files \(m\.safetensors, n\.safetensors\)"),
        (["m.safetensors"], "is no piece of a split file"),
    ],
)
def test_pieces_that_do_not_make_a_whole(names: list[str], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        ordered_pieces(names)


def test_pieces_are_ordered_by_their_numbers() -> None:
    names = [f"m.safetensors{number}" for number in (10, 2, 1, 9, 3, 8, 4, 7, 5, 6)]
    assert ordered_pieces(names) == [f"m.safetensors{number}" for number in range(1, 11)]


def test_a_piece_that_is_missing(tmp_path: Path) -> None:
    source = directory_of(tmp_path, "pieces")
    (source / "gptq_model-4bit-128g.safetensors03").unlink()
    assert "Piece 3 of gptq_model-4bit-128g.safetensors is missing" in refusal(tmp_path, source)


@pytest.mark.parametrize("damage", ["another hash", "a file more", "a file less"])
def test_a_manifest_that_does_not_match(tmp_path: Path, damage: str) -> None:
    wish = wish_for(tmp_path, directory_of(tmp_path, "torch"))
    install(wish)
    path = wish.path / "manifest.json"
    manifest = json.loads(path.read_text())
    if damage == "another hash":
        manifest["files"]["config.json"]["sha256"] = "0" * 64
    elif damage == "a file more":
        manifest["files"]["more.json"] = {"bytes": 3, "sha256": "0" * 64}
    else:
        del manifest["files"]["config.json"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"The model on the node is not what was put there: .*: expected "):
        installed(wish)


def test_what_another_process_is_making_is_left_alone(tmp_path: Path) -> None:
    """The worker of a run that was killed lives on for a moment."""
    wish = wish_for(tmp_path, directory_of(tmp_path, "torch"))
    wish.partial.mkdir(parents=True)
    (wish.partial / "half").write_bytes(b"half")
    holder = subprocess.Popen(
        ["flock", str(wish.partial), "sh", "-c", "echo held; exec sleep 60"], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match="Another process is writing a checkpoint"):
            install(wish)
        assert (wish.partial / "half").exists()
    finally:
        holder.kill()
        holder.wait()


def test_a_run_that_was_killed_after_the_conversion_converts_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = wish_for(tmp_path, directory_of(tmp_path, "torch"))

    def killed(_wish: Wish) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_store, "_reference", killed)
        with pytest.raises(KeyboardInterrupt):
            install(wish)
    shard = next(wish.partial.glob("*.safetensors"))
    before = shard.stat().st_mtime_ns, shard.stat().st_ino
    install(wish)
    after = wish.path / shard.name
    assert (after.stat().st_mtime_ns, after.stat().st_ino) == before
    assert not (wish.path / "journal.json").exists()
