"""Another model or engine takes over: beside or in place, and whatever a run that was cut off left is made good. systemd is played."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import serving_steward
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_steward import (
    Steward,
    StewardError,
    Texts,
    Tools,
    Unit,
    write_whole,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_upgrade import (
    BESIDE,
    IN_PLACE,
    NONE,
    RESTART,
    START,
    Decision,
    Found,
    UpgradeRefusedError,
    Wanted,
    decide,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import parse_show

UNIT, BESIDE_UNIT = "plumbline-serving.service", "plumbline-serving-upgrade.service"
WANTED = Wanted("c2", "k", "engine model-b", "u2")


def found(active: str, configuration: str = "", serves: str = "", text: str = "text", pid: int = 7) -> Found:
    state = parse_show(
        f"LoadState=loaded\nActiveState={active}\nSubState={'running' if active == 'active' else 'dead'}\nMainPID={pid}\n"
        "UnitFileState=enabled\n"
    )
    record = (
        {"configuration": configuration, "key_sha256": "k", "serves": serves, "main_pid": 7} if configuration else {}
    )
    return Found(state, record, text)


OLD = found("active", "c1", "engine model-a")
NEW = found("active", "c2", "engine model-b")
GONE = found("inactive", text="")


@pytest.mark.parametrize(
    ("unit", "beside", "how", "more"),
    [
        (NEW, GONE, NONE, {}),
        # Cut off after the unit was ready again: what is left is ended.
        (NEW, found("active", "u2", "engine model-b"), NONE, {"end_beside": True}),
        (NEW, found("inactive"), NONE, {"end_beside": True}),
        # Other options are a restart; a unit that does not serve has nothing to spare.
        (found("active", "c1", "engine model-b"), GONE, RESTART, {}),
        (found("inactive"), GONE, START, {}),
        (found("activating"), GONE, START, {}),
        # It runs, but has not answered rightly since it was started.
        (found("active", "c1", "engine model-a", pid=8), GONE, RESTART, {}),
        (OLD, GONE, BESIDE, {"start_beside": True, "end_beside": True}),
        # Cut off while the new one started, or after it was ready.
        (OLD, found("activating"), BESIDE, {"start_beside": True, "end_beside": True}),
        (OLD, found("active", "u2", "engine model-b"), BESIDE, {"start_beside": False, "end_beside": True}),
        # The inventory has changed since that run.
        (OLD, found("active", "u1", "engine model-c"), BESIDE, {"start_beside": True, "end_beside": True}),
        # Cut off while the unit was restarted: the one beside serves on until it is ready.
        (
            found("inactive"),
            found("active", "u2", "engine model-b"),
            START,
            {"end_beside": True, "end_beside_first": False},
        ),
    ],
)
def test_what_is_done(unit: Found, beside: Found, how: str, more: dict[str, bool]) -> None:
    decision = decide(unit, beside, WANTED)
    assert decision.how == how
    for name, value in more.items():
        assert getattr(decision, name) is value, name


def with_(**more: Any) -> Wanted:
    return Wanted(**{**WANTED.__dict__, **more})


def test_where_memory_does_not_hold_two() -> None:
    figures = {"fits": False, "arithmetic": "twice 60 GiB against 80 GiB"}
    decision = decide(OLD, GONE, with_(**figures))
    assert (decision.how, decision.because) == (IN_PLACE, "memory does not hold two (twice 60 GiB against 80 GiB)")
    with pytest.raises(UpgradeRefusedError, match=r"twice 60 GiB against 80 GiB.*set serving_upgrade to in_place"):
        decide(OLD, GONE, with_(mode="beside", **figures))
    # What a cut-off run left would keep the unit from starting.
    assert decide(found("inactive"), found("active", "u1", "x"), with_(**figures)).end_beside_first
    assert decide(OLD, GONE, with_(mode="in_place")).how == IN_PLACE


def test_a_unit_of_an_earlier_plumbline_tells_by_its_file() -> None:
    """Its record does not say what it serves."""
    text = "Environment=PLUMBLINE_CONFIGURATION=c1\n[X-Plumbline]\nengine_id=engine\nmodel_path=model-b\nmodel_manifest_sha256=m\n"
    wanted = with_(serves="engine model-b m")
    assert decide(found("active", "c1", "", text), GONE, wanted).how == RESTART
    assert decide(found("active", "c1", "", text), GONE, with_(serves="engine model-b other")).how == BESIDE
    # The file is no longer the one that was started: it could be anything that runs.
    assert decide(found("active", "c0", "", text), GONE, wanted).how == BESIDE


def test_without_a_unit_beside_every_change_is_a_restart() -> None:
    assert decide(OLD, None, WANTED).how == RESTART


# --- what is done, with a systemd that is played -------------------------------------------------------------------------


@dataclass
class Played:
    """Units become what `outcomes` says when they are restarted: active, or failed with a line in the journal."""

    folder: Path
    states: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, list[str]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    starts: int = 0
    line: str = ""

    def run(self, command: list[str]) -> tuple[int, str, str]:
        program, *arguments = command
        if program == "journalctl":
            return 0, self.line, ""
        verb, name = arguments[0], arguments[-1]
        if verb == "show":
            return 0, self.states.get(arguments[1], "LoadState=loaded\nActiveState=inactive\n"), ""
        self.calls.append(" ".join(arguments))
        if verb == "restart":
            self.starts += 1
            # What is started is what its file says at that moment.
            text = (self.folder / "units" / name).read_text()
            outcome = "failed" if text in self.outcomes.get("bad", []) else "active"
            self.states[name] = (
                f"LoadState=loaded\nActiveState={outcome}\nSubState={'running' if outcome == 'active' else 'failed'}\n"
                f"InvocationID=i{self.starts}\nMainPID={self.starts}\nUnitFileState=enabled\n"
            )
        elif verb == "stop":
            self.states[name] = "LoadState=loaded\nActiveState=inactive\n"
        return 0, "", ""

    def text(self, name: str) -> str:
        path = self.folder / "units" / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(serving_steward, "POLL_SECONDS", 0.01)
    systemd = Played(tmp_path)
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / UNIT).write_text("old")
    systemd.states[UNIT] = (
        "LoadState=loaded\nActiveState=active\nSubState=running\nInvocationID=i0\nMainPID=7\nUnitFileState=enabled\n"
    )
    (tmp_path / "ready.json").write_text(
        json.dumps({"configuration": "c1", "key_sha256": "k", "serves": "engine model-a", "main_pid": 7})
    )
    return systemd


def steward(played: Played) -> Steward:
    tools = Tools(played.run, "systemctl", "journalctl", played.folder / "units")
    return Steward(
        Unit(tools, UNIT, played.folder / "ready.json"),
        Unit(tools, BESIDE_UNIT, played.folder / "beside" / "ready.json"),
        Texts("new", "new beside"),
        5,
        0,
        played.folder / "previous",
    )


def upgrade(played: Played, wanted: Wanted = WANTED) -> Decision:
    one = steward(played)
    assert one.beside
    before, beside = one.unit.find(), one.beside.find()
    decision = decide(before, beside, wanted)
    one.carry_out(decision, before, beside)
    return decision


def test_beside_the_old_one_is_touched_after_the_new_one_was_ready(played: Played) -> None:
    assert upgrade(played).how == BESIDE
    assert played.calls == [
        "daemon-reload",
        f"restart --no-block {BESIDE_UNIT}",
        "daemon-reload",
        f"restart --no-block {UNIT}",
        f"stop {BESIDE_UNIT}",
        "daemon-reload",
        f"reset-failed {BESIDE_UNIT}",
    ]
    assert (played.text(UNIT), played.text(BESIDE_UNIT)) == ("new", "")


def test_a_bad_new_model_never_takes_over(played: Played) -> None:
    played.outcomes["bad"] = ["new beside"]
    played.line = "plumbline-ready: refused: the model answers nonsense: all equal\n"
    with pytest.raises(
        StewardError, match=r"answers nonsense: all equal; it was ended, and .* goes on serving the old one"
    ):
        upgrade(played)
    assert (played.text(UNIT), played.text(BESIDE_UNIT)) == ("old", "")
    assert not any(UNIT in call for call in played.calls if call.split()[0] in ("restart", "stop"))
    # The old one may be started again at any time, by systemd or a reboot, and is the old one.
    assert "MainPID=7" in played.states[UNIT]


def test_in_place_a_bad_new_model_is_taken_back(played: Played) -> None:
    played.outcomes["bad"] = ["new"]
    played.line = "ValueError: no such layer\n"
    with pytest.raises(StewardError, match="ValueError: no such layer; the old one was put back and serves again"):
        upgrade(played, with_(fits=False))
    assert played.text(UNIT) == "old"
    assert "ActiveState=active" in played.states[UNIT]
    assert not (played.folder / "previous").exists()


def test_in_place_it_is_taken_back_also_by_the_run_after_one_that_was_cut_off(played: Played) -> None:
    (played.folder / "previous").write_text("old")
    (played.folder / "units" / UNIT).write_text("new")
    played.states[UNIT] = "LoadState=loaded\nActiveState=activating\nSubState=start-post\nInvocationID=i0\n"
    played.outcomes["bad"] = ["new"]
    with pytest.raises(StewardError, match="the old one was put back and serves again"):
        upgrade(played)
    assert played.text(UNIT) == "old"


def test_in_place_and_neither_becomes_ready(played: Played) -> None:
    played.outcomes["bad"] = ["new", "old"]
    with pytest.raises(StewardError, match="the old one was put back and did not become ready either"):
        upgrade(played, with_(fits=False))
    assert (played.folder / "previous").read_text() == "old"


def test_in_place_a_good_one_stays(played: Played) -> None:
    assert upgrade(played, with_(fits=False)).how == IN_PLACE
    assert played.text(UNIT) == "new"
    assert not (played.folder / "previous").exists()
    assert not any(BESIDE_UNIT in call for call in played.calls)


def test_where_the_unit_fails_after_all_the_one_beside_serves_on(played: Played) -> None:
    played.outcomes["bad"] = ["new"]
    with pytest.raises(StewardError, match=f"systemd goes on trying; {BESIDE_UNIT} goes on serving the new"):
        upgrade(played)
    assert "ActiveState=active" in played.states[BESIDE_UNIT]
    assert played.text(BESIDE_UNIT) == "new beside"


class CutOffError(Exception):
    """The run ended here."""


@dataclass
class CutOff(Played):
    """Ends the run at the n-th call that changes something."""

    cut_at: int = 0

    def run(self, command: list[str]) -> tuple[int, str, str]:
        if command[1] != "show" and len(self.calls) + 1 == self.cut_at:
            raise CutOffError
        return super().run(command)


@pytest.mark.parametrize("cut_at", range(1, 8))
def test_a_run_after_one_that_was_cut_off_makes_it_good(played: Played, cut_at: int) -> None:
    """At whatever call to systemd that was."""
    cut_off = CutOff(played.folder, dict(played.states), cut_at=cut_at)
    with pytest.raises(CutOffError):
        upgrade(cut_off)
    next_run = Played(played.folder, cut_off.states, starts=cut_off.starts)
    upgrade(next_run)
    assert (next_run.text(UNIT), next_run.text(BESIDE_UNIT)) == ("new", "")
    assert "ActiveState=active" in next_run.states[UNIT]
    assert "ActiveState=active" not in next_run.states.get(BESIDE_UNIT, "")


def test_a_file_that_cannot_be_written_is_said_and_left_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.service"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StewardError, match=r"cannot be written .No space left on device.: what serves goes on"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.service"]
