"""Every figure that any module can emit has a rule, and the file of rules is one that Ansible reads."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import load_report
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import (
    effective_rules,
    gate_problems,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.fleet import is_fleet_rule

from tests.unit import measurement_names
from tests.unit.measurement_names import CHECKOUT, emitted_names

GATES = CHECKOUT / "group_vars/all/gates.yml"
VARIABLES = yaml.safe_load(GATES.read_text(encoding="utf-8"))
RULES = effective_rules(VARIABLES["gates_rules"], {}, VARIABLES["gates_slo"], {})


@pytest.fixture(scope="module")
def emitted() -> dict[str, set[str]]:
    names, lost = emitted_names()
    assert lost == []
    # Percentiles and latencies are multiplied out by the search; the module itself says which of them there are.
    real = set(load_report.names())
    return {name: files for name, files in names.items() if files != {"load_report.py"} or name in real}


def test_every_measurement_has_a_rule(emitted: dict[str, set[str]]) -> None:
    assert len(emitted) > 90  # the search has found the modules at all
    assert {name: files for name, files in emitted.items() if name not in RULES} == {}


def test_every_rule_has_a_measurement(emitted: dict[str, set[str]]) -> None:
    assert [name for name, rule in RULES.items() if not is_fleet_rule(rule) and name not in emitted] == []
    assert [name for name, rule in RULES.items() if is_fleet_rule(rule) and rule["of"] not in emitted] == []


def test_the_rules_are_sound_and_each_has_a_title() -> None:
    assert gate_problems(VARIABLES["gates_rules"], VARIABLES["gates_rules_overrides"], VARIABLES["gates_slo"]) == []
    assert [name for name, rule in RULES.items() if not rule.get("title")] == []


def test_ansible_reads_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge key (<<) that a rule then overrides is fine in YAML, and a duplicate key to Ansible as it is configured."""
    monkeypatch.setattr("ansible.constants.DUPLICATE_YAML_DICT_KEY", "error")
    assert DataLoader().load_from_file(str(GATES)).keys() == VARIABLES.keys()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('def f():\n    return {"name": "new_one", "scope": "node"}', {"new_one"}),
        (
            'def f(kind):\n    return {"name": kind, "error": "x"}\ndef g():\n    return f("by_parameter")',
            {"by_parameter"},
        ),
        (
            'NAMES = ("one", "two")\ndef f():\n    return [{"name": name, "skipped": ""} for name in NAMES]',
            {"one", "two"},
        ),
        (
            'def f(m, load):\n    name = "a"\n    if load:\n        name = "b"\n    return {**m, "name": name}',
            {"a", "b"},
        ),
        (
            'def f():\n    for kind in ("x", "y"):\n        print({"name": f"edac_{kind}", "scope": 1})',
            {"edac_x", "edac_y"},
        ),
        (
            'class A:\n    kind: str\n    def f(self):\n        return {"name": self.kind, "scope": ""}\ndef g():\n    A("field")',
            {"field"},
        ),
        ('def f():\n    return {"name": "a thing that is no measurement", "id": 5}', set()),
    ],
)
def test_a_new_measurement_is_found_wherever_its_name_comes_from(
    code: str, found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, lost = search(code, tmp_path, monkeypatch)
    assert (set(names), lost) == (found, [])


def test_a_name_that_cannot_be_followed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, lost = search('def f():\n    return {"name": open("x").read(), "scope": ""}', tmp_path, monkeypatch)
    assert names == {}
    assert len(lost) == 1
    assert "new.py:2" in lost[0]


def search(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, set[str]], list[str]]:
    """Search a checkout that holds one file."""
    ast.parse(code)
    (tmp_path / "library").mkdir()
    (tmp_path / "library/new.py").write_text(code)
    names: dict[str, object] = {}
    exec(compile(code, "new.py", "exec"), names)
    monkeypatch.setattr(measurement_names, "CHECKOUT", tmp_path)
    monkeypatch.setattr(measurement_names.importlib, "import_module", lambda _name: SimpleNamespace(**names))
    return emitted_names()
