"""playbooks/validate.yml and survey.yml on this machine, with plain inventories; and that no playbook passes over an empty inventory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.unit.playbook_run import CHECKOUT, RUN, Outcome

STAGES = sorted(path.name for path in (CHECKOUT / "playbooks").glob("*.yml"))
# No measurement: a test must not load the machine that others test on.
NOTHING = ("-e", json.dumps({"validate_measure": []}))


def ansible(tmp_path: Path, inventory: str, playbook: str, *options: str, **environment: str) -> Outcome:
    """Run one of the project's playbooks against an inventory."""
    artifacts = tmp_path / "artifacts"
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", inventory, playbook, "-e", f"plumbline_run_id={RUN}", *options],
        cwd=CHECKOUT,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "PLUMBLINE_ARTIFACTS_DIR": str(artifacts),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout + done.stderr, artifacts)


def local(*hosts: str) -> tuple[str, ...]:
    return (",".join(hosts) + ",", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}")


@pytest.mark.parametrize("playbook", ["survey", "validate"])
@pytest.mark.parametrize("check", [True, False])
def test_any_machine_without_a_group_ends_with_its_screen(playbook: str, check: bool, tmp_path: Path) -> None:
    inventory, *options = local("here")
    options += [*NOTHING, *(["--check"] if check else [])]
    outcome = ansible(tmp_path, inventory, f"playbooks/{playbook}.yml", *options)
    # A user without root may be told that DIMMs are unknown to the survey; that is its verdict, not a crash.
    assert outcome.status in (0, 2), outcome.output
    assert "Traceback" not in outcome.output
    lines = outcome.output.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("here: "))
    screen = lines[start : lines.index(next(line for line in lines if line.startswith("Report: ")))]
    assert len(screen) <= 45
    assert any(line.startswith("  CPU ") for line in screen)
    assert any(line.startswith("  Memory ") for line in screen)
    assert "changed=0" in outcome.output
    kept = (outcome.directory / RUN / "here.txt").read_text().splitlines()
    assert [line.split() for line in kept] != []
    assert kept[0] == screen[0]
    records = outcome.evidence("here")
    schema = json.loads((CHECKOUT / "docs/evidence.schema.json").read_text())
    (machine,) = [record for record in records if record["kind"] == "machine"]
    jsonschema.Draft202012Validator(schema).validate(machine)
    assert machine["stage"] == playbook
    assert machine["check_mode"] is check
    for report in ("report.html", "report.md"):
        assert "The machine" in (outcome.directory / RUN / report).read_text()


def test_the_default_output_of_ansible_ends_with_the_screen_too(tmp_path: Path) -> None:
    inventory, *options = local("here")
    outcome = ansible(
        tmp_path, inventory, "playbooks/validate.yml", *options, *NOTHING, "--check", ANSIBLE_STDOUT_CALLBACK="default"
    )
    assert "\nhere: " in outcome.output
    assert "\n  CPU  " in outcome.output


def test_many_hosts_are_a_line_each(tmp_path: Path) -> None:
    hosts = tuple(f"n{number}" for number in range(6))
    inventory, *options = local(*hosts)
    outcome = ansible(tmp_path, inventory, "playbooks/validate.yml", *options, *NOTHING, "--check")
    tail = outcome.output[outcome.output.rindex("\nhost ") :]
    rows = [line for line in tail.splitlines() if line.split(maxsplit=1)[:1] and line.split()[0] in hosts]
    assert len(rows) == 6
    assert "beside the report" in tail
    assert "  CPU  " not in outcome.output
    for host in hosts:
        assert (outcome.directory / RUN / f"{host}.txt").read_text().startswith(f"{host}: ")


