"""Files of torch.save: what is right comes through exactly, and no pickle is ever run."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import torch_pickle, torch_source
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import TensorSpec
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tensor_source import place_of, rows_of
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.torch_source import (
    TorchBinSource,
    TorchFile,
    tensors_in,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit import torch_support as support

NAME = "pytorch_model.bin"


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "f64": random.standard_normal((3, 4)),
        "f32": random.standard_normal((7, 5, 3)).astype("<f4"),
        "f16": random.standard_normal((6, 2)).astype("<f2"),
        "bf16": random.integers(0, 0x4000, (5, 8)).astype("<u2"),
        "i64": np.arange(9),
        "i32": np.arange(6, dtype="<i4").reshape(2, 3),
        "i16": np.arange(4, dtype="<i2"),
        "i8": np.arange(3, dtype="i1"),
        "u8": np.arange(3, dtype="u1"),
        "bool": np.array([True, False, True]),
        "scalar": np.array(2.5, dtype="<f4"),
        "empty": np.zeros((0, 4), dtype="<f4"),
    }


def whole(source: TorchBinSource, name: str) -> bytes:
    spec = next(spec for spec in source.specs() if spec.name == name)
    return bytes(source.read(name, 0, rows_of(spec)[0]))


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        TorchBinSource(path.parent, [path.name])
    message = str(refused.value)
    assert "\n" not in message
    assert message.endswith((".", ".bin"))
    return message


def test_every_type_comes_through(tmp_path: Path) -> None:
    support.save(tmp_path / NAME, arrays())
    source = TorchBinSource(tmp_path, [NAME])
    assert {spec.name: spec.shape for spec in source.specs()} == {name: array.shape for name, array in arrays().items()}
    assert {spec.name: spec.dtype for spec in source.specs()} == {
        **{name: name.upper() for name in arrays()},
        "scalar": "F32",
        "empty": "F32",
    }
    for name, array in arrays().items():
        assert whole(source, name) == array.tobytes()
    assert bytes(source.read("f32", 2, 3)) == arrays()["f32"][2:5].tobytes()
    assert bytes(source.read("i64", 4, 2)) == arrays()["i64"][4:6].tobytes()
    source.close()


@pytest.mark.parametrize("gather_bytes", [1, 64, 16 << 20])
def test_views_come_out_in_c_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gather_bytes: int) -> None:
    monkeypatch.setattr(torch_source, "_GATHER_BYTES", gather_bytes)
    base = np.random.default_rng(1).standard_normal((6, 5, 4)).astype("<f4")
    common = {"key": "0", "dtype": "F32", "elements": base.size}
    views = {
        "base": support.View(shape=(6, 5, 4), stride=(20, 4, 1), **common),
        "tied": support.View(shape=(6, 5, 4), stride=(20, 4, 1), **common),
        "turned": support.View(shape=(4, 6, 5), stride=(1, 20, 4), **common),
        "slice": support.View(shape=(2, 3, 2), stride=(20, 4, 1), offset=2 * 20 + 1 * 4 + 1, **common),
        "tail": support.View(shape=(2, 5, 4), stride=(20, 4, 1), offset=80, **common),
        "repeated": support.View(shape=(3, 4), stride=(0, 1), **common),
        "one": support.View(shape=(1, 5), stride=(999, 4), **common),
    }
    expected = {
        "base": base,
        "tied": base,
        "turned": base.transpose(2, 0, 1),
        "slice": base[2:4, 1:4, 1:3],
        "tail": base[4:],
        "repeated": np.broadcast_to(base[0, 0], (3, 4)),
        "one": base[0, :, 0].reshape(1, 5),
    }
    pickled = support.pickled(support.mapping({name: support.tensor(view) for name, view in views.items()}))
    support.write(tmp_path / NAME, pickled, {"0": [base.tobytes()]})
    source = TorchBinSource(tmp_path, [NAME])
    assert {name for name in views if place_of(source, name)} == {"base", "tied", "tail"}
    for name, array in expected.items():
        assert whole(source, name) == np.ascontiguousarray(array).tobytes(), name
    assert bytes(source.read("turned", 1, 2)) == np.ascontiguousarray(expected["turned"][1:3]).tobytes()


def test_two_files_in_the_order_in_which_their_tensors_lie(tmp_path: Path) -> None:
    support.save(tmp_path / "a.bin", {"z": np.ones(3, "<f4"), "b": np.ones(3, "<f4")})
    support.save(tmp_path / "b.bin", {"a": np.ones(3, "<f4")})
    source = TorchBinSource(tmp_path, ["a.bin", "b.bin"])
    assert [spec.name for spec in source.specs()] == ["z", "b", "a"]
    assert source.file_of("a") == "b.bin"
    with pytest.raises(CheckpointError, match=r"b lies in a\.bin and in a\.bin|lies in a\.bin and in"):
        TorchBinSource(tmp_path, ["a.bin", "a.bin"])


class Runs:
    """Pickles to a call of `function(*arguments)`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (os.system, ("touch MARK",), "posix.system"),
        (eval, ("open('MARK', 'w')",), "builtins.eval"),
        (exec, ("open('MARK', 'w')",), "builtins.exec"),
        (subprocess.Popen, (["touch", "MARK"],), "subprocess.Popen"),
        (__import__, ("os",), "builtins.__import__"),
        (getattr, ("os", "system"), "builtins.getattr"),
    ],
)
def test_a_pickle_that_would_run_something(
    tmp_path: Path, function: Callable[..., Any], arguments: tuple[Any, ...], named: str, protocol: int
) -> None:
    mark = tmp_path / "mark"
    given = [argument.replace("MARK", str(mark)) if isinstance(argument, str) else argument for argument in arguments]
    if isinstance(given[0], list):
        given[0] = ["touch", str(mark)]
    support.write(tmp_path / NAME, pickle.dumps({"weight": Runs(function, *given)}, protocol=protocol), {})
    message = refusal(tmp_path / NAME)
    # The oldest protocols are not what torch writes; up to the second, modules are named as in Python 2.
    assert "would run" in message or (protocol < 2 and "does not write" in message)
    if protocol >= 2:
        assert named in message.replace("__builtin__", "builtins").replace("commands.", "subprocess.")
    assert not mark.exists()


