"""What a person sees, and what is kept of a run, through ansible-playbook itself."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import jsonschema
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import console
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.live_line import LiveLine, RunningTasks

from tests.unit.playbook_run import RUN, play, run_playbook

RULES = {
    "memory": {"kind": "fraction_of_limit", "warn": 0.75, "fail": 0.6, "unit": "B/s", "title": "memory bandwidth"},
    "completion": {"kind": "equals", "expected": True, "title": "a real completion"},
}
MEMORY = {
    "name": "memory",
    "scope": "numa0",
    "value": "{{ 204.8e9 * fraction | default(0.8) }}",
    "unit": "B/s",
    "limit": 204.8e9,
    "cause": "{{ 'socket ' ~ 1 }}: 6 of 8 channels populated",
    "next_command": "dmidecode -t memory",
}


def gate(*measurements: object, name: str = "The memory is fast", **keywords: object) -> dict:
    return {"name": name, "plumbline.plumbline.gate": {"measurements": list(measurements)}, **keywords}


def command(text: str, name: str = "A command", **keywords: object) -> dict:
    return {"name": name, "ansible.builtin.command": text, **keywords}


def lines_with(output: str, words: str) -> list[str]:
    return [line for line in output.splitlines() if words in line]


def test_a_run_that_passes(tmp_path: Path) -> None:
    answer = {
        "name": "completion",
        "scope": "endpoint",
        "value": True,
        "conditions": {"question": "What is 2 + 2?", "answer": "It is 4."},
    }
    tasks = [
        {"name": "A fact is set", "ansible.builtin.set_fact": {"serving_endpoint": "http://127.0.0.1:8000/v1"}},
        {
            "name": "A file is there",
            "ansible.builtin.copy": {"content": "new\n", "dest": str(tmp_path / "file"), "mode": "0644"},
        },
        {"name": "Never", "ansible.builtin.command": "false", "when": "false"},
        {"name": "A word", "ansible.builtin.debug": {"msg": "a word to the reader"}},
        {"name": "A table", "ansible.builtin.debug": {"msg": ["name   value", "Turbo  Enabled"]}},
        gate(MEMORY, answer, {"name": "memory", "scope": "numa1", "skipped": "no such node"}),
        command("true", "The machine is restarted", tags=["reboot"]),
    ]
    plays = [play(tasks, "serving"), play([command("true", when="false")], "gpu_driver")]
    outcome = run_playbook(tmp_path, plays, "--diff", variables={"gates_rules": RULES})
    text = outcome.output
    assert outcome.status == 0, text
    assert "[1/2] serving: The serving stage  node1" in text
    assert "nothing to do here, because this does not hold: false" in text
    assert (
        "  OK          memory bandwidth (numa0): 163.8 GB/s, 80 % of the limit; required: at least 122.9 GB/s, 60 % of the limit"
        in text
    )
    assert "  SKIPPED     memory bandwidth (numa1): no such node" in text
    assert lines_with(text, "changed     A file is there [node1]")
    assert "+new" in text
    assert "              a word to the reader" in text
    assert "              name   value\n              Turbo  Enabled\n" in text  # a list of lines is text, and not JSON
    assert "A fact is set" not in text  # a task that changed nothing is noise
    assert "Never" not in text
    assert re.search(r"^node1\s+: ok=\d+\s+changed=2\s+unreachable=0\s+failed=0", text, re.MULTILINE)
    assert "Endpoint of node1: http://127.0.0.1:8000/v1" in text
    assert "answered: It is 4." in text
    assert "Restarts: 1" in text
    assert f"Report: {outcome.directory}/{RUN}/report.html" in text
    assert outcome.last_line == "OK: 3 checks on 1 host: 2 OK, 1 SKIPPED"
    assert outcome.kinds("node1") == ["check", "check", "check", "restart", "stage", "stage"]
    assert {path.name for path in (outcome.directory / RUN).iterdir()} == {
        "node1.jsonl",
        "report.html",
        "report.md",
        "junit.xml",
    }
    assert (outcome.directory / "latest").resolve() == outcome.directory / RUN


def test_the_tag_of_a_play_makes_no_restart_of_every_task_in_it(tmp_path: Path) -> None:
    outcome = run_playbook(
        tmp_path, [play([gate(MEMORY), command("true")], tags=["reboot"])], variables={"gates_rules": RULES}
    )
    assert "Restarts: 0" in outcome.output


def test_a_run_that_fails(tmp_path: Path, checkout: Path) -> None:
    leak = "echo the key is $KEY >&2; exit 3"
    tasks = [
        command("false", "Nobody minds", ignore_errors=True),
        {
            "name": "Mended",
            "block": [command("false", "Breaks")],
            "rescue": [command("true", "Mends", changed_when=False)],
        },
        gate({**MEMORY, "value": 50e9, "unit": "B/s"}, ignore_errors=True),
        {"name": "Leaks", "ansible.builtin.shell": leak, "environment": {"KEY": "{{ bmc_password }}"}},
    ]
    variables = {"gates_rules": RULES, "bmc_password": "hunter2-hunter2"}
    outcome = run_playbook(tmp_path, [play(tasks), play([command("true")], "later")], variables=variables)
    text = outcome.output
    assert outcome.status == 2
    assert (
        "CRITICAL    memory bandwidth (numa0): 50 GB/s is 24 % of the limit 204.8 GB/s, at least 60 % is required"
        in text
    )
    assert "              cause: socket 1: 6 of 8 channels populated" in text
    assert "              next:  dmidecode -t memory" in text
    assert "  FAILED      Leaks [node1]" in text
    assert "the key is ********" in text
    assert "hunter2" not in text
    assert "Traceback" not in text
    assert outcome.last_line == "CRITICAL: 1 check on 1 host: 1 failed task, 1 CRITICAL"
    failures = [record for record in outcome.evidence("node1") if record["kind"] == "failure"]
    assert [(record["task"], record["handled"]) for record in failures] == [("Breaks", True), ("Leaks", False)]
    assert failures[1]["message"].endswith("the key is ********")
    for path in (outcome.directory / RUN).iterdir():
        assert "hunter2" not in path.read_text()
    schema = jsonschema.Draft202012Validator(json.loads((checkout / "docs/evidence.schema.json").read_text()))
    for record in outcome.evidence("node1"):
        schema.validate(record)


def test_a_hidden_task_stays_hidden(tmp_path: Path) -> None:
    outcome = run_playbook(tmp_path, [play([command("cat /nonexistent/hunter2", "Hidden", no_log=True)])])
    assert outcome.status == 2
    assert "its output is hidden, because it may hold a secret (no_log)" in outcome.output
    assert "hunter2" not in outcome.output
    assert "hunter2" not in str(outcome.evidence("node1"))


def test_a_host_that_cannot_be_reached_has_a_report_too(tmp_path: Path) -> None:
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    outcome = run_playbook(
        tmp_path, [play([{"name": "It is there", "ansible.builtin.ping": None}], "survey")], variables=away
    )
    assert outcome.status == 4
    assert "  UNREACHABLE It is there [node1]" in outcome.output
    assert outcome.last_line == "CRITICAL: 0 checks on 1 host: 1 failed task"
    assert "the host cannot be reached" in (outcome.directory / RUN / "report.md").read_text()


def test_check_mode_judges_and_says_so(tmp_path: Path) -> None:
    tasks = [gate(MEMORY), command("true", "The machine is restarted", tags=["reboot"], check_mode=True)]
    outcome = run_playbook(tmp_path, [play(tasks)], "--check", variables={"gates_rules": RULES})
    assert outcome.status == 0, outcome.output
    assert "(check mode: nothing is changed)" in outcome.output
    assert outcome.last_line == "OK: 1 check on 1 host: 1 OK (check mode)"
    assert [(record["kind"], record["check_mode"]) for record in outcome.evidence("node1")] == [
        ("check", True),
        ("stage", True),
    ]


def test_a_run_that_only_stages_ends_neither_ok_nor_alarming(tmp_path: Path) -> None:
    outcome = run_playbook(tmp_path, [play([command("true", "A setting waits")], "bios")])
    assert outcome.status == 0, outcome.output
    assert outcome.last_line == "NOT JUDGED: 1 change staged, no gate ran; playbooks/verify.yml judges"


def test_what_is_alike_on_many_hosts_is_one_line(tmp_path: Path) -> None:
    hosts = tuple(f"node{number}" for number in range(1, 7))
    slow = "{{ 204.8e9 * (0.4 if inventory_hostname == 'node3' else 0.8) }}"
    tasks = [
        command("true", "All change"),
        gate({**MEMORY, "value": slow}),
        {"name": "All fail alike", "ansible.builtin.fail": {"msg": "{{ inventory_hostname }} has no disk"}},
    ]
    outcome = run_playbook(tmp_path, [play(tasks)], hosts=hosts, variables={"gates_rules": RULES})
    text = outcome.output
    assert lines_with(text, "changed     All change [node1, node2, node3, node4 and 2 more]")
    assert lines_with(text, "OK          memory bandwidth on 5 hosts: 163.8 GB/s")
    assert lines_with(text, "CRITICAL    memory bandwidth (numa0): 81.92 GB/s is 40 % of the limit")[0].endswith(
        "[node3]"
    )
    assert lines_with(text, "FAILED      All fail alike [node1, node2, node4, node5 and 1 more]")
    assert text.count("this host has no disk") == 1
    assert outcome.last_line == "CRITICAL: 6 checks on 6 hosts: 5 failed tasks, 1 CRITICAL, 5 OK"


def test_names_of_other_hosts_are_not_taken_for_this_one(tmp_path: Path) -> None:
    tasks = [
        {
            "name": "One for all",
            "ansible.builtin.fail": {"msg": "node1, node1-strict and node1.example differ"},
            "run_once": True,
            "ignore_errors": True,
        },
        {
            "name": "Each for itself",
            "ansible.builtin.fail": {"msg": "{{ inventory_hostname }} is not node1-strict or node1.example. It is x."},
        },
    ]
    outcome = run_playbook(tmp_path, [play(tasks)], hosts=tuple(f"node{number}" for number in range(1, 7)))
    assert "node1, node1-strict and node1.example differ" in outcome.output
    assert outcome.output.count("this host is not node1-strict or node1.example. It is x.") == 1


def test_two_hosts_are_told_apart(tmp_path: Path) -> None:
    tasks = [gate(MEMORY), gate({**MEMORY, "value": "{{ 204.8e9 * (0.4 if inventory_hostname == 'b' else 0.8) }}"})]
    outcome = run_playbook(tmp_path, [play(tasks)], hosts=("a", "b"), variables={"gates_rules": RULES})
    assert len(lines_with(outcome.output, "OK          memory bandwidth on 2 hosts")) == 1
    assert len(lines_with(outcome.output, "OK          memory bandwidth on 1 host")) == 1
    assert lines_with(outcome.output, "CRITICAL    memory bandwidth (numa0)")[0].endswith("[b]")
    each = run_playbook(tmp_path, [play(tasks)], "-v", hosts=("a", "b"), variables={"gates_rules": RULES})
    told = [
        line.rpartition("[")[2] for line in lines_with(each.output, "memory bandwidth (numa0)") if line.endswith("]")
    ]
    assert sorted(told)[:4] == ["a]", "a]", "b]", "b]"]


@pytest.mark.parametrize(
    ("environment", "colored"), [({}, False), ({"ANSIBLE_FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1"}, False)]
)
def test_colors(tmp_path: Path, environment: dict, colored: bool) -> None:
    outcome = run_playbook(tmp_path, [play([gate(MEMORY)])], variables={"gates_rules": RULES}, **environment)
    assert outcome.status == 0, outcome.output
    assert ("\x1b[" in outcome.output) is colored


def test_items_background_jobs_and_retries(tmp_path: Path) -> None:
    tasks = [
        command("test {{ item }} = a", "Items", loop=["a", "b"], ignore_errors=True),
        command("true", "Background", **{"async": 20, "poll": 1}),
        command(
            "test -e {{ flag }}",
            "Retries",
            register="r",
            until="r.rc == 0",
            retries=1,
            delay=1,
            vars={"flag": str(tmp_path / "no")},
        ),
    ]
    outcome = run_playbook(tmp_path, [play(tasks)])
    text = outcome.output
    assert outcome.status == 2
    assert "item b: " in text
    assert lines_with(text, "changed     Background [node1]")
    assert lines_with(text, "FAILED      Retries [node1]")
    assert "Traceback" not in text


def test_a_gate_without_its_run_refuses_with_one_sentence(tmp_path: Path) -> None:
    outcome = run_playbook(tmp_path, [play([gate(MEMORY)])], variables={"plumbline_run_id": ""})
    assert outcome.status == 2
    assert "The variable plumbline_run_id must be set before a gate can keep its evidence" in outcome.output


def test_evidence_that_cannot_be_written_stops_the_host(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    variables = {"gates_rules": RULES, "plumbline_artifacts_dir": str(tmp_path / "file")}
    outcome = run_playbook(tmp_path, [play([gate(MEMORY)])], variables=variables)
    assert outcome.status == 2
    assert "make plumbline_artifacts_dir a folder that you may write to" in outcome.output
    assert "Traceback" not in outcome.output


def test_what_still_runs_is_told_after_ten_seconds_and_then_every_thirty() -> None:
    tasks = RunningTasks()
    tasks.start("t", "The engine is installed", "node1", 0.0)
    tasks.start("t", "The engine is installed", "node2", 1.0)
    told = {second: lines for second in range(120) if (lines := tasks.notices(float(second)))}
    assert list(told) == [10, 40, 70, 100]
    assert told[10] == ["The engine is installed on node1, node2: 10 s so far"]
    tasks.note("t", "attempt 3 of 60")
    tasks.stop("t", "node1")
    assert tasks.notices(131.0) == ["The engine is installed on node2 (attempt 3 of 60): 2 min 10 s so far"]
    assert tasks.longest(131.0) == ("The engine is installed on node2 (attempt 3 of 60)", 130.0)
    tasks.stop("t", "node2")
    tasks.stop("t", "node2")
    assert (tasks.notices(500.0), tasks.longest(500.0)) == ([], None)


def test_a_live_line_leaves_nothing_behind() -> None:
    stream = io.StringIO()
    line = LiveLine(lambda text: None, stream, live=True)
    line.start("t", "x", "node1")
    line.end()
    line.end()
    assert line._thread is None
    stream.close()
    line._drawn = True
    line.clear()  # the terminal went away: no error


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"msg": "no space left"}, "no space left"),
        ({"msg": "non-zero return code", "rc": 1, "stderr": "a\nb"}, "non-zero return code\na\nb"),
        ({"msg": "MODULE FAILURE", "module_stderr": "boom"}, "MODULE FAILURE"),
        ({"msg": "", "stderr": "\n".join("abcdefgh")}, "d\ne\nf\ng\nh"),
        ({"results": [{"failed": False}, {"failed": True, "msg": "second"}]}, "second"),
        ({"censored": "hidden", "msg": "secret"}, "its output is hidden, because it may hold a secret (no_log)"),
        ({}, "it gave no reason"),
    ],
)
def test_one_message(result: dict, message: str) -> None:
    assert console.one_message(result) == message


def test_words() -> None:
    assert [console.elapsed(seconds) for seconds in (4.9, 65, 7384)] == ["4 s", "1 min 05 s", "2 h 03 min"]
    assert console.host_list(["b", "a", "c"], 2) == "a, b and 1 more"
    assert console.table([("a", "b" * 9)], ("x", "y"), 9) == ["x  y", "a  bbbbb…"]


def test_a_table_is_no_wider_than_the_screen_and_cuts_after_words() -> None:
    rows = [
        ("one", "a check whose name is long", "12 GB/s", "at least 10 GB/s"),
        ("two", "short", "a reason that runs on over the last column", ""),
        ("three", "short", "1 GB/s", "at least 10 GB/s"),
    ]
    head = ("stage", "check", "measured", "required")
    wide = console.table(rows, head, 200)
    assert "two    short                       a reason that runs on over the last column" in wide
    for width in (120, 60, 50, 40, 30):
        assert max(map(len, console.table(rows, head, width))) <= width
    narrow = console.table(rows, head, 50)
    assert "one    a check whose…   12 GB/s   at least 10 GB/s" in narrow  # the cell that stands alone gives way
    assert narrow[2].endswith("  a reason that runs on…")
    assert "at least 10 GB/s" not in "".join(console.table(rows, head, 30))
    assert console.table(rows, head, 50, {"check": 20})[1].startswith("one    a check whose name…")


def test_the_screen_is_the_terminal_or_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "93")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert console.screen_width() == 93
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert console.screen_width() == 120


def test_text_in_full_is_broken_between_words_only() -> None:
    long = "/opt/" + "x" * 40
    lines = console.wrapped(f"first line of words\nsee {long} there", 20, "- ", "  ")
    assert lines == ["- first line of", "  words", "  see", f"  {long}", "  there"]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("systemctl status plumbline-serving; journalctl -u plumbline-serving", True),
        ("nvidia-smi | tail", True),
        ("LANG=C grep . /proc/version", True),
        ("correct the key in firmware_floors", False),
        ("update it with the vendor's tool (Plumbline does not update firmware yet)", False),
        ("Reseat the card", False),
        ("", False),
    ],
)
def test_a_sentence_is_no_command(text: str, runs: bool) -> None:
    assert console.is_command(text) is runs


@pytest.mark.parametrize(
    ("check", "line"),
    [
        ({"measured": "yes", "required": "yes"}, "t (s): yes"),
        ({"measured": "2 GB/s", "required": "at least 1 GB/s"}, "t (s): 2 GB/s; required: at least 1 GB/s"),
        ({"measured": "2 GB/s", "required": "not judged", "rule": {"kind": "record"}}, "t (s): 2 GB/s; recorded"),
    ],
)
def test_a_bound_is_told_where_it_says_more_than_the_figure(check: dict, line: str) -> None:
    assert console.check_line({"title": "t", "scope": "s", "status": "OK", "rule": {}, **check}) == line
