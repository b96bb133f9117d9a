"""Every measurement name that the code can emit, read from its source: what a gate must have a rule for.

A measurement is a dictionary with a name and one of the fields that only measurements have. Its name is followed to where
it comes from: a constant, a parameter (to every caller), a loop, a local variable. What cannot be followed is an error,
so that a new way to make a measurement does not escape unseen.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGE = "ansible_collections.plumbline.plumbline.plugins"
_FOLDERS = {"module_utils/plumbline": "module_utils.plumbline", "library": "modules", "action_plugins": "action"}
_FIELDS = frozenset({"scope", "skipped", "error", "statistic", "limit_source", "expected", "samples"})
_DEEPEST = 12

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class CannotFollowError(Exception):
    """A name comes from where the source does not show it."""


class Source:
    """One file: its tree, with each node's parent, and the module that it is."""

    def __init__(self, path: Path, package: str) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.module = f"{_PACKAGE}.{package}.{path.stem}"
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def value_of(self, node: ast.expr) -> Any:
        """Evaluate an expression of module-level names, as the module itself would."""
        module = importlib.import_module(self.module)
        try:
            return eval(compile(ast.Expression(node), str(self.path), "eval"), vars(module))
        except Exception as error:
            raise CannotFollowError(f"{type(error).__name__}: {error}") from None

    def function_of(self, node: ast.AST) -> Function | None:
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                return node
        return None


def emitted_names() -> tuple[dict[str, set[str]], list[str]]:
    """Return each name with the files that emit it, and a sentence for each that cannot be followed."""
    sources = [
        Source(path, package)
        for folder, package in _FOLDERS.items()
        for path in sorted((CHECKOUT / folder).glob("*.py"))
    ]
    names: dict[str, set[str]] = {}
    lost = []
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Dict) or (value := _name_of_measurement(node)) is None:
                continue
            try:
                found = set(_strings(sources, source, value, _DEEPEST))
            except CannotFollowError as error:
                lost.append(f"{source.path.name}:{value.lineno}: {ast.unparse(value)} cannot be followed ({error})")
                continue
            for name in found:
                names.setdefault(name, set()).add(source.path.name)
    for path in [*CHECKOUT.glob("roles/*/[tv]a*s/*.yml"), *CHECKOUT.glob("playbooks/**/*.yml")]:
        for name in _in_tasks(yaml.safe_load(path.read_text(encoding="utf-8"))):
            names.setdefault(name, set()).add(str(path.relative_to(CHECKOUT)))
    return names, lost


def _name_of_measurement(node: ast.Dict) -> ast.expr | None:
    keys = {key.value: value for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)}
    # {**measurement, "name": ..}: another name for one.
    renamed = keys.keys() == {"name"} and None in node.keys
    return keys["name"] if "name" in keys and (renamed or _FIELDS & keys.keys()) else None


def _strings(  # noqa: PLR0912 - one branch a form of expression reads best
    sources: list[Source], source: Source, node: ast.expr, depth: int
) -> Iterator[str]:
    """Yield every text that an expression may be."""
    if depth == 0:
        raise CannotFollowError("it goes through too many hands")
    follow = lambda inner: _strings(sources, source, inner, depth - 1)  # noqa: E731
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from follow(node.body)
        yield from follow(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        parts = [list(follow(part.value if isinstance(part, ast.FormattedValue) else part)) for part in node.values]
        yield from ("".join(each) for each in product(*parts))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        yield from follow(node.args[0])
    elif isinstance(node, ast.Subscript) and (entries := _local_dictionary(source, node.value)) is not None:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        yield from (
            follow(entries[key]) if key in entries else (text for each in entries.values() for text in follow(each))
        )
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        yield from _field(sources, source, node, depth)
    elif isinstance(node, ast.Subscript):
        try:
            yield from _texts(source.value_of(node))
        except CannotFollowError:
            yield from _texts(source.value_of(node.value))
    elif isinstance(node, ast.Name) and (local := _binding(source, node)) is not None:
        kind, where, index = local
        if kind == "parameter":
            yield from _arguments(sources, source, where, node.id, depth)
        elif kind == "loop":
            yield from _elements(sources, source, where, index, depth)
        else:
            for value in where:
                yield from follow(value)
    else:
        yield from _texts(source.value_of(node))


def _texts(value: Any) -> Iterable[str]:
    """Return the texts in what a module-level name stands for."""
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    found = list(values) if isinstance(values, Iterable) else [None]
    if all(isinstance(each, str) for each in found):
        return found
    raise CannotFollowError(f"a text was expected, {type(value).__name__} was found")


def _binding(source: Source, node: ast.Name) -> tuple[str, Any, tuple[int, ...]] | None:
    """Return where a local name gets its value: a loop, an assignment or a parameter of the functions around."""
    scope: ast.AST = node
    while (scope := source.parents.get(scope)) is not None:  # type: ignore[assignment]
        loops = getattr(scope, "generators", []) or ([scope] if isinstance(scope, ast.For) else [])
        for loop in loops:
            if (index := _index(loop.target, node.id)) is not None:
                return "loop", loop.iter, index
        if isinstance(scope, Function):
            body = [inner for inner in ast.walk(scope) if inner is not scope]
            if values := [value for inner in body for value in _assigned(inner, node.id)]:
                return "values", values, ()
            for inner in body:
                if isinstance(inner, ast.For) and (index := _index(inner.target, node.id)) is not None:
                    return "loop", inner.iter, index
            arguments = scope.args
            if node.id in [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]:
                return "parameter", scope, ()
    return None


def _assigned(node: ast.AST, name: str) -> list[ast.expr]:
    """Return what a statement assigns to a name."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [node.value] if _index(node.target, name) == () else []
    targets = node.targets if isinstance(node, ast.Assign) else []
    places = [place for target in targets if (place := _index(target, name)) is not None]
    return [_element(node.value, place) for place in places] if isinstance(node, ast.Assign) else []


def _index(target: ast.expr, name: str) -> tuple[int, ...] | None:
    """Return at which place of a target (``for a, (b, c) in``) a name stands."""
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, (ast.Tuple, ast.List)):
        for place, element in enumerate(target.elts):
            if (rest := _index(element, name)) is not None:
                return (place, *rest)
    return None


def _elements(
    sources: list[Source], source: Source, iterated: ast.expr, index: tuple[int, ...], depth: int
) -> Iterator[str]:
    local = _binding(source, iterated) if isinstance(iterated, ast.Name) else None
    if local is not None and local[0] == "values":
        for value in local[1]:
            yield from _elements(sources, source, value, index, depth - 1)
    elif local is not None and local[0] == "loop":  # a loop over what a loop around it goes through
        for found in source.value_of(local[1]):
            yield from (str(each) for each in _dig(found, local[2]))
    elif isinstance(iterated, (ast.Tuple, ast.List, ast.Set)):
        for each in iterated.elts:
            yield from _strings(sources, source, _element(each, index), depth - 1)
    elif (pairs := _pairs(source, iterated)) is not None:
        for pair in pairs:
            yield from _strings(sources, source, _element(pair, index), depth - 1)
    else:
        for found in list(source.value_of(iterated)):
            yield from _texts(_dig(found, index))


def _dig(value: Any, index: tuple[int, ...]) -> Any:
    for place in index:
        value = value[place]
    return value


def _element(node: ast.expr, index: tuple[int, ...]) -> ast.expr:
    for place in index:
        if not isinstance(node, (ast.Tuple, ast.List)):
            raise CannotFollowError(f"{ast.unparse(node)} is no tuple")
        node = node.elts[place]
    return node


def _local_dictionary(source: Source, node: ast.expr) -> dict[Any, ast.expr] | None:
    """Return keys and values of a dictionary that a function around writes out."""
    local = _binding(source, node) if isinstance(node, ast.Name) else None
    if local is None or local[0] != "values" or not isinstance(local[1][0], ast.Dict):
        return None
    written = local[1][0]
    return {key.value: value for key, value in zip(written.keys, written.values) if isinstance(key, ast.Constant)}


def _pairs(source: Source, node: ast.expr) -> list[ast.expr] | None:
    """Return what ``items()`` of such a dictionary gives, as tuples."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items"):
        return None
    entries = _local_dictionary(source, node.func.value)
    if entries is None:
        return None
    return [ast.Tuple([ast.Constant(key), value], ast.Load()) for key, value in entries.items()]


