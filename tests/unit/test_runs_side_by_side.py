"""Runs that are cut off, and two runs at once, through ansible-playbook itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import run_claims

from tests.unit.playbook_run import CHECKOUT, RUN, play, run_playbook

GATE = {
    "name": "A figure is judged",
    "plumbline.plumbline.gate": {
        "measurements": [{"name": "figure", "scope": "host", "value": 2, "unit": "count"}],
        "rules": {"figure": {"kind": "minimum", "fail": 1, "unit": "count"}},
    },
}
PREFLIGHT = {"name": "The inventory is sound", "plumbline.plumbline.preflight": None}


def started(tmp_path: Path, tasks: list) -> subprocess.Popen:
    """Start a run of the stage bios on node1 in a session of its own."""
    known = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "plumbline_run_id": RUN,
        "plumbline_artifacts_dir": str(tmp_path / "artifacts"),
    }
    (tmp_path / "first-inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": {"node1": {}}, "vars": known}}))
    (tmp_path / "first.yml").write_text(yaml.safe_dump([play(tasks, "bios")], sort_keys=False))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    return subprocess.Popen(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "-i",
            tmp_path / "first-inventory.yml",
            tmp_path / "first.yml",
        ],
        cwd=CHECKOUT,
        env={**clean, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.1)


def test_a_run_that_is_interrupted_has_a_report_that_says_so(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    waiting = {"name": "A long task runs", "ansible.builtin.shell": f"touch {mark}; sleep 50"}
    run = started(tmp_path, [GATE, waiting])
    try:
        wait_for(mark)
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=60)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode != 0
    assert "Traceback" not in output
    assert "ended early, in the stage bios" in output
    assert "task: :" not in output
    assert "bios: the run: the run was ended early" in output
    records = [json.loads(line) for line in (tmp_path / "artifacts" / RUN / "node1.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["check", "stage", "failure"]
    assert (tmp_path / "artifacts" / RUN / "report.html").exists()
    assert output.strip().splitlines()[-1].startswith("CRITICAL")


def test_a_host_that_another_run_works_on_is_refused(tmp_path: Path) -> None:
    mark, done = tmp_path / "mark", tmp_path / "done"
    waiting = {
        "name": "A long task runs",
        "ansible.builtin.shell": f"touch {mark}; while ! test -e {done}; do sleep 0.2; done",
    }
    run = started(tmp_path, [PREFLIGHT, waiting])
    try:
        wait_for(mark)
        second = run_playbook(tmp_path, [play([PREFLIGHT, GATE], "bios")], hosts=("node1", "node2"))
        looks = run_playbook(tmp_path, [play([PREFLIGHT], "survey")])
        checks = run_playbook(tmp_path, [play([PREFLIGHT], "bios")], "--check")
        done.touch()
        output, _ = run.communicate(timeout=60)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, output
    assert second.status != 0
    assert "Expected node1 to be free, but first.yml of user" in " ".join(second.output.split())
    assert second.kinds("node2")[0] == "check", "the other host goes on"
    assert (looks.status, checks.status) == (0, 0), "looking needs no turn"
    again = run_playbook(tmp_path, [play([PREFLIGHT], "bios")])
    assert again.status == 0, "a run that has ended holds nothing"
    assert not (tmp_path / "artifacts" / run_claims.FILE_NAME).exists()


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "50"]) as process:
        run_claims.claim(str(tmp_path), ["node1", "node2"], "site.yml", process.pid)
        other = run_claims.holder(str(tmp_path), "node1", os.getpid())
        assert other is not None
        assert other["pid"] == process.pid
        assert run_claims.holder(str(tmp_path), "node1", process.pid) is None, "one's own claim is no obstacle"
        assert run_claims.holder(str(tmp_path), "node3", os.getpid()) is None
        run_claims.claim(str(tmp_path), ["node2", "node3"], "bios.yml")
        assert run_claims.holder(str(tmp_path), "node2", 1)["pid"] == process.pid, "what is taken stays taken"
        assert run_claims.holder(str(tmp_path), "node3", 1)["pid"] == os.getpid()
        process.kill()
    assert run_claims.holder(str(tmp_path), "node1", os.getpid()) is None
    run_claims.release(str(tmp_path))
    assert not (tmp_path / run_claims.FILE_NAME).exists()


def test_a_number_that_went_to_another_process_claims_nothing(tmp_path: Path) -> None:
    run_claims.claim(str(tmp_path), ["node1"], "site.yml")
    path = tmp_path / run_claims.FILE_NAME
    claims = json.loads(path.read_text())
    claims[0]["started"] = "1"
    path.write_text(json.dumps(claims))
    assert run_claims.holder(str(tmp_path), "node1", 1) is None


@pytest.mark.parametrize("text", ["", "{", "[1, null]", '{"pid": 1}', '[{"pid": "1", "hosts": []}]', '[{"pid": 1}]'])
def test_a_damaged_file_claims_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / run_claims.FILE_NAME).write_text(text)
    assert run_claims.holder(str(tmp_path), "node1", os.getpid()) is None
    run_claims.claim(str(tmp_path), ["node1"], "site.yml")
    assert run_claims.holder(str(tmp_path), "node1", 1)["hosts"] == ["node1"]