def test_a_hostile_pickle_runs_in_pythons_own_reader(tmp_path: Path) -> None:
    """That the pickles above are no empty threat."""
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Runs(os.system, f"touch {mark}")))
    assert mark.exists()


REBUILD = support.name("torch._utils", "_rebuild_tensor_v2")
STORAGE = (
    b"(" + support.text("storage") + support.name("torch", "FloatStorage") + support.text("0") + support.text("cpu")
)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (REBUILD + b")R", "does not write"),
        (REBUILD + support.text("x") + b"\x85R", "does not write"),
        (REBUILD + b"(" + support.text("x") + support.number(0) + b"))tR", "no storage"),
        (REBUILD + b"}b", "sets the state"),
        (support.name("torch", "FloatStorage") + b")R", "calls torch.FloatStorage"),
        (support.name("torch", "load") + support.text("x") + b"\x85R", "would run torch.load"),
        (
            support.name("torch._utils", "_rebuild_device_tensor_from_numpy") + b")R",
            "would run torch._utils._rebuild_device",
        ),
        (support.name("torch.storage", "_load_from_bytes") + b")R", "would run torch.storage._load_from_bytes"),
        (support.name("torch", "storage.UntypedStorage"), "tensors by name"),
        (support.text("x") + support.text("y") + b"R", "calls what is no function"),
        (STORAGE + support.number(1) + b"t" + b"Q", "beside tensors"),
        (STORAGE + support.text("1") + b"tQ", "not described as torch does"),
        (b"(" + support.text("storage") + support.text("x") * 4 + b"tQ", "not described as torch does"),
        (support.text("x") + b"Q", "no storage"),
        (support.text("x") + b"b", "does not write"),
        (b"R", "takes more than it has"),
        (b"h\x07", "does not write"),
        (b"((", "ends in the middle"),
        (b"", "ends in the middle"),
        (b"}(" + b")" * 2 + b"u", "neither text nor a number"),
        (b"}(" + support.text("x") + b"u", "a key has no value"),
        (b"]" + support.text("x") + support.text("y") + b"s", "of what is no dict"),
        (b"}" + support.text("x") + b"a", "of what is no list|appends"),
        (b"\x82\x01", "uses EXT1"),
        (b"I1\n", "uses INT"),
        (b"Vx\n", "uses UNICODE"),
        (b"(ios\nsystem\n", "uses INST"),
        (b"X\xff\xff\xff\x7f", "does not write"),
        (b"\x8b\xff\xff\xff\x7f", "does not write"),
    ],
)
def test_pickles_that_torch_does_not_write(tmp_path: Path, body: bytes, sentence: str) -> None:
    support.write(tmp_path / NAME, support.pickled(body), {"0": [bytes(4)]})
    with pytest.raises(CheckpointError, match=sentence):
        TorchBinSource(tmp_path, [NAME])


