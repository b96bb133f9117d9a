"""The one restart: a host that is slow, that has another key, that says "up" too early, or that never comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.plumbline.plumbline.plugins.action import await_restart as plugin
from ansible_collections.plumbline.plumbline.plugins.callback import report
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import host_marks, ssh_host_key
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_console import read_console

from lab.bmc.testing import RunningBmc, running
from tests.unit.playbook_run import CHECKOUT, RUN, play, run_playbook
from tests.unit.redfish_support import login
from tests.unit.test_redfish_playbooks import WANTED, Site

OLD, NEW = "boot-1", "boot-2"
# ssh-keygen -lf of the key below.
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
PRINT = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
# As OpenSSH 9.2 prints it, through Ansible's connection plugin.
COMPLAINT = f"""Failed to connect to the host via ssh: @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
Someone could be eavesdropping on you right now (man-in-the-middle attack)!\r
It is also possible that a host key has just been changed.\r
The fingerprint for the ED25519 key sent by the remote host is\r
{PRINT}.\r
Please contact your system administrator.\r
Add correct host key in KNOWN_HOSTS to get rid of this message.\r
Offending ED25519 key in KNOWN_HOSTS:1\r
Host key for [10.0.0.7]:2222 has changed and you have requested strict checking.\r
Host key verification failed."""


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Machine(plugin.ActionModule):
    """The action with a machine that gives these answers: `(until second, boot identity or error)`."""

    def __init__(self, clock: Clock, answers: list[tuple[float, Any]], arguments: dict[str, Any]) -> None:
        self._clock, self._answers, self._arguments = clock, answers, arguments
        self._task = SimpleNamespace(check_mode=False)
        self._connection = SimpleNamespace(reset=lambda: None, _shell=SimpleNamespace(tmpdir="/tmp/x"))

    def validate_argument_spec(self, specification: dict[str, Any], **_more: Any) -> tuple[None, dict[str, Any]]:
        assert set(self._arguments) <= set(specification)
        return None, {**{name: one.get("default") for name, one in specification.items()}, **self._arguments}

    def _execute_module(self, **_arguments: Any) -> dict[str, Any]:
        found = next(answer for until, answer in self._answers if self._clock.now < until)
        if isinstance(found, Exception):
            raise found
        if isinstance(found, dict):
            return found
        return {"boot_identity": found, "hostname": "node7", "changed": False, "invocation": {}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(plugin, "time", clock)
    monkeypatch.setattr(plugin.ActionBase, "run", lambda *_: {})
    return clock


def wait(clock: Clock, answers: list[tuple[float, Any]], **arguments: Any) -> dict[str, Any]:
    machine = Machine(clock, answers, {"boot_identity": OLD, **arguments})
    return machine.run(task_vars={"inventory_hostname": "node7"})


FOREVER = float("inf")
SILENT = AnsibleConnectionFailure(
    "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.7 port 22: Connection refused"
)
CHANGED = AnsibleConnectionFailure(COMPLAINT)


def test_a_host_that_takes_fifteen_minutes_is_waited_for(clock: Clock) -> None:
    result = wait(clock, [(20, OLD), (900, SILENT), (FOREVER, NEW)])
    assert not result.get("failed")
    assert result["node"] == {"boot_identity": NEW, "hostname": "node7"}
    assert 900 <= result["elapsed_seconds"] < 910


def test_a_host_that_says_up_before_it_went_down_is_not_back(clock: Clock) -> None:
    # It never goes down.
    result = wait(clock, [(FOREVER, OLD)], timeout_seconds=60)
    assert result["failed"]
    assert "still runs the boot from before the restart" in result["msg"]
    assert result["last_boot_identity"] == OLD
    # It does, in the end.
    assert wait(clock, [(clock.now + 55, OLD), (FOREVER, NEW)], timeout_seconds=60)["node"]["boot_identity"] == NEW


@pytest.mark.parametrize(
    "answer",
    [
        SILENT,
        RuntimeError("banner"),
        {"failed": True, "msg": "Shell is not there"},
        {"unreachable": True, "msg": "no route"},
    ],
)
def test_a_host_that_stays_silent_fails_with_what_it_last_said(clock: Clock, answer: Any) -> None:
    result = wait(clock, [(FOREVER, answer)], timeout_seconds=1200, next_command="ansible-playbook site.yml")
    assert result["failed"]
    assert 1190 <= result["elapsed_seconds"] <= 1200
    assert result["msg"].startswith(
        "node7 was expected to be back with a new boot within 1200 s of its restart, found: "
    )
    assert result["msg"].endswith("next: ansible-playbook site.yml")
    assert "\n" not in result["msg"]


def test_a_host_key_that_changed_is_refused_in_one_sentence_long_before_the_timeout(clock: Clock) -> None:
    result = wait(clock, [(300, SILENT), (FOREVER, CHANGED)], timeout_seconds=1200)
    assert result["failed"]
    assert 420 <= result["elapsed_seconds"] < 440
    assert f"the ED25519 key {PRINT} (known until now from KNOWN_HOSTS, line 1)" in result["msg"]
    assert "ssh-keygen -R '[10.0.0.7]:2222' -f KNOWN_HOSTS" in result["msg"]
    assert "restart_host_key_fingerprints" in result["msg"]
    assert "\n" not in result["msg"]


def test_a_system_that_answers_with_its_own_key_on_the_way_is_not_the_last_word(clock: Clock) -> None:
    # It asks for the passphrase of the disks, for a minute.
    assert wait(clock, [(60, SILENT), (150, CHANGED), (200, SILENT), (FOREVER, NEW)])["node"]["boot_identity"] == NEW


def test_a_key_that_the_inventory_names_takes_the_old_ones_place(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("[10.0.0.7]:2222 ssh-ed25519 AAAAold\nother ssh-ed25519 AAAAother\n")
    calls: list[list[str]] = []

    def run(command: list[str]) -> tuple[int, str, str]:
        calls.append(command)
        if command[0] == "ssh-keygen":
            known.write_text("other ssh-ed25519 AAAAother\n")
        return (
            0,
            f"# 10.0.0.7:2222 SSH-2.0\n[10.0.0.7]:2222 ssh-ed25519 {KEY}\n[10.0.0.7]:2222 ssh-rsa AAAAforged\n",
            "",
        )

    monkeypatch.setattr(plugin, "_run", run)

    complaint = AnsibleConnectionFailure(COMPLAINT.replace("KNOWN_HOSTS", str(known)))
    answers: list[tuple[float, Any]] = [(FOREVER, complaint)]
    machine = Machine(clock, answers, {"boot_identity": OLD, "host_key_fingerprints": [PRINT]})
    ask = machine._execute_module
    machine._execute_module = lambda **more: ask(**more) if not calls else {"boot_identity": NEW}  # type: ignore[method-assign]
    result = machine.run(task_vars={"inventory_hostname": "node7"})
    assert (result["node"]["boot_identity"], result["host_key"]) == (NEW, PRINT)
    assert calls[0] == ["ssh-keyscan", "-T", "10", "-p", "2222", "--", "10.0.0.7"]
    # Only the key that the inventory names, and nobody else's line is touched.
    assert known.read_text() == f"other ssh-ed25519 AAAAother\n[10.0.0.7]:2222 ssh-ed25519 {KEY}\n"


def test_any_other_key_is_refused_although_the_inventory_names_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_run", lambda command: pytest.fail(f"{command} was run"))
    other = "SHA256:" + "A" * 43
    result = wait(clock, [(FOREVER, CHANGED)], host_key_fingerprints=[other])
    assert result["failed"]
    assert PRINT in result["msg"]


def test_what_is_no_fingerprint_is_refused_before_anything_is_waited_for(clock: Clock) -> None:
    result = wait(clock, [(FOREVER, NEW)], host_key_fingerprints=["aa:bb"])
    assert result["failed"]
    assert "found aa:bb: correct it" in result["msg"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_fingerprints_and_the_removal_of_a_key_are_those_of_openssh(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    public = (tmp_path / "key.pub").read_text().split()
    told = subprocess.run(
        ["ssh-keygen", "-lf", tmp_path / "key.pub"], check=True, capture_output=True, text=True
    ).stdout
    mine = ssh_host_key.fingerprint(public[1])
    assert mine == told.split()[1]
    assert ssh_host_key.FINGERPRINT.match(mine)
    known = tmp_path / "known_hosts"
    known.write_text(f"[10.0.0.7]:2222 {public[0]} {KEY}\n")
    change = ssh_host_key.ChangedKey("[10.0.0.7]:2222", "ED25519", mine, str(known), 1)

    def run(command: list[str]) -> tuple[int, str, str]:
        if command[0] == "ssh-keyscan":
            return 0, f"[10.0.0.7]:2222 {public[0]} {public[1]}\n", ""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert ssh_host_key.take_over(change, [mine], run) == ""
    assert known.read_text() == f"[10.0.0.7]:2222 {public[0]} {public[1]}\n"
    # known_hosts has it under another name than it is reached by.
    known.write_text(f"alias {public[0]} {KEY}\n")
    asked: list[list[str]] = []
    alias = ssh_host_key.ChangedKey("alias", "ED25519", mine, str(known), 1)
    assert (
        ssh_host_key.take_over(alias, [mine], lambda one: (asked.append(one), run(one))[1], ("10.0.0.7", "2222")) == ""
    )
    assert asked[0][-4:] == ["-p", "2222", "--", "10.0.0.7"]
    assert known.read_text() == f"alias {public[0]} {public[1]}\n"
    known.write_text(f"[10.0.0.7]:2222 {public[0]} {public[1]}\n")
    # Whoever answers ssh-keyscan with another key gets nothing.
    forged = ssh_host_key.take_over(change, [mine], lambda _: (0, f"[10.0.0.7]:2222 ssh-ed25519 {KEY}\n", ""))
    assert "could not be fetched" in forged
    assert known.read_text() == f"[10.0.0.7]:2222 {public[0]} {public[1]}\n"


# --- the console ---
class Documents:
    """A BMC that is nothing but documents."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self.documents = documents

    def system(self, _identity: str = "") -> dict[str, Any]:
        return dict(self.documents["/redfish/v1/Systems/system"])

    def get_optional(self, uri: str) -> dict[str, Any]:
        return dict(self.documents.get(uri, {}))


