"""Write files of torch.save for tests and benchmarks, by hand from the format, so that neither needs PyTorch; whole or broken as asked."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STORAGES = {
    "F64": "DoubleStorage",
    "F32": "FloatStorage",
    "F16": "HalfStorage",
    "BF16": "BFloat16Storage",
    "I64": "LongStorage",
    "I32": "IntStorage",
    "I16": "ShortStorage",
    "I8": "CharStorage",
    "U8": "ByteStorage",
    "BOOL": "BoolStorage",
}


@dataclass(frozen=True)
class View:
    """A tensor of a storage (its key, dtype and number of elements)."""

    key: str
    dtype: str
    elements: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, size = [], 1
    for count in reversed(shape):
        strides.append(size)
        size *= max(1, count)
    return tuple(reversed(strides))


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(values: Iterable[int]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def name(module: str, qualified: str) -> bytes:
    return f"c{module}\n{qualified}\n".encode()


def tensor(view: View) -> bytes:
    """A call of torch._utils._rebuild_tensor_v2, as torch writes it."""
    storage = (
        b"("
        + text("storage")
        + name("torch", STORAGES[view.dtype])
        + text(view.key)
        + text("cpu")
        + number(view.elements)
        + b"tQ"
    )
    hooks = name("collections", "OrderedDict") + b")R"
    arguments = storage + number(view.offset) + numbers(view.shape) + numbers(view.stride) + b"\x89" + hooks
    return name("torch._utils", "_rebuild_tensor_v2") + b"(" + arguments + b"tR"


def mapping(items: Mapping[str, bytes]) -> bytes:
    """A dict whose values are pickled already."""
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def pickled(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def write(
    path: Path,
    pickle: bytes,
    storages: Mapping[str, Iterable[bytes]],
    *,
    folder: str = "archive",
    compression: int = zipfile.ZIP_STORED,
    byte_order: bytes | None = b"little",
) -> Path:
    """An archive with this pickle and these storages, each given as pieces of bytes."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{folder}/data.pkl", pickle)
        if byte_order is not None:
            archive.writestr(f"{folder}/byteorder", byte_order)
        for key, parts in storages.items():
            with archive.open(f"{folder}/data/{key}", "w", force_zip64=True) as record:
                for part in parts:
                    record.write(part)
        archive.writestr(f"{folder}/version", b"3\n")
    return path


def views_of(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, View], dict[str, list[bytes]]]:
    """A storage for each array, in C order. An array of uint16 stands for bfloat16."""
    kinds = {
        "f8": "F64",
        "f4": "F32",
        "f2": "F16",
        "u2": "BF16",
        "i8": "I64",
        "i4": "I32",
        "i2": "I16",
        "i1": "I8",
        "u1": "U8",
    }
    views, storages = {}, {}
    for key, (label, array) in enumerate(arrays.items()):
        dtype = "BOOL" if array.dtype == bool else kinds[array.dtype.str[1:]]
        views[label] = View(str(key), dtype, array.size, array.shape, contiguous(array.shape))
        storages[str(key)] = [array.tobytes()]
    return views, storages


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """What torch.save({name: tensor, ...}, path) would write."""
    views, storages = views_of(arrays)
    return write(path, pickled(mapping({label: tensor(view) for label, view in views.items()})), storages)