def test_a_pickle_without_an_end(tmp_path: Path) -> None:
    support.write(tmp_path / NAME, b"\x80\x02}", {})
    assert "does not write" in refusal(tmp_path / NAME) or "without an end" in refusal(tmp_path / NAME)


def test_what_nests_without_end_costs_nothing() -> None:
    # Each tuple holds the one before twice: 2^200 leaves for anybody who walks them.
    body = b")" + b"2\x86" * 200
    loaded = torch_pickle.load(support.pickled(body), "x")
    assert isinstance(loaded, tuple)
    with pytest.raises(CheckpointError, match="neither text nor a number"):
        torch_pickle.load(support.pickled(b"}(" + body + body + b"u"), "x")


def test_dicts_within_dicts_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_source, "_MOST_ENTRIES", 1000)
    # A dict that holds itself twice.
    body = b"}q\x00(" + support.text("a") + b"h\x00" + support.text("b") + b"h\x00u"
    support.write(tmp_path / "m.pt", support.pickled(body), {})
    with pytest.raises(CheckpointError, match="without end"):
        list(tensors_in(TorchFile(tmp_path / "m.pt").content))


def view(**changes: Any) -> support.View:
    given = {"key": "0", "dtype": "F32", "elements": 6, "shape": (2, 3), "stride": (3, 1), "offset": 0}
    return support.View(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"elements": 1 << 40}, "should have 4398046511104 bytes, its record has 24"),
        ({"elements": 5}, "should have 20 bytes, its record has 24"),
        ({"dtype": "F64"}, "should have 48 bytes, its record has 24"),
        ({"shape": (3, 3)}, "ends at byte 36 of its storage, which has 24"),
        ({"offset": 1}, "ends at byte 28 of its storage"),
        ({"stride": (300, 1)}, "ends at byte"),
        ({"shape": (2, 3, 1)}, "do not fit together"),
        ({"shape": (2, -3)}, "do not fit together"),
        ({"stride": (-3, 1)}, "do not fit together"),
        ({"offset": -1}, "do not fit together"),
        ({"shape": (1 << 40, 3), "stride": (0, 1)}, "repeats or scatters"),
        ({"key": "7"}, "record '7', which is not there"),
        ({"key": "../../etc/passwd"}, "which is not there"),
    ],
)
def test_tensors_that_do_not_fit_their_storage(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    pickled = support.pickled(support.mapping({"weight": support.tensor(view(**changes))}))
    support.write(tmp_path / NAME, pickled, {"0": [bytes(24)]})
    with pytest.raises(CheckpointError, match=sentence):
        TorchBinSource(tmp_path, [NAME])


def test_a_scattered_view_does_not_ask_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_source, "_SMALL_BYTES", 0)
    shape, stride = (2, 2), (500, 499)
    pickled = support.pickled(support.mapping({"w": support.tensor(view(elements=1000, shape=shape, stride=stride))}))
    support.write(tmp_path / NAME, pickled, {"0": [bytes(4000)]})
    source = TorchBinSource(tmp_path, [NAME])
    with pytest.raises(CheckpointError, match="repeats or scatters"):
        source.read("w", 0, 2)


def test_records_that_are_compressed(tmp_path: Path) -> None:
    views, storages = support.views_of({"w": np.zeros(1 << 20, "<f4")})
    pickled = support.pickled(support.mapping({"w": support.tensor(views["w"])}))
    support.write(tmp_path / NAME, pickled, storages, compression=zipfile.ZIP_DEFLATED)
    assert (tmp_path / NAME).stat().st_size < 100_000
    assert "is compressed" in refusal(tmp_path / NAME)