def console_documents(**logs: list[str]) -> dict[str, Any]:
    """Documents in bmcweb's form (openbmc/bmcweb, log services HostLogger and PostCodes)."""
    base = "/redfish/v1/Systems/system"
    listing = f"{base}/LogServices"
    documents: dict[str, Any] = {
        base: {
            "@odata.id": base,
            "PowerState": "On",
            "BootProgress": {"LastState": "MemoryInitializationStarted"},
            "LogServices": {"@odata.id": listing},
            "SerialConsole": {"SSH": {"ServiceEnabled": True, "Port": 2200}, "IPMI": {"ServiceEnabled": False}},
        },
        listing: {"Members": [{"@odata.id": f"{listing}/{name}"} for name in logs]},
    }
    for name, lines in logs.items():
        uri = f"{listing}/{name}"
        documents[uri] = {"@odata.id": uri, "Id": name, "Entries": {"@odata.id": f"{uri}/Entries"}}
        documents[f"{uri}/Entries"] = {
            "Members": [
                {
                    "@odata.id": f"{uri}/Entries/{index}",
                    "Id": str(index),
                    "Created": f"2026-01-01T00:00:{index:02d}Z",
                    "Message": line,
                }
                for index, line in enumerate(lines)
            ]
        }
    return documents


def test_the_consoles_last_lines_are_read_without_what_is_no_text() -> None:
    client = Documents(
        console_documents(
            EventLog=["Fan failed"],
            HostLogger=["GRUB", "\x1b[2J\x1b[31mLoading Linux 6.1 ...\x1b[0m\r", "", "Kernel panic"],
        )
    )
    found = read_console(client, "", 2)  # type: ignore[arg-type]
    assert (found["lines"], found["source"], found["reason"]) == (
        ["Loading Linux 6.1 ...", "Kernel panic"],
        "console log HostLogger",
        "",
    )
    assert (found["power_state"], found["boot_state"]) == ("On", "MemoryInitializationStarted")