def _field(sources: list[Source], source: Source, node: ast.Attribute, depth: int) -> Iterator[str]:
    """Yield what a field of a dataclass is given wherever one is made."""
    scope: ast.AST | None = node
    while scope is not None and not isinstance(scope, ast.ClassDef):
        scope = source.parents.get(scope)
    if scope is None:
        raise CannotFollowError("self belongs to no class")
    fields = [
        each.target.id for each in scope.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    if node.attr not in fields:
        raise CannotFollowError(f"{scope.name} declares no field {node.attr}")
    made = False
    for other in sources:
        for call in ast.walk(other.tree):
            if not isinstance(call, ast.Call) or _called(call) != scope.name:
                continue
            made = True
            given = next((keyword.value for keyword in call.keywords if keyword.arg == node.attr), None)
            if given is None and fields.index(node.attr) < len(call.args):
                given = call.args[fields.index(node.attr)]
            if given is None:
                raise CannotFollowError(f"{scope.name} is made in {other.path.name} without saying it")
            yield from _strings(sources, other, given, depth - 1)
    if not made:
        raise CannotFollowError(f"nobody makes a {scope.name}")


def _arguments(
    sources: list[Source], source: Source, function: ast.FunctionDef, name: str, depth: int
) -> Iterator[str]:
    """Yield what callers give for a parameter: those in the same file, and elsewhere for a public function."""
    positional = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    defaults = dict(zip(reversed(positional), reversed(function.args.defaults)))
    called = False
    for other in sources:
        if other is not source and function.name.startswith("_"):
            continue
        if other is not source and not _imports(other, source):
            continue
        for call in ast.walk(other.tree):
            if not isinstance(call, ast.Call) or _called(call) != function.name:
                continue
            called = True
            given = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
            place = positional.index(name) if name in positional else len(call.args)
            if given is None and place < len(call.args):
                given = call.args[place]
            given = defaults.get(name) if given is None else given
            if given is None:
                raise CannotFollowError(f"a call of {function.name} in {other.path.name} does not show it")
            yield from _strings(sources, other if given is not defaults.get(name) else source, given, depth - 1)
    if not called:
        raise CannotFollowError(f"nobody calls {function.name}")


def _called(call: ast.Call) -> str:
    return (
        call.func.id
        if isinstance(call.func, ast.Name)
        else call.func.attr
        if isinstance(call.func, ast.Attribute)
        else ""
    )


def _imports(other: Source, source: Source) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (
            str(node.module).rpartition(".")[2] == source.path.stem or source.path.stem in [a.name for a in node.names]
        )
        for node in ast.walk(other.tree)
    )


def _in_tasks(thing: Any) -> Iterator[str]:
    """Yield the names of measurements that tasks write themselves."""
    if isinstance(thing, dict):
        name = thing.get("name")
        if isinstance(name, str) and "scope" in thing and {"value", "skipped", "error"} & thing.keys():
            yield name
        for inner in thing.values():
            yield from _in_tasks(inner)
    elif isinstance(thing, list):
        for inner in thing:
            yield from _in_tasks(inner)
