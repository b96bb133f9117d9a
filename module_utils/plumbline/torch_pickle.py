"""Read the pickle of a PyTorch checkpoint without running it: containers, numbers, text and tensors. Standard library only.

A pickle is a program for a stack machine. Python's own machine imports what the program names and calls it; this one imports nothing and
calls nothing. Names on fixed lists become tensors, containers or inert records; any other name ends the reading.
Opcodes: https://github.com/python/cpython/blob/main/Lib/pickletools.py; what torch writes: torch/serialization.py and torch/_utils.py.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .checkpoint_errors import CheckpointError

# Storage class of torch: safetensors dtype.
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    # Bytes; the tensor names its dtype.
    "UntypedStorage": "",
}
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_REBUILDS = {
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
}
# What lies in training checkpoints beside the weights (arguments, states of random generators). Kept as a record, never made.
_INERT = {
    "argparse.Namespace",
    "types.SimpleNamespace",
    "torch.device",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.ndarray",
    "numpy.dtype",
    "_codecs.encode",
    "megatron.core.enums.ModelType",
    "megatron.model.enums.ModelType",
    "megatron.enums.ModelType",
    "megatron.model.enums.AttnMaskType",
    "megatron.model.enums.PositionEmbeddingType",
}
_CONTAINERS = {"collections.OrderedDict", "torch.Size", "builtins.set", "__builtin__.set"}
_KNOWN = {
    *_REBUILDS,
    *_INERT,
    *_CONTAINERS,
    *(f"{module}.{storage}" for module in ("torch", "torch.storage", "torch.cuda") for storage in _STORAGES),
    *(f"torch.{dtype}" for dtype in _DTYPES),
}
_MOST_OPCODES = 20_000_000


@dataclass(frozen=True)
class Storage:
    """Memory that tensors share: the key of its record, the dtype of its elements (empty: bytes) and their number."""

    key: str
    dtype: str
    elements: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor: a view into a storage. `offset` and `stride` count elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(eq=False)
class Inert:
    """An object of the pickle that is not made: its class, what it would be called with, and its state."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    @property
    def values(self) -> dict[str, Any]:
        """The attributes of an argparse.Namespace or the like, empty where there are none."""
        return self.state if isinstance(self.state, dict) else {}


@dataclass(frozen=True)
class Name:
    """A global that the pickle names and that is on a list, for example the dtype torch.bfloat16."""

    name: str


class _Malformed(Exception):  # noqa: N818 - told as a CheckpointError
    pass