def test_without_a_log_of_the_console_the_post_codes_say_how_far_it_came() -> None:
    documents = console_documents(PostCodes=["POST Code: 0x15", "POST Code: 0xB1"])
    entries = documents["/redfish/v1/Systems/system/LogServices/PostCodes/Entries"]
    entries["Members"].reverse()
    found = read_console(Documents(documents), "", 20)  # type: ignore[arg-type]
    assert found["lines"] == ["POST Code: 0x15", "POST Code: 0xB1"]
    assert found["source"] == "POST codes PostCodes"


def test_a_bmc_that_keeps_no_log_of_the_console_says_so() -> None:
    found = read_console(Documents(console_documents(EventLog=["Fan failed"])), "", 20)  # type: ignore[arg-type]
    assert found["lines"] == []
    assert found["reason"] == (
        "its BMC keeps no log of the console or of POST codes; it can be watched live over SSH on port 2200"
    )


def test_the_console_of_a_bmc_that_pages_is_read_at_its_end_and_not_in_full(tmp_path: Path) -> None:
    # As bmcweb has it: a thousand entries a page, no dates, $skip in the next link; and an older file beside it.
    log = tmp_path / "console.log"
    log.with_name("console.log.1").write_bytes(b"".join(b"old boot line %d\r\n" % number for number in range(5000)))
    log.write_bytes(b"GRUB\r\n\r\n\x1b[2J" + b"booting \xff\r\n" * 3000 + b"Kernel panic - not syncing: no root\r\n")
    asked: list[str] = []
    with running(console_log=str(log)) as simulator:
        with login(simulator) as client:
            get = client.get_optional
            client.get_optional = lambda uri: (asked.append(str(uri)), get(uri))[1]  # type: ignore[method-assign]
            found = read_console(client, "", 2)
            assert found["lines"] == ["booting \ufffd", "Kernel panic - not syncing: no root"]
            assert found["source"] == "console log HostLogger"
            pages = [uri for uri in asked if "/HostLogger/Entries" in uri]
            assert len(pages) == 2, pages
            every = get(f"{pages[0]}?$skip=7990&$top=5")
            assert [one["Id"] for one in every["Members"]] == ["7990", "7991", "7992", "7993", "7994"]
            assert get(every["Members"][0]["@odata.id"])["Message"].startswith("booting")
            # More than a page is asked for.
            assert len(read_console(client, "", 1500)["lines"]) == 1500
        log.write_text("")
        log.with_name("console.log.1").unlink()
        with login(simulator) as client:
            assert read_console(client, "", 2)["reason"] == "its BMC has written nothing into HostLogger"