def test_what_is_required_and_missing_stops(tmp_path: Path) -> None:
    inventory, *options = local("here")
    wanted = {"validate_measure": ["storage"], "validate_required": ["storage"], "validate_storage_path": str(tmp_path)}
    outcome = ansible(tmp_path, inventory, "playbooks/validate.yml", *options, "-e", json.dumps(wanted))
    assert outcome.status == 2
    assert "there is no file of 1 MiB or more to read" in outcome.output
    assert outcome.last_line.startswith("UNKNOWN: ")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"validate_measure": ["memory"], "validate_required": ["gpu"]}, "found gpu in validate_required alone"),
        ({"validate_measure": ["memroy"]}, "memroy"),
        ({"validate_requird": ["memory"]}, "validate_required"),
    ],
)
def test_bad_input_is_one_sentence(variables: dict, words: str, tmp_path: Path) -> None:
    inventory, *options = local("here")
    outcome = ansible(tmp_path, inventory, "playbooks/validate.yml", *options, "-e", json.dumps(variables))
    assert outcome.status == 2
    assert words in " ".join(outcome.output.split())
    assert "Traceback" not in outcome.output


EMPTY = {"all": {"children": {"nodes": {}}}}
EMPTY_AMONG_OTHERS = {"all": {"children": {"nodes": {}, "bmcs": {"hosts": {"b1": None}}}}}
WITHOUT = {"all": {"hosts": {"n1": None}}}


@pytest.mark.parametrize("playbook", [*STAGES, "../site.yml"])
def test_an_inventory_without_nodes_is_refused_and_not_passed_over(playbook: str, tmp_path: Path) -> None:
    inventories = [EMPTY_AMONG_OTHERS] if playbook in ("survey.yml", "validate.yml") else [WITHOUT]
    for number, content in enumerate(inventories):
        path = tmp_path / f"inventory{number}.yml"
        path.write_text(yaml.safe_dump(content))
        outcome = ansible(tmp_path, str(path), f"playbooks/{playbook}")
        assert outcome.status == 2, outcome.output
        assert f"Expected hosts in the group nodes, found none in {path}" in " ".join(outcome.output.split())


@pytest.mark.parametrize("playbook", ["validate.yml", "kernel.yml"])
def test_an_inventory_without_any_host_is_refused(playbook: str, tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump(EMPTY))
    outcome = ansible(tmp_path, str(path), f"playbooks/{playbook}")
    assert outcome.status == 2, outcome.output
    assert "Expected hosts in the group nodes" in outcome.output


def test_a_limit_does_not_help_an_inventory_without_nodes_past_the_refusal(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump(WITHOUT))
    assert ansible(tmp_path, str(path), "playbooks/kernel.yml", "--limit", "n1").status == 2


@pytest.mark.parametrize(
    ("content", "hosts"),
    [(WITHOUT, ["n1"]), ({"all": {"hosts": {"other": None}, "children": {"nodes": {"hosts": {"n1": None}}}}}, ["n1"])],
)
def test_the_hosts_of_validate(content: dict, hosts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump(content))
    outcome = ansible(tmp_path, str(path), "playbooks/validate.yml", "--list-hosts")
    assert outcome.status == 0
    assert [line.strip() for line in outcome.output.splitlines() if line.startswith("      ")] == hosts


@pytest.mark.parametrize(
    ("required", "override", "skips"),
    [
        ([], {}, True),
        ([], {"fail": 0.5}, True),
        ([], {"when_unlimited": "unknown"}, False),
        ([], {"kind": "minimum", "fail": 1e9}, False),
        (["memory"], {}, False),
    ],
)
def test_without_a_limit_the_memory_is_skipped_unless_somebody_wants_it_judged(
    required: list[str], override: dict, skips: bool
) -> None:
    text = yaml.safe_load((CHECKOUT / "roles/validate/vars/main.yml").read_text())["__validate_rules"]
    overrides = {"host_memory_bandwidth": override} if override else {}
    templar = Templar(DataLoader(), variables={"validate_required": required, "gates_rules_overrides": overrides})
    found = templar.template(trust_as_template(text))
    assert found == ({"host_memory_bandwidth": {"when_unlimited": "skip"}} if skips else {})
