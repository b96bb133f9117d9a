"""Power: the reset types, POST, the command behind them, and a PowerState that stays true."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.bmc.power import NullDriver, PowerError
from lab.bmc.testing import RunningBmc, running
from tests.unit.bmc_client import Client, message_keys


@pytest.fixture
def client() -> Iterator[Client]:
    with running() as bmc:
        yield Client(bmc)


def verbs(bmc: RunningBmc) -> list[str]:
    assert isinstance(bmc.driver, NullDriver)
    return list(bmc.driver.calls)


@pytest.mark.parametrize(
    ("reset_type", "expected", "power", "posts"),
    [
        ("On", [], "On", 0),
        ("ForceOff", ["off"], "Off", 0),
        ("GracefulShutdown", ["graceful-off"], "Off", 0),
        ("ForceRestart", ["off", "on"], "On", 1),
        ("GracefulRestart", ["graceful-off", "on"], "On", 1),
        ("PowerCycle", ["off", "on"], "On", 1),
    ],
)
def test_each_reset_type_does_what_it_says(
    client: Client, reset_type: str, expected: list[str], power: str, posts: int
) -> None:
    assert client.reset(reset_type).status_code == 204
    truth = client.bmc.settle()
    assert verbs(client.bmc) == expected
    assert (truth["power"], truth["resets"]) == (power, posts)
    assert client.json(client.system)["PowerState"] == power


def test_a_host_that_is_off_can_only_be_turned_on(client: Client) -> None:
    client.reset("ForceOff")
    client.bmc.settle()
    refused = client.reset("ForceRestart")
    assert refused.status_code == 409
    assert message_keys(refused) == ["ResourceInStandby"]
    assert client.reset("ForceOff").status_code == 204
    assert client.reset("On").status_code == 204
    client.bmc.settle()
    assert verbs(client.bmc) == ["off", "on"]


def test_requests_that_make_no_sense_are_refused(client: Client) -> None:
    action = f"{client.system}/Actions/ComputerSystem.Reset"
    assert message_keys(client.reset("Nmi")) == ["ActionParameterNotSupported"]
    assert message_keys(client.post(action, {})) == ["ActionParameterMissing"]
    assert message_keys(client.post(action, {"ResetType": 1})) == ["ActionParameterValueTypeError"]
    assert message_keys(client.post(action, {"ResetType": "On", "Delay": 1})) == ["ActionParameterUnknown"]
    assert verbs(client.bmc) == []


def test_during_post_the_host_is_not_up_and_a_second_reset_is_refused() -> None:
    with running(post_seconds=60) as bmc:
        client = Client(bmc)
        client.stage({"WorkLdConfig": "IO_SENSITIVE"})
        client.reset("ForceRestart")
        deadline = time.monotonic() + 20
        while verbs(bmc) != ["off"]:
            assert time.monotonic() < deadline
        body = client.json(client.system)
        assert body["BootProgress"]["LastState"] != "OSRunning"
        assert bmc.pending == {"WorkLdConfig": "IO_SENSITIVE"}
        assert message_keys(client.reset("ForceRestart")) == ["ResourceInUse"]


def test_an_interrupted_restart_is_finished_by_the_next_process(tmp_path: Path) -> None:
    state_file = str(tmp_path / "state.json")
    with running(post_seconds=60, state_file=state_file) as bmc:
        Client(bmc).stage({"WorkLdConfig": "IO_SENSITIVE"})
        Client(bmc).reset("PowerCycle")
    with running(state_file=state_file) as bmc:
        truth = bmc.settle()
        assert truth["power"] == "On"
        assert truth["active"]["WorkLdConfig"] == "IO_SENSITIVE"
        assert verbs(bmc) == ["on"]


SCRIPT = """
import sys, pathlib
root = pathlib.Path(sys.argv[1])
verb = sys.argv[2]
with (root / "calls").open("a") as calls:
    calls.write(verb + "\\n")
state = root / "node"
if verb == "status":
    print(state.read_text())
elif (root / "broken").exists():
    sys.exit("the node cannot be reached")
else:
    state.write_text(verb.removeprefix("graceful-") + " boot2")
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "power.py").write_text(SCRIPT)
    (tmp_path / "node").write_text("on boot1")
    return tmp_path


def command(node: Path) -> list[str]:
    return [sys.executable, str(node / "power.py"), str(node)]


def test_the_power_command_is_run_and_asked(node: Path) -> None:
    with running(power_command=command(node)) as bmc:
        client = Client(bmc)
        client.reset("ForceRestart")
        assert bmc.settle()["power"] == "On"
        calls = (node / "calls").read_text().split()
        assert [call for call in calls if call != "status"] == ["off", "on"]
        assert "status" in calls


def test_power_state_follows_a_node_that_somebody_else_stopped_or_restarted(node: Path) -> None:
    with running(power_command=command(node)) as bmc:
        bmc.service.timing.status_interval = 0.0
        client = Client(bmc)
        assert client.json(client.system)["PowerState"] == "On"
        client.stage({"WorkLdConfig": "IO_SENSITIVE"})
        (node / "node").write_text("off")
        assert client.json(client.system)["PowerState"] == "Off"
        assert bmc.pending
        (node / "node").write_text("on boot3")
        assert client.json(client.system)["PowerState"] == "On"
        assert bmc.active["WorkLdConfig"] == "IO_SENSITIVE"  # its boot went through POST
        client.stage({"WorkLdConfig": "BALANCE"})
        (node / "node").write_text("on boot4")  # rebooted from within, too fast to be seen off
        client.json(client.system)
        assert bmc.active["WorkLdConfig"] == "BALANCE"


def test_a_power_command_that_fails_is_reported_and_power_state_stays_true(node: Path) -> None:
    with running(power_command=command(node)) as bmc:
        client = Client(bmc)
        (node / "broken").touch()
        client.reset("ForceOff")
        truth = bmc.settle()
        assert truth["power"] == "On"
        assert "the node cannot be reached" in truth["last_power_error"]
        entries = client.json(f"{client.system}/LogServices/SEL/Entries")["Members"]
        assert any("ForceOff failed" in one["Message"] and one["Severity"] == "Critical" for one in entries)


def test_a_power_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with running(power_command=[str(tmp_path / "missing")]) as bmc:
        client = Client(bmc)
        client.reset("ForceOff")
        assert "cannot be started" in bmc.settle()["last_power_error"]


def test_a_driver_that_raises_in_the_middle_leaves_no_transition_behind() -> None:
    class Broken(NullDriver):
        async def run(self, verb: str) -> None:
            await super().run(verb)
            raise PowerError("no power today")

    with running(driver=Broken()) as bmc:
        client = Client(bmc)
        client.reset("ForceRestart")
        truth = bmc.settle()
        assert truth["last_power_error"] == "no power today"
        assert not truth["busy"]