@pytest.mark.parametrize("query", ["$skip=-1", "$top=x", "$filter=x"])
def test_the_simulators_console_refuses_a_query_that_it_does_not_know(tmp_path: Path, query: str) -> None:
    (tmp_path / "console.log").write_text("GRUB\n")
    with running(console_log=str(tmp_path / "console.log")) as simulator, login(simulator) as client:
        with pytest.raises(RedfishError, match=r"query parameter|501"):
            client.get(f"{simulator.service.paths.system}/LogServices/HostLogger/Entries?{query}")
        with pytest.raises(RedfishError):
            client.get(f"{simulator.service.paths.system}/LogServices/HostLogger/Entries/17")


# --- marks ---
def test_a_mark_is_put_read_told_and_removed(tmp_path: Path) -> None:
    assert host_marks.get(str(tmp_path), "node7") is None
    path = host_marks.put(str(tmp_path), "node7", run="R", reason="it is silent", console=["Kernel panic"])
    assert path.stat().st_mode & 0o777 == 0o640
    mark = host_marks.get(str(tmp_path), "node7")
    assert mark is not None
    sentence = host_marks.told(mark)
    assert sentence.startswith(f"node7 did not come back from its restart of {mark['since']}: it is silent.")
    assert "Its console ended with: Kernel panic" in sentence
    assert host_marks.get(str(tmp_path), "node8") is None
    assert host_marks.remove(str(tmp_path), "node7")
    assert not host_marks.remove(str(tmp_path), "node7")
    # A name that would leave the folder does not.
    assert host_marks.put(str(tmp_path), "../../x", reason="").parent == tmp_path / "marks"
    path.write_text("{")
    assert "cannot be read" in host_marks.told(host_marks.get(str(tmp_path), "node7") or {})


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


