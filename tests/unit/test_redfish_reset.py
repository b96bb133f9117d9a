"""Power through the BMC: off before on, gentle before forced, waited for, and never sent in check mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_reset import PowerRequest, Resetter

from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


def act(bmc: RunningBmc, **request: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"poll_seconds": 0.02, "wait_timeout_seconds": 10, "graceful_timeout_seconds": 5}
    with login(bmc) as client:
        return Resetter(client, PowerRequest(**{**defaults, **request})).run()


def test_a_power_cycle_is_off_then_on_and_ends_after_post(bmc: RunningBmc) -> None:
    resets = bmc.truth()["resets"]
    result = act(bmc, state="power_cycled")
    assert result["sent"] == ["GracefulShutdown", "On"]
    assert (result["power_state"], result["changed"]) == ("On", True)
    assert result["boot_state"] in ("OSBootStarted", "OSRunning")
    assert bmc.truth()["resets"] == resets + 1


def test_a_machine_that_is_where_it_should_be_is_left_alone(bmc: RunningBmc) -> None:
    assert act(bmc, state="powered_on") == act(bmc, state="powered_on")
    result = act(bmc, state="powered_on")
    assert (result["changed"], result["sent"]) == (False, [])
    assert act(bmc, state="powered_off")["sent"] == ["GracefulShutdown"]
    assert act(bmc, state="powered_off")["changed"] is False
    assert act(bmc, state="powered_on")["sent"] == ["On"]


def test_check_mode_sends_nothing(bmc: RunningBmc) -> None:
    result = act(bmc, state="power_cycled", check_mode=True)
    assert (result["changed"], result["sent"]) == (True, [])
    assert bmc.truth()["resets"] == 0


def test_power_is_taken_away_where_the_system_does_not_shut_down(bmc: RunningBmc) -> None:
    bmc.inject("reset_ignored", count=1)
    assert act(bmc, state="powered_off", graceful_timeout_seconds=0)["sent"] == ["GracefulShutdown", "ForceOff"]


def test_a_reset_type_that_is_not_offered_is_refused_with_those_that_are(bmc: RunningBmc) -> None:
    with pytest.raises(RedfishError, match=r'does not offer the reset type "Explode": expected one of .*ForceOff'):
        act(bmc, reset_type="Explode")


def test_a_raw_reset_type_is_sent_as_it_is(bmc: RunningBmc) -> None:
    assert act(bmc, reset_type="ForceOff")["power_state"] == "Off"


def test_a_machine_that_does_not_come_on_is_named_with_what_was_tried(bmc: RunningBmc) -> None:
    act(bmc, state="powered_off")
    bmc.inject("reset_ignored", count=1)
    with pytest.raises(RedfishError, match=r"expected to be On within 0 s after On, but its power state is Off"):
        act(bmc, state="powered_on", wait_timeout_seconds=0)


def test_post_that_does_not_end_is_named_with_where_it_stands(bmc: RunningBmc) -> None:
    bmc.inject("slow_reset", seconds=5)
    with pytest.raises(RedfishError, match=r"expected to pass POST within 1 s, but it stands at \w+"):
        act(bmc, reset_type="ForceRestart", wait_timeout_seconds=1)


def test_a_bmc_that_is_away_during_the_restart_is_waited_for(bmc: RunningBmc) -> None:
    act(bmc, state="powered_off")
    with login(bmc) as client:
        resetter = Resetter(client, PowerRequest(state="powered_on", poll_seconds=0.05, wait_timeout_seconds=20))
        bmc.inject("bmc_reboot", seconds=0.5)
        assert resetter.run()["power_state"] == "On"


def test_a_bmc_that_is_away_as_it_is_told_is_told_again(bmc: RunningBmc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a BMC that blinks between off and on leaves the machine off."""
    with login(bmc) as client:
        post = client.post

        def away_at_on(path: str, body: dict[str, Any]) -> Any:
            if body == {"ResetType": "On"} and not told:
                told.append(path)
                raise RedfishError("no answer", transient=True)
            return post(path, body)

        told: list[str] = []
        monkeypatch.setattr(client, "post", away_at_on)
        resetter = Resetter(client, PowerRequest(state="power_cycled", poll_seconds=0.02, wait_timeout_seconds=10))
        result = resetter.run()
        assert told
    assert (result["sent"], result["power_state"]) == (["GracefulShutdown", "On"], "On")


def test_a_machine_that_was_left_off_is_named(bmc: RunningBmc, monkeypatch: pytest.MonkeyPatch) -> None:
    with login(bmc) as client:
        post = client.post

        def gone_at_on(path: str, body: dict[str, Any]) -> Any:
            if body == {"ResetType": "On"}:
                raise RedfishError("no answer", transient=True)
            return post(path, body)

        monkeypatch.setattr(client, "post", gone_at_on)
        resetter = Resetter(client, PowerRequest(state="power_cycled", poll_seconds=0.02, wait_timeout_seconds=1))
        with pytest.raises(RedfishError, match="no answer; the machine was sent GracefulShutdown and may be off"):
            resetter.run()


def test_without_two_steps_a_single_reset_type_does_it(bmc: RunningBmc) -> None:
    allowed = bmc.service.power.allowed
    allowed[:] = ["ForceRestart", "PowerCycle"]
    assert act(bmc, state="power_cycled")["sent"] == ["PowerCycle"]
    allowed[:] = ["Nmi"]
    with pytest.raises(RedfishError, match="offers no reset type for a power cycle: it allows Nmi"):
        act(bmc, state="power_cycled")
