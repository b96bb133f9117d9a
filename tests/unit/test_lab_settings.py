"""The lab's names and ports: from the environment, else as recorded, else the defaults; nonsense is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import masters, settings
from lab.shell import LabError

RECORD = {"name": "mine", "ssh_port": 3222, "api_port": 3800, "bmc_port": 3443, "gateway_port": 3463}


def test_defaults(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {}, {})
    assert (lab.name, lab.ssh_port, lab.api_port, lab.bmc_port) == ("plumbline-lab", 2222, 8000, 8443)
    assert lab.gateway_port == 8463
    assert lab.container == "plumbline-lab-node1"


def test_the_gateways_port_follows_the_apis_unless_given(tmp_path: Path) -> None:
    assert settings.load(tmp_path, {"LAB_API_PORT": "28100"}, {}).gateway_port == 28563
    assert settings.load(tmp_path, {"LAB_API_PORT": "65500"}, {}).gateway_port == 65037
    assert settings.load(tmp_path, {"LAB_API_PORT": "28100", "LAB_GATEWAY_PORT": "28163"}, {}).gateway_port == 28163


def test_a_lab_from_before_the_gateway_is_still_known() -> None:
    old = {key: value for key, value in RECORD.items() if key != "gateway_port"}
    assert settings.sound(old) == old
    assert settings.sound({**old, "gateway_port": "3463"}) == old


def test_environment_wins_over_the_record(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {"LAB_API_PORT": "3801", "LAB_NAME": ""}, RECORD)
    assert (lab.name, lab.api_port, lab.ssh_port) == ("mine", 3801, 3222)


def test_what_runs_wins_when_it_is_taken_down(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {"LAB_API_PORT": "3801", "LAB_NAME": "other"}, RECORD, recorded_first=True)
    assert (lab.name, lab.api_port) == ("mine", 3800)


@pytest.mark.parametrize("text", ["http", "80", "65536", "-1", "8000.0", "²222"])
def test_a_bad_port_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(LabError, match=r"LAB_SSH_PORT must be a port from 1024 to 65535, found"):
        settings.load(tmp_path, {"LAB_SSH_PORT": text}, {})


def test_equal_ports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"four ports must differ, found LAB_SSH_PORT=8000, LAB_API_PORT=8000"):
        settings.load(tmp_path, {"LAB_SSH_PORT": "8000"}, {})


@pytest.mark.parametrize("name", ["Lab", "a b", "-x", "x" * 42, "a/b"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LabError, match="LAB_NAME must be made of small letters"):
        settings.load(tmp_path, {"LAB_NAME": name}, {})


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", json.dumps({**RECORD, "ssh_port": "3222"}).encode(), b'{"name": "mine"}']
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: bytes) -> None:
    record = tmp_path / "lab" / ".state" / "lab.json"
    record.parent.mkdir(parents=True)
    record.write_bytes(content)
    assert settings.read_record(tmp_path) == {}


def test_the_record_survives_a_round_trip(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {}, RECORD)
    lab.ensure_state()
    lab.write_record({"find_links": ["/srv/wheels"]})
    assert settings.read_record(tmp_path) == RECORD
    assert lab.record.stat().st_mode & 0o777 == 0o600
    assert lab.state.stat().st_mode & 0o777 == 0o700


def test_control_sockets_get_a_short_directory_in_a_deep_checkout(tmp_path: Path) -> None:
    near = settings.load(Path("/srv/plumbline"), {}, {})
    assert masters.directory(near) == Path("/srv/plumbline/lab/.state/cp")
    deep = settings.load(Path("/" + "deep/" * 30), {}, {})
    assert len(str(masters.directory(deep))) <= masters.LONGEST_DIRECTORY


def test_a_lab_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = settings.load(tmp_path, {}, {})
    lab.ensure_state()
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    with pytest.raises(LabError, match="and you are 4711: run make as that user"):
        lab.ensure_state()