@pytest.fixture
def site(bmc: RunningBmc, tmp_path: Path) -> Site:
    return Site(tmp_path, bmc)


def test_a_host_that_hangs_in_post_is_marked_and_the_mark_goes_when_it_answers(site: Site) -> None:
    # Once for the way down, and once for the way up.
    site.bmc.inject("post_hangs", count=2)
    lost = site.run("bios", "restart", restart_allowed=True, restart_timeout_seconds=3, **WANTED)
    assert lost.status != 0
    assert "was expected to pass POST within 3 s, but it stands at MemoryInitializationStarted" in lost.output
    assert "Its BMC says: its power is On, boot state MemoryInitializationStarted." in lost.output
    assert "its BMC keeps no log of the console or of POST codes" in lost.output
    path = site.directory / "artifacts" / "marks" / "node1.json"
    mark = json.loads(path.read_text())
    assert (mark["because"], mark["boot_state"]) == ("bios", "MemoryInitializationStarted")
    # The next run says so at its beginning, and takes the mark away since the machine answers the survey.
    again = site.run("survey", survey=True)
    assert "node1 did not come back from its restart of" in again.output
    assert not path.exists()
    assert "did not come back" not in site.run("survey", survey=True).output


def test_a_machine_that_nothing_was_sent_to_is_not_marked(site: Site) -> None:
    run = site.run(
        "bios", "restart", restart_allowed=True, bmc_password="wrong", kernel_restart_required="reboot", **WANTED
    )
    assert run.status != 0
    assert not (site.directory / "artifacts" / "marks").exists()


def test_a_bmc_that_is_down_at_the_time_of_the_power_cycle_leaves_the_machine_as_it_is(site: Site) -> None:
    # bios has staged its values in this run; then nothing listens there any more.
    run = site.run("restart", restart_allowed=True, bios_restart_required="power_cycle", bmc_port=1)
    assert run.status != 0
    assert "TASK [A machine that nothing was sent to is where it was]" in run.output
    assert "https://127.0.0.1:1" in run.output
    assert "Traceback" not in run.output
    assert not (site.directory / "artifacts" / "marks").exists()
    assert site.bmc.truth()["resets"] == 0
    # It is there again: the next run makes up for it.
    again = site.run("bios", "restart", restart_allowed=True, restart_timeout_seconds=30, **WANTED)
    assert site.bmc.truth()["resets"] == 1, again.output[-2000:]


def test_the_other_hosts_go_on_without_the_one_that_was_lost(tmp_path: Path) -> None:
    console = {"lines": ["Loading Linux", "Kernel panic: password hunter2-secret"], "source": "console log HostLogger"}
    tasks = [
        {
            "name": "Lost",
            "plumbline.plumbline.restart_mark": {"reason": "node1 was silent.", "console": console},
            "when": "inventory_hostname == 'node1'",
        },
        {"name": "Goes on", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }} goes on"}},
    ]
    secret = {"bmc_password": "hunter2-secret"}
    outcome = run_playbook(tmp_path, [play(tasks, "restart")], hosts=("node1", "node2"), variables=secret)
    assert outcome.status != 0
    assert outcome.kinds("node2") != []
    mark = json.loads((tmp_path / "artifacts" / "marks" / "node1.json").read_text())
    assert mark["console"] == ["Loading Linux", "Kernel panic: password ********"]
    assert not (tmp_path / "artifacts" / "marks" / "node2.json").exists()
    assert "node1 was silent. The last lines of its console log HostLogger:" in outcome.output
    assert "hunter2-secret" not in outcome.output
    ended = [record for record in outcome.evidence("node2") if record.get("kind") == "stage"]
    assert [(record["failed"]) for record in ended] == [0]


