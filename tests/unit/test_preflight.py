"""An inventory that is not sound is refused before anything is touched, all at once and without its secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import variables as v
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.variable_types import value_problems

from tests.unit.playbook_run import CHECKOUT, play, run_playbook

QUOTES = ": put it in quotes, or YAML makes 1.1 of 1.10"
OPTIONS = {
    "serving_port": {"type": "int", "default": 8000},
    "serving_host": {"type": "str", "required": True},
    "serving_api_key": {"type": "str", "no_log": True},
    "serving_mode": {"type": "str", "choices": ["on", "off", "auto"]},
    "serving_level": {"type": "int", "choices": [1, 2]},
    "serving_ratio": {"type": "float"},
    "serving_enabled": {"type": "bool"},
    "serving_arguments": {"type": "list", "elements": "str"},
    "serving_anything": {"type": "raw"},
    "serving_limits": {
        "type": "dict",
        "options": {
            "memory_bytes": {"type": "int", "required": True},
            "token": {"type": "int"},
            "names": {"type": "list", "elements": "int"},
        },
    },
}


@pytest.fixture
def catalogue(tmp_path: Path) -> v.Catalogue:
    role = tmp_path / "roles/serving/meta"
    role.mkdir(parents=True)
    (role / "argument_specs.yml").write_text(yaml.safe_dump({"argument_specs": {"main": {"options": OPTIONS}}}))
    (tmp_path / "meta").mkdir()
    common = {"prefixes": ["bmc_"], "options": {"bmc_host": {"type": "str"}}, "facts": ["serving_endpoint"]}
    (tmp_path / "meta/variables.yml").write_text(yaml.safe_dump(common))
    return v.load_catalogue(tmp_path)


def problems(catalogue: v.Catalogue, **variables: object) -> list[str]:
    variables = {"serving_host": "::", **variables}
    return v.check_variables(catalogue, variables, variables.__getitem__)


def test_a_sound_host(catalogue: v.Catalogue) -> None:
    sound = {
        "serving_port": "8000",  # -e makes text of everything
        "serving_mode": "on",
        "serving_level": "2",
        "serving_ratio": 0.5,
        "serving_enabled": "yes",
        "serving_arguments": ["--a", "b"],
        "serving_anything": object(),
        "serving_limits": {"memory_bytes": 1, "names": [1, 2]},
        "serving_api_key": None,
        "serving_endpoint": "http://[::1]/v1",
        "__serving_private": 1,
        "ansible_serving_port": 1,
        "our_own_variable": 1,
        "bmc_host": "10.0.0.1",
    }
    assert problems(catalogue, **sound) == []


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("serving_prot", 1, "serving_prot is unknown: did you mean serving_port?"),
        ("serving_xyzzy", 1, "serving_xyzzy is unknown: roles/serving/defaults/main.yml lists those that there are"),
        ("sevring_port", 1, "sevring_port is unknown: did you mean serving_port?"),
        ("bmc_hsot", 1, "bmc_hsot is unknown: did you mean bmc_host?"),
        ("serving_port", "eight", "serving_port: a whole number (int) was expected, the text 'eight' was found"),
        ("serving_port", 80.5, "serving_port: a whole number (int) was expected, the number 80.5 was found"),
        ("serving_port", True, "serving_port: a whole number (int) was expected, the boolean true was found"),
        ("serving_port", None, "serving_port: a whole number (int) was expected, nothing was found: give a value or remove the line"),
        ("serving_host", 1.1, "serving_host: a text (str) was expected, the number 1.1 was found" + QUOTES),
        ("serving_mode", "atuo", "serving_mode: one of on, off, auto was expected, the text 'atuo' was found: did you mean auto?"),
        ("serving_mode", "x", "serving_mode: one of on, off, auto was expected, the text 'x' was found"),
        ("serving_ratio", float("nan"), "serving_ratio: a number (float) was expected, the number nan was found"),
        ("serving_enabled", "maybe", "serving_enabled: true or false (bool) was expected, the text 'maybe' was found"),
        ("serving_arguments", "--a b", "serving_arguments: a list was expected, the text '--a b' was found: write it as [item, item]"),
        ("serving_arguments", ["a", 1.5], "serving_arguments[1]: a text (str) was expected, the number 1.5 was found" + QUOTES),
        ("serving_limits", [], "serving_limits: a mapping (dict) was expected, a list was found"),
        ("serving_limits", {"memory_bytes": "x"}, "serving_limits.memory_bytes: a whole number (int) was expected, the text 'x' was found"),
        ("serving_limits", {"memory_byte": 1, "memory_bytes": 1}, "serving_limits.memory_byte is unknown: did you mean memory_bytes?"),
        ("serving_limits", {}, "serving_limits.memory_bytes: a value is required, none was found"),
        ("serving_limits", {"memory_bytes": 1, "names": [[]]}, "serving_limits.names[0]: a whole number (int) was expected, a list was found"),  # noqa: E501
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(catalogue: v.Catalogue, name: str, value: object, sentence: str) -> None:
    assert problems(catalogue, **{name: value}) == [sentence]


def test_a_boolean_where_a_word_was_meant(catalogue: v.Catalogue) -> None:
    found = problems(catalogue, serving_mode=True)
    assert found == [
        "serving_mode: a text (str) was expected, the boolean true was found: YAML reads on, off, yes and no as booleans, "
        "so put the word in quotes"
    ]


def test_what_is_required_and_missing(catalogue: v.Catalogue) -> None:
    found = v.check_variables(catalogue, [], {}.__getitem__)
    assert found == [
        "serving_host: a value is required, none was found: set it in inventories/<site>/group_vars/nodes/"
    ]


def test_a_stage_alone_requires_only_its_own(catalogue: v.Catalogue) -> None:
    assert v.check_variables(catalogue, [], {}.__getitem__, required_prefix="survey_") == []
    assert len(v.check_variables(catalogue, [], {}.__getitem__, required_prefix="serving_")) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ({"type": "str", "no_log": True}, ["hunter2"]),
        ({"type": "dict", "no_log": True, "options": {"x": {"type": "int"}}}, {"x": "hunter2"}),
        ({"type": "dict", "options": {"token": {"type": "int"}}}, {"token": "hunter2"}),
        ({"type": "str", "no_log": True, "choices": ["a"]}, "hunter2"),
    ],
)
def test_a_secret_is_never_printed(option: dict, value: object, tmp_path: Path) -> None:
    found = list(value_problems(option, value, bool(option.get("no_log"))))
    assert found
    assert "hunter2" not in str(found)
    assert "not shown" in str(found) or "was found" in str(found)


def test_a_name_that_promises_a_secret_is_enough(catalogue: v.Catalogue) -> None:
    found = problems(catalogue, serving_api_key=["hunter2"])
    assert len(found) == 1
    assert "hunter2" not in found[0]


def test_values_that_cannot_be_known_yet_and_templates_that_never_will(catalogue: v.Catalogue) -> None:
    def resolve(name: str) -> object:
        raise {"serving_port": v.UndefinedYetError(), "serving_ratio": v.UnresolvableError("unexpected '}'")}[name]

    found = v.check_variables(
        {}.get("x") or catalogue, ["serving_port", "serving_ratio"], resolve, where=lambda name: "group_vars/x.yml:3"
    )
    assert "serving_ratio (group_vars/x.yml:3): a value or a sound template was expected, unexpected '}'" in found
    assert not any(problem.startswith("serving_port") for problem in found)


@pytest.mark.parametrize("content", ["a: [", "[]", "argument_specs: {main: {}}", "\0"])
def test_a_broken_spec_is_a_problem_and_no_crash(tmp_path: Path, content: str) -> None:
    role = tmp_path / "roles/serving/meta"
    role.mkdir(parents=True)
    (role / "argument_specs.yml").write_text(content)
    found = v.load_catalogue(tmp_path)
    assert any("roles/serving/meta/argument_specs.yml" in problem for problem in found.problems)


def test_the_checkouts_own_specs_can_be_read(checkout: Path) -> None:
    catalogue = v.load_catalogue(checkout)
    assert catalogue.problems == ()
    assert {"bmc_host", "gates_slo"} <= set(catalogue.options)
    for name, option in catalogue.options.items():
        if option.get("default") is not None:
            assert list(value_problems(option, option["default"])) == [], name


PREFLIGHT = [play([{"plumbline.plumbline.preflight": None}], stage="preflight")]


def shipped(checkout: Path) -> dict:
    variables: dict = {}
    for path in sorted((checkout / "group_vars/all").glob("*.yml")):
        variables.update(yaml.safe_load(path.read_text()) or {})
    variables.pop("plumbline_artifacts_dir")
    return variables


def test_a_run_names_everything_that_is_wrong_with_a_host(tmp_path: Path) -> None:
    wrong = {
        "bmc_prot": 443,
        "bmc_port": "{{ 'four' ~ 'forty' }}",
        "bmc_password": ["hunter2"],
        "bmc_timeout_seconds": "{{ a_later_fact }}",
        "bmc_ca_file": "{{ 1 + }}",
        "gates_rules": {"host_memory_bandwidth": {"kind": "fraction_of_limit", "fail": 60}},
        "gates_slo": {
            "prompt_tokens": 128,
            "completion_tokens": 128,
            "decode_tokens_per_second": 42,
            "end_to_end_latency_p99_seconds": 0.86,
        },
    }
    outcome = run_playbook(tmp_path, [play([{"plumbline.plumbline.preflight": None}], stage="survey")], variables=wrong)
    assert outcome.status != 0
    text = outcome.output
    assert "Nothing was touched on node1, for 6 variables are not sound:" in text
    assert "serving_api_key" not in text  # this stage does not need it
    assert "is unknown: did you mean bmc_port?" in text
    assert "inventory.yml:" in text
    assert "a whole number (int) was expected, the text 'fourforty' was found" in text
    assert "a value or a sound template was expected, Syntax error in template" in text
    assert "gate rule host_memory_bandwidth: fail is a fraction of the limit" in text
    assert "128 tokens at 42 tokens/s take 3.024 s" in text
    assert "bmc_timeout_seconds" not in text
    assert "hunter2" not in text
    assert "Traceback" not in text
    assert outcome.kinds("node1") == ["failure", "stage"]
    assert "hunter2" not in str(outcome.evidence("node1"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("gates_slo=5", "gates_slo (-e): a mapping (dict) was expected, the text '5' was found"),
        (
            '{"gates_rules_overrides": 5}',
            "gates_rules_overrides (-e): a mapping (dict) was expected, the number 5 was found",
        ),
        ('{"gates_slo": true}', "gates_slo (-e): a mapping (dict) was expected, the boolean true was found"),
        ("@extra.yml", "extra.yml:2): a mapping (dict) was expected, the text 'fast' was found"),
    ],
)
def test_the_command_line_is_blamed_for_what_it_sets_and_no_file(tmp_path: Path, given: str, words: str) -> None:
    (tmp_path / "extra.yml").write_text("---\ngates_slo: fast\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("---\ngates_slo: {}\ngates_rules_overrides: {}\n")
    tasks = [{"plumbline.plumbline.preflight": None}]
    outcome = run_playbook(
        tmp_path, [play(tasks, stage="survey")], "-e", given.replace("@", f"@{tmp_path}/"), hosts=("node1",)
    )
    assert outcome.status == 2
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("              - gates_")]
    assert words in line
    assert "group_vars" not in line


def test_the_shipped_variables_pass(tmp_path: Path, checkout: Path) -> None:
    vault = {"vault_serving_api_key": "0123456789abcdef0123456789", "vault_bmc_password": "correct-horse"}
    outcome = run_playbook(tmp_path, PREFLIGHT, variables={**shipped(checkout), **vault})
    assert outcome.status == 0, outcome.output


@pytest.mark.parametrize(
    ("inventory", "words"),
    [("all:\n", "Expected hosts in the group nodes, found none in"), (None, "No inventory was parsed")],
)
def test_an_inventory_without_nodes_is_no_success(tmp_path: Path, inventory: str | None, words: str) -> None:
    path = tmp_path / "hosts.yml"
    if inventory is not None:
        path.write_text(inventory)
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", path, "site.yml"],
        cwd=CHECKOUT,
        env={**os.environ, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_whatever_a_playbook_reads_may_be_set() -> None:
    """A variable that a role reads with a default and that preflight would refuse can be of no use to anybody."""
    known = v.load_catalogue(CHECKOUT)
    prefixes = "|".join(known.prefixes)
    reads = re.compile(rf"(?<![\w.])((?:{prefixes})\w+) \| default\(")
    files = [*CHECKOUT.glob("roles/*/*/*.yml"), *CHECKOUT.glob("playbooks/**/*.yml")]
    names = {name for path in files for name in reads.findall(path.read_text(encoding="utf-8"))}
    assert "bmc_port" in names
    assert sorted(names - set(known.options) - known.facts) == []


def test_what_a_site_sets_is_judged_and_not_taken_for_a_fact() -> None:
    known = v.load_catalogue(CHECKOUT)
    sites = yaml.safe_load((CHECKOUT / "roles/model/meta/argument_specs.yml").read_text(encoding="utf-8"))
    declared = set(sites["argument_specs"]["main"]["options"])
    assert "model_name" in declared
    assert declared & known.facts == set()
    problem = v.check_variables(known, ["model_name"], lambda _name: ["a"], required_prefix="model_")
    assert problem == ["model_name: a text (str) was expected, a list was found"]


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("serving_port", 99999, 8000),
        ("serving_port", 0, "8000"),
        ("bmc_port", 70000, 443),
        ("serving_user", "ro ot", "plumbline-serving"),
        ("model_name", "../etc", "SmolLM2-135M-Instruct"),
        ("accept_requests", 1, 24),
    ],
)
def test_a_value_beyond_its_bounds_is_refused_before_any_stage(name: str, bad: object, good: object) -> None:
    known = v.load_catalogue(CHECKOUT)
    (problem,) = v.check_variables(known, [name], {name: bad}.__getitem__, required_prefix="-")
    assert problem.startswith(name)
    assert str(bad) in problem
    assert v.check_variables(known, [name], {name: good}.__getitem__, required_prefix="-") == []


def test_bounds_of_a_variable_that_nobody_declares_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/variables.yml").write_text("bounds: {serving_prot: {minimum: 1}}\n")
    assert any("serving_prot" in problem for problem in v.load_catalogue(tmp_path).problems)


def test_a_run_whose_evidence_could_not_be_kept_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    outcome = run_playbook(
        tmp_path,
        [play([{"plumbline.plumbline.preflight": None}], stage="survey")],
        variables={"plumbline_artifacts_dir": str(file / "artifacts")},
    )
    assert outcome.status != 0
    told = " ".join(outcome.output.split())
    assert f"under {file}/artifacts (plumbline_artifacts_dir), but {file} is no folder" in told
    assert "nothing was touched on node1" in told
    assert "Traceback" not in told


def test_a_password_whose_vault_is_missing_is_refused_before_any_stage(tmp_path: Path) -> None:
    outcome = run_playbook(
        tmp_path,
        [play([{"name": "Sound", "plumbline.plumbline.preflight": None}], "bios")],
        variables={
            "bmc_host": "10.0.0.7",
            "bmc_password": "{{ vault_bmc_password }}",
            "firmware_floors": "{{ survey_bmc.x }}",
        },
    )
    assert outcome.status != 0
    text = " ".join(outcome.output.split())
    assert "it rests on vault_bmc_password, which is not defined: define that in" in text
    assert "survey_bmc" not in text, "what a stage finds out comes later"
