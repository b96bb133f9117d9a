"""Code that runs on a node is imported from a zip file, which Python 3.9 does without `__package__`."""

from __future__ import annotations

import ast
import importlib.util
import types
from pathlib import Path

import pytest

PACKAGE = "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline"
FOLDER = Path(__file__).parents[2] / "module_utils/plumbline"


@pytest.mark.parametrize("name", ["gpu_copy_probe", "all_reduce_probe", "probe_support"])
@pytest.mark.filterwarnings("ignore")  # Python says itself that __package__ is missing
def test_a_probe_is_imported_without_its_package_set(name: str) -> None:
    spec = importlib.util.find_spec(f"{PACKAGE}.{name}")
    assert spec is not None
    assert spec.loader is not None
    module = types.ModuleType(spec.name)
    module.__dict__.pop("__package__", None)
    module.__dict__.pop("__spec__", None)
    code = compile((FOLDER / f"{name}.py").read_text(), f"{name}.py", "exec")
    exec(code, module.__dict__)
    assert name == "probe_support" or module.support.__name__ == f"{PACKAGE}.probe_support"


def test_nothing_looks_at_its_package_while_it_is_imported() -> None:
    files = list(FOLDER.rglob("*.py"))
    assert len(files) > 100
    found = []
    for file in files:
        tree = ast.parse(file.read_text())
        inside = {
            id(name)
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for name in ast.walk(function)
        }
        found += [
            file.name
            for name in ast.walk(tree)
            if isinstance(name, ast.Name) and name.id == "__package__" and id(name) not in inside
        ]
    assert found == []