def test_a_host_that_is_lost_outside_of_the_restart_is_marked_and_told(tmp_path: Path) -> None:
    # It answered its survey in this run; then nothing listens there any more.
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_timeout": 5}
    tasks = [
        {"name": "Surveyed", "ansible.builtin.set_fact": {"survey_node": {"boot_identity": OLD}}},
        {"name": "Staged", "ansible.builtin.command": "true", "vars": gone, "when": "inventory_hostname == 'node1'"},
        {"name": "Goes on", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }} goes on"}},
    ]
    outcome = run_playbook(tmp_path, [play(tasks, "kernel")], "-v", hosts=("node1", "node2"))
    assert outcome.status != 0
    path = tmp_path / "artifacts" / "marks" / "node1.json"
    mark = json.loads(path.read_text())
    assert (mark["because"], mark["lost"], mark["run"]) == ("kernel", True, RUN)
    assert mark["reason"].startswith("in the stage kernel, at 'Staged': ")
    assert "node1 answered before and cannot be reached any more: it is marked in" in outcome.output
    (failure,) = [record for record in outcome.evidence("node1") if record["kind"] == "failure"]
    assert failure["unreachable"]
    assert str(path) in failure["message"]
    told = (outcome.directory / RUN / "report.md").read_text()
    assert "cannot be reached any more: it is marked in" in told
    assert "/marks/node1.json until it answers a survey" in told
    assert "node2 goes on" in outcome.output
    assert not path.with_name("node2.json").exists()
    assert host_marks.told(mark).startswith("node1 could not be reached any more in the run of ")
    path.unlink()
    # One that never answered is no lost one, and a dry run marks nothing.
    assert run_playbook(tmp_path, [play(tasks[1:], "kernel")]).status != 0
    assert run_playbook(tmp_path, [play(tasks, "kernel")], "--check").status != 0
    assert not path.exists()


def test_plumbline_does_not_reboot_the_machine_that_it_runs_on(site: Site) -> None:
    run = site.run("restart", restart_allowed=True, kernel_restart_required="reboot")
    assert run.status != 0
    assert "node1 is this one (ansible_connection=local)" in run.output
    assert not (site.directory / "artifacts" / "marks").exists()


@pytest.mark.parametrize(
    ("action", "arguments", "counts"),
    [
        ("ansible.builtin.shell", {"_raw_params": "systemd-run --quiet systemctl reboot"}, True),
        ("ansible.builtin.command", {"cmd": "shutdown -r now"}, True),
        ("ansible.builtin.shell", {"_raw_params": "systemctl restart ssh"}, False),
    ],
)
def test_a_reboot_counts_as_the_runs_restart(action: str, arguments: dict[str, str], counts: bool) -> None:
    task = SimpleNamespace(action=action, args=arguments, tags=["restart", "reboot"])
    assert report._restarts(task, SimpleNamespace(tags=["restart", "reboot"])) is counts


def test_the_playbooks_own_reboot_counts() -> None:
    tasks = yaml.safe_load((CHECKOUT / "playbooks/tasks/restart.yml").read_text())
    every = [step for task in tasks for step in task.get("block", [task])]
    (line,) = [step["ansible.builtin.shell"] for step in every if "ansible.builtin.shell" in step]
    task = SimpleNamespace(action="ansible.builtin.shell", args={"_raw_params": line}, tags=[])
    assert report._restarts(task, SimpleNamespace(tags=["reboot"]))
