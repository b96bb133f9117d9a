"""Another model takes over under load and no request fails; a bad one never does; a full disk and a restarted host change nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.conftest import CHECKOUT, Lab
from tests.e2e.test_3_model import damaged
from tests.e2e.test_4_serving import PLAYBOOK, READY_WITHIN_SECONDS, UNIT, Api, extra, properties

pytestmark = pytest.mark.lab

UPGRADE_UNIT = "plumbline-serving-upgrade.service"
PROGRAM = CHECKOUT / "tests" / "e2e" / "load_on_node.py"
# The same model in another type is another revision.
OTHER_MODEL = {"model_dtype": "float32"}


@pytest.fixture(scope="module")
def restored(lab: Lab) -> Iterator[None]:
    """The node serves as the inventory says afterwards, whatever a test did."""
    yield
    outcome = lab.playbook("site.yml", "--tags", "model,serving", timeout_seconds=1800)
    assert outcome.returncode == 0, outcome.output[-3000:]


@pytest.fixture
def api(lab: Lab, restored: None) -> Api:
    return Api(lab)


class Load:
    """Requests on the node, for as long as the block of the context lasts."""

    def __init__(self) -> None:
        self.answered: dict[str, int] = {}
        self.failed: list[Any] = []
        self.longest = 0.0


@contextmanager
def load(lab: Lab, api: Api, threads: int = 3) -> Iterator[Load]:
    """Send requests through the gateway, which knows both ports, until the block ends."""
    lab.node(f"cat >/root/load.py <<'END'\n{PROGRAM.read_text()}\nEND")
    port = json.loads((CHECKOUT / "lab" / ".state" / "lab.json").read_text())["gateway_port"]
    urls = [f"https://127.0.0.1:{port}/v1"]
    seen = Load()
    lab.node("systemctl reset-failed plumbline-test-load 2>/dev/null; rm -f /root/load.json")
    words = f"/root/load.py 1700 {threads} {api.model} {api.key} {' '.join(urls)}"
    # Limited, so that nothing outlives a test that fails.
    lab.node(
        "systemd-run --quiet --unit=plumbline-test-load -p RuntimeMaxSec=1800 -p StandardOutput=truncate:/root/load.json "
        f"/usr/bin/python3 {words}"
    )
    try:
        yield seen
    finally:
        lab.node("systemctl kill --signal=TERM plumbline-test-load; true")
        text = lab.node(
            "for i in $(seq 120); do systemctl is-active -q plumbline-test-load || break; sleep 1; done; cat /root/load.json"
        )
        found = json.loads(text)
        seen.answered, seen.failed, seen.longest = found["answered"], found["failed"], found["longest_seconds"]
        print(f"load: {found}")


# More than the notice before a drain lets pass on a fast machine, less than serving_drain_seconds on a slow one.
STORY_TOKENS = 250


def unit_file(lab: Lab) -> str:
    return lab.node(f"sed -n 's/^model_path=//p' /etc/systemd/system/{UNIT}")


def upgrade(lab: Lab, **more: object) -> Any:
    return lab.playbook("site.yml", "--tags", "model,serving", *extra(**OTHER_MODEL, **more), timeout_seconds=1800)


def test_another_model_takes_over_under_load_and_no_request_fails(lab: Lab, api: Api) -> None:
    before = unit_file(lab)
    with load(lab, api) as seen:
        outcome = upgrade(lab)
        assert outcome.returncode == 0, outcome.output[-3000:]
    assert seen.failed == []
    assert sum(seen.answered.values()) > 0
    # Not by waiting: both served in turn, so that no answer took as long as a start.
    assert seen.longest < 20
    assert unit_file(lab) != before
    assert "how the new model or engine took over (plumbline-serving.service): beside" in outcome.output
    assert "Paris" in api.ask()
    # Nothing of the upgrade is left, and a second run changes nothing.
    assert lab.node(f"systemctl show -p LoadState --value {UPGRADE_UNIT}") == "not-found"
    assert len(lab.node("pgrep VLLM::EngineCor").split()) == 1
    again = upgrade(lab)
    assert again.recap()["changed"] == 0, again.output[-3000:]


def test_an_upgrade_that_was_cut_off_is_made_good_by_the_next_run(lab: Lab, api: Api) -> None:
    """Back to the inventory's model; the controller dies while the new one starts."""
    before, pid = unit_file(lab), properties(lab, "MainPID")["MainPID"]
    command = ["ansible-playbook", "-i", "inventories/lab", "site.yml", "--tags", "model,serving"]
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=lab.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while lab.node(f"systemctl show -p ActiveState --value {UPGRADE_UNIT}") != "activating":
            assert run.poll() is None, "the run ended before there was an upgrade to cut off"
            assert time.monotonic() < deadline
            time.sleep(1)
        os.killpg(run.pid, signal.SIGKILL)
    # What it started on the node would go on by itself.
    lab.node("pkill -KILL -u root -f '^/usr/bin/python3( .*AnsiballZ_.*)?$'; true")
    # The old one serves, and is the one that would be started again.
    assert (unit_file(lab), properties(lab, "MainPID")["MainPID"]) == (before, pid)
    assert "Paris" in api.ask()
    outcome = lab.playbook("site.yml", "--tags", "model,serving", timeout_seconds=1800)
    assert outcome.returncode == 0, outcome.output[-3000:]
    assert unit_file(lab) != before
    assert lab.node(f"systemctl show -p LoadState --value {UPGRADE_UNIT}") == "not-found"
    assert "Paris" in api.ask()