def load(data: bytes, where: str) -> Any:
    """What the pickle of a PyTorch checkpoint describes: dict, list, tuple, numbers, text, StoredTensor, Inert.

    Raises CheckpointError for a pickle that names anything that is on no list, and for a malformed one. `where` names the file.
    """
    machine = _Machine(where)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > _MOST_OPCODES:
                raise _Malformed("it has too many instructions")
            if opcode.name == "STOP":
                return machine.result()
            step = _STEPS.get(opcode.name)
            if step is None:
                raise _Malformed(f"it uses {opcode.name}")
            step(machine, argument)
    except (_Malformed, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        told = f"no value {error}" if isinstance(error, (IndexError, KeyError)) else str(error)
        raise CheckpointError(
            f"{where} holds a pickle that PyTorch does not write ({told[:200]}): expected tensors by name; do not use this file, "
            "or save it again with torch.save."
        ) from None
    raise CheckpointError(f"{where} holds a pickle without an end: it is truncated; copy it again from where it came.")


class _Machine:
    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def result(self) -> Any:
        if self.marks or len(self.stack) != 1:
            raise _Malformed("it ends in the middle")
        return self.stack[0]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def take(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise _Malformed("it takes more than it has")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def name(self, module: Any, qualified: Any) -> None:
        full = f"{module}.{qualified}"
        if full not in _KNOWN:
            raise CheckpointError(
                f"{self.where} holds a pickle that would run {full}, where only tensors were expected: "
                "nothing of it was run; do not use this file."
            )
        self.push(Name(full))

    def call(self) -> None:
        function, arguments = self.take(2)
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise _Malformed("it calls what is no function")
        self.push(self.made(function.name, arguments))

    def made(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in _REBUILDS:
            return _rebuilt(name, arguments)
        if name == "collections.OrderedDict":
            made: dict[Any, Any] = {}
            _fill(made, [item for pair in (arguments[0] if arguments else ()) for item in pair])
            return made
        if name == "torch.Size":
            return tuple(arguments[0])
        if name.endswith(".set"):
            # As a list: the members of a checkpoint's set need not be hashable here.
            return list(arguments[0]) if arguments else []
        if name in _INERT:
            return Inert(name, arguments)
        raise _Malformed(f"it calls {name}")

    def build(self) -> None:
        (state,) = self.take(1)
        target = self.stack[-1]
        if isinstance(target, Inert):
            target.state = state
        elif not isinstance(target, (dict, StoredTensor)):
            # torch hangs _metadata on a state dict; nothing else has a state here.
            raise _Malformed("it sets the state of what has none")

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Inert):
            target.items.extend(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise _Malformed("it appends to what is no list")

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise _Malformed("it sets items of what is no dict")
        _fill(target, items)

    def persistent(self) -> None:
        (reference,) = self.take(1)
        if not isinstance(reference, tuple) or len(reference) != 5 or reference[0] != "storage":
            raise _Malformed("it refers to what is no storage")
        _, kind, key, _, elements = reference
        last = kind.name.rpartition(".")[2] if isinstance(kind, Name) else ""
        if last not in _STORAGES or not isinstance(key, str) or not _whole(elements):
            raise _Malformed("a storage is not described as torch does")
        self.push(Storage(key, _STORAGES[last], elements))

    def remember(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()


def _fill(target: dict[Any, Any], items: list[Any]) -> None:
    if len(items) % 2:
        raise _Malformed("a key has no value")
    for key, value in zip(items[::2], items[1::2]):
        # No tuples: one that is nested deeply enough takes for ever to hash.
        if not isinstance(key, (str, int, float, bytes, type(None))):
            raise _Malformed("a key is neither text nor a number")
        target[key] = value


def _rebuilt(name: str, arguments: tuple[Any, ...]) -> StoredTensor:
    if name.endswith(("_rebuild_parameter", "_rebuild_parameter_with_state")):
        if not arguments or not isinstance(arguments[0], StoredTensor):
            raise _Malformed("a parameter is made of what is no tensor")
        return arguments[0]
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, Storage):
        raise _Malformed("a tensor is made of what is no storage")
    dtype = storage.dtype
    if name.endswith("_v3"):
        named = arguments[6]
        dtype = _DTYPES.get(named.name.rpartition(".")[2], "") if isinstance(named, Name) else ""
    if not dtype:
        raise _Malformed("a tensor is of no known type")
    shape, stride = tuple(shape), tuple(stride)
    if len(shape) != len(stride) or not all(map(_whole, (offset, *shape, *stride))):
        raise _Malformed("the shape, stride and offset of a tensor do not fit together")
    return StoredTensor(storage, dtype, offset, shape, stride)


def _whole(number: Any) -> bool:
    return type(number) is int and 0 <= number < 1 << 62


def _push(value: Any) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(value)


def _argument(machine: _Machine, argument: Any) -> None:
    machine.push(argument)


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(tuple(machine.take(count)))


def _global(machine: _Machine, argument: str) -> None:
    module, _, qualified = argument.partition(" ")
    machine.name(module, qualified)


def _dict_of(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.push({})
    machine.set_items(items)


def _set_item(machine: _Machine) -> None:
    items = machine.take(2)
    machine.set_items(items)


_STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    "PROTO": lambda _machine, _: None,
    "FRAME": lambda _machine, _: None,
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.since_mark(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    "NONE": _push(None),
    "NEWTRUE": _push(True),
    "NEWFALSE": _push(False),
    "EMPTY_TUPLE": _push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_SET": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "FROZENSET": lambda machine, _: machine.push(machine.since_mark()),
    "DICT": lambda machine, _: _dict_of(machine),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": lambda machine, _: machine.append(machine.take(1)),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: _set_item(machine),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "GLOBAL": _global,
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.take(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.persistent(),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda machine, place: machine.remember(place)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, place: machine.push(machine.memo[place])),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"), _argument),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _argument),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), _argument),
    # Text of Python 2.
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), _argument),
}