def test_a_directory_of_the_archive_that_lies(tmp_path: Path) -> None:
    path = support.save(tmp_path / NAME, {"w": np.zeros(64, "<f4")})
    data = bytearray(path.read_bytes())
    # The size that the central directory states for the storage: compressed and not.
    place = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1) + 1)
    data[place + 20 : place + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    path.write_bytes(data)
    assert "does not lie in the file" in refusal(path)


@pytest.mark.parametrize("keep", [0, 10, 200, -10, -200])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    path = support.save(tmp_path / NAME, arrays())
    path.write_bytes(path.read_bytes()[:keep])
    assert "truncated or something else" in refusal(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (pickle.dumps({"a": 1}, protocol=2), "before PyTorch 1.6"),
        (b"GGUF" + bytes(100), "truncated or something else"),
    ],
)
def test_something_else(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert sentence in refusal(tmp_path / NAME)


def test_an_archive_without_a_pickle(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    assert "holds 0 records data.pkl" in refusal(tmp_path / NAME)


def test_two_pickles(tmp_path: Path) -> None:
    path = support.save(tmp_path / NAME, {"w": np.zeros(2, "<f4")})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", b"")
    assert "holds 2 records data.pkl" in refusal(path)


def test_a_large_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_source, "_LARGEST_PICKLE", 10)
    assert "tensors lie beside it" in refusal(support.save(tmp_path / NAME, {"w": np.zeros(2, "<f4")}))


def test_endless_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pickle, "_MOST_OPCODES", 10)
    with pytest.raises(CheckpointError, match="too many instructions"):
        torch_pickle.load(support.pickled(b")" * 20), "x")


def test_another_byte_order(tmp_path: Path) -> None:
    views, storages = support.views_of({"w": np.zeros(2, "<f4")})
    pickled = support.pickled(support.mapping({"w": support.tensor(views["w"])}))
    support.write(tmp_path / NAME, pickled, storages, byte_order=b"big")
    assert "byte order 'big'" in refusal(tmp_path / NAME)
    # Files of older releases do not say.
    support.write(tmp_path / NAME, pickled, storages, byte_order=None)
    assert TorchBinSource(tmp_path, [NAME]).specs() == [TensorSpec("w", "F32", (2,))]


def test_a_training_checkpoint_is_no_model(tmp_path: Path) -> None:
    support.write(tmp_path / NAME, support.pickled(support.mapping({"iteration": support.number(7)})), {})
    assert "beside tensors by name" in refusal(tmp_path / NAME)


def test_training_arguments_are_inert(tmp_path: Path) -> None:
    """Megatron's: nested dicts of tensors beside a Namespace and the states of random generators."""
    views, storages = support.views_of({"w": np.arange(6, dtype="<f4").reshape(2, 3)})
    weights = support.mapping({"language_model": support.mapping({"embedding": support.tensor(views["w"])})})
    arguments = (
        support.name("argparse", "Namespace") + b")\x81" + support.mapping({"layers": support.number(24)}) + b"b"
    )
    state = support.name("numpy.core.multiarray", "_reconstruct") + support.name("numpy", "ndarray") + b"\x85R"
    body = support.mapping({"model": weights, "args": arguments, "rng_state": state})
    support.write(tmp_path / "model_optim_rng.pt", support.pickled(body), storages)
    file = TorchFile(tmp_path / "model_optim_rng.pt")
    assert file.content["args"].values == {"layers": 24}
    assert not isinstance(file.content["args"], Namespace)
    ((name, tensor),) = tensors_in(file.content)
    assert name == "model.language_model.embedding"
    assert bytes(file.read(tensor, name, 1, 1)) == np.arange(3, 6, dtype="<f4").tobytes()
    file.close()


def test_pickles_of_python_itself_are_understood() -> None:
    value = {"a": [1, 2.5, None, True, 10**20, b"x"], "b": ("t", ()), "c": OrderedDict(x=1), "d": {1, 2}}
    for protocol in (2, 4, 5):
        found = torch_pickle.load(pickle.dumps(value, protocol=protocol), "x")
        assert found["a"] == value["a"] if protocol > 2 else True
        assert found["b"] == value["b"]
        assert found["c"] == {"x": 1}
        assert sorted(found["d"]) == [1, 2]


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_pickle_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever is in it: no other exception, and it ends."""
    views, _ = support.views_of(arrays())
    whole = bytearray(support.pickled(support.mapping({label: support.tensor(view) for label, view in views.items()})))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with suppress(CheckpointError):
        torch_pickle.load(bytes(whole), "x")


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.getbasetemp()
    path = support.save(directory / "fuzzed.bin", {"w": np.arange(8, dtype="<f4"), "v": np.arange(3)})
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    with suppress(CheckpointError):
        source = TorchBinSource(directory, [path.name])
        for spec in source.specs():
            source.read(spec.name, 0, rows_of(spec)[0])
        source.close()