def test_a_bad_new_model_never_takes_over(lab: Lab, api: Api) -> None:
    """Nonsense that got past every earlier check."""
    before, pid = unit_file(lab), properties(lab, "MainPID")["MainPID"]
    made, target = str(damaged(lab, before, "tied")["model_source"]), "/opt/plumbline/damaged-tied"
    try:
        # The unit has a /var/tmp of its own.
        lab.node(f"mv {made} {target} && chmod -R a+rX {target}")
        bad = {"model_path": target, "model_manifest_sha256": "0" * 64, "model_verify_command": "/bin/true"}
        with load(lab, api, threads=2) as seen:
            options = {"dtype": "bfloat16"}
            outcome = lab.playbook(PLAYBOOK, *extra(**bad, model_serving_options=options))
        outcome.refused_with(
            "the new model or engine did not become ready", "equally likely", "goes on serving the old one"
        )
        assert seen.failed == []
        assert sum(seen.answered.values()) > 0
        assert (unit_file(lab), properties(lab, "MainPID")["MainPID"]) == (before, pid)
        assert lab.node(f"systemctl show -p LoadState --value {UPGRADE_UNIT}") == "not-found"
        # In place there is a gap, but it ends with the old one.
        outcome = lab.playbook(PLAYBOOK, *extra(**bad, model_serving_options=options, serving_upgrade="in_place"))
        outcome.refused_with("equally likely", "the old one was put back and serves again")
        assert unit_file(lab) == before
        assert "Paris" in api.ask()
    finally:
        lab.node(f"rm -rf {made} {target}")


def test_a_stop_finishes_what_runs_and_refuses_what_comes(lab: Lab, api: Api) -> None:
    """The middleware says 503 with Retry-After; systemd waits for the answers that run."""
    lines: list[bytes] = []

    def story() -> None:
        messages = [{"role": "user", "content": "Tell a long story."}]
        body: dict[str, object] = {"messages": messages, "max_tokens": STORY_TOKENS, "ignore_eos": True, "stream": True}
        with urllib.request.urlopen(api.request(body), timeout=120) as response:
            lines.extend(line for line in response if line.startswith(b"data: "))

    thread = threading.Thread(target=story)
    thread.start()
    try:
        time.sleep(1)
        lab.node(f"systemctl stop --no-block {UNIT}")
        refusal: urllib.error.HTTPError | None = None
        while refusal is None:
            # Until the drain begins (serving_notice_seconds) requests are still taken.
            try:
                api.ask()
            except urllib.error.HTTPError as error:
                refusal = error
        assert refusal.code == 503
        assert int(refusal.headers["Retry-After"]) > 0
        assert json.load(refusal)["error"]
        thread.join(120)
        # Each token is a piece of its own; the end mark is the last.
        assert len(lines) >= STORY_TOKENS
        assert lines[-1].strip() == b"data: [DONE]"
        assert "drained in" in lab.node(f"journalctl -u {UNIT} -o cat --no-pager -n 200")
    finally:
        thread.join(120)
        lab.node(f"systemctl start {UNIT}")
    assert "Paris" in api.ask()


def test_a_full_disk_does_not_keep_a_killed_engine_from_coming_back(lab: Lab, api: Api) -> None:
    """Every place that the unit may write to is a file system without a free byte."""
    places = "/var/lib/plumbline-serving /var/cache/plumbline-serving /tmp /var/tmp /var/log"
    fill = "dd if=/dev/zero of=$place/full bs=4096 2>/dev/null"
    try:
        lab.node(f"for place in {places}; do mount -t tmpfs -o size=64k,mode=1777 full $place; {fill}; done; true")
        lab.node("chown plumbline-serving: /var/lib/plumbline-serving /var/cache/plumbline-serving")
        assert "Paris" in api.ask()
        before = properties(lab, "MainPID")["MainPID"]
        lab.node(f"kill -KILL {before}")
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while True:
            now = properties(lab, "MainPID", "ActiveState")
            if now["ActiveState"] == "active" and now["MainPID"] != before:
                break
            assert time.monotonic() < deadline, lab.node(f"journalctl -u {UNIT} -n 30 --no-pager", check=False)
            time.sleep(2)
        assert "Paris" in api.ask()
    finally:
        lab.node(f"for place in {places}; do umount -l $place; done; true")


def test_after_a_restart_of_the_host_it_answers_by_itself(lab: Lab, api: Api) -> None:
    boot = lab.node("stat -c %Y /proc/1")
    outcome = lab.run("lab/power", "cycle")
    assert outcome.returncode == 0, outcome.output
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while True:
        now = lab.run(
            "python", "-m", "lab", "shell", "--", "sh", "-c", f"stat -c %Y /proc/1; systemctl is-active {UNIT}"
        ).output.split()
        if len(now) == 2 and now[0] != boot and now[1] == "active":
            break
        assert time.monotonic() < deadline, now
        time.sleep(2)
    # Active means ready: the very first question is answered.
    assert "Paris" in api.ask()
