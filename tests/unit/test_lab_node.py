"""What goes into the node's container, and what stops it from being made."""

from __future__ import annotations

import io
import json
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import bmcd, image, netfilter, node, podman, settings
from lab.pipconf import PipConfiguration
from lab.power import power
from lab.shell import LabError


@pytest.fixture
def lab(tmp_path: Path) -> settings.Lab:
    made = settings.load(tmp_path, {}, {})
    made.ensure_state()
    return made


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def test_a_port_in_use_is_refused_with_the_remedy(taken_port: int) -> None:
    with pytest.raises(
        LabError, match=rf"port {taken_port} on 127.0.0.1 is already in use.*LAB_API_PORT={taken_port + 1}"
    ):
        node.require_free_port(taken_port, "LAB_API_PORT")


def test_a_free_port_passes(taken_port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = int(probe.getsockname()[1])
    node.require_free_port(free, "LAB_API_PORT")


def test_the_archive_carries_modes_and_contents() -> None:
    with tarfile.open(
        fileobj=io.BytesIO(node.tar_of({"/etc/a": (0o600, b"secret"), "/etc/b": (0o644, b"")}))
    ) as archive:
        member = archive.getmember("etc/a")
        assert (member.mode, member.uid, member.size) == (0o600, 0, 6)
        stream = archive.extractfile(member)
        assert stream is not None
        assert stream.read() == b"secret"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        ({"no_proxy": "a.example"}, 'no_proxy="a.example"\nNO_PROXY="a.example"\n'),
        (
            {"HTTPS_PROXY": "http://p:1"},
            'https_proxy="http://p:1"\nHTTPS_PROXY="http://p:1"\nno_proxy="127.0.0.1,localhost"\nNO_PROXY="127.0.0.1,localhost"\n',
        ),
    ],
)
def test_proxies_of_the_host_reach_the_node_but_never_loopback(environ: dict[str, str], expected: str) -> None:
    assert node.proxy_environment(environ) == expected


class FakePodman(podman.Podman):
    """Remembers the calls; the one container is what it was told."""

    def __init__(self, lab: settings.Lab, found: dict[str, Any] | None) -> None:
        super().__init__(lab)
        self.found = found
        self.calls: list[tuple[str, ...]] = []

    def inspect(self, container: str) -> dict[str, Any] | None:
        return self.found

    def __call__(self, *words: str | Path, what: str, stdin: bytes | None = None, check: bool = True) -> str:
        self.calls.append(tuple(map(str, words)))
        if self.found is not None:
            self.found["State"]["Status"] = "exited" if words[0] == "stop" else "running"
        return ""


def container(status: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"Id": "1", "State": {"Status": status, "StartedAt": "2026-01-01 00:00:00"}, "Config": {"Labels": labels}}


def test_a_container_of_somebody_else_is_not_touched(lab: settings.Lab) -> None:
    fake = FakePodman(lab, container("running", {podman.CHECKOUT_LABEL: "/elsewhere"}))
    with pytest.raises(LabError, match="belongs to the checkout /elsewhere: choose another name"):
        node.Node(lab, fake).up(PipConfiguration())
    node.Node(lab, fake).stop()
    assert fake.calls == []


def test_other_ports_than_the_node_was_made_with_are_refused(lab: settings.Lab) -> None:
    labels = node.Node(lab, FakePodman(lab, None)).labels(PipConfiguration())
    other = settings.load(lab.root, {"LAB_API_PORT": "8001"}, {})
    fake = FakePodman(other, container("running", labels))
    with pytest.raises(
        LabError,
        match=r"ports 2222 \(SSH\), 8000 \(API\), 8463 \(gateway\), asked for 2222, 8001, 8464: run make clean",
    ):
        node.Node(other, fake).up(PipConfiguration())
    assert fake.calls == []


@pytest.mark.parametrize(
    ("before", "action", "call", "after"),
    [
        ("exited", "on", "start", "on 2026-01-01_00:00:00"),
        ("running", "on", None, "on 2026-01-01_00:00:00"),
        ("running", "off", "stop --time 0", "off"),
        ("exited", "off", None, "off"),
        ("exited", "graceful-off", None, "off"),
        ("running", "graceful-off", "stop --time 30", "off"),
        ("running", "cycle", "restart --time 0", "on 2026-01-01_00:00:00"),
        ("running", "graceful-cycle", "restart --time 30", "on 2026-01-01_00:00:00"),
        ("exited", "cycle", "start", "on 2026-01-01_00:00:00"),
        ("running", "status", None, "on 2026-01-01_00:00:00"),
        ("created", "status", None, "off"),
    ],
)
def test_power(lab: settings.Lab, before: str, action: str, call: str | None, after: str) -> None:
    fake = FakePodman(lab, container(before))
    assert power(lab, fake, action) == after
    assert fake.calls == ([(*call.split(), lab.container)] if call else [])


def test_power_without_a_node(lab: settings.Lab) -> None:
    with pytest.raises(LabError, match="there is no node plumbline-lab-node1: run make lab"):
        power(lab, FakePodman(lab, None), "cycle")


@pytest.mark.parametrize(
    ("systemd_host", "unified", "manager"),
    [(True, True, "systemd"), (True, False, "cgroupfs"), (False, True, "cgroupfs"), (False, False, "cgroupfs")],
)
def test_systemd_manages_cgroups_only_where_it_runs_on_cgroup_v2(
    systemd_host: bool, unified: bool, manager: str
) -> None:
    text = podman.containers_conf("runc", systemd_host=systemd_host, unified_cgroups=unified)
    assert f'cgroup_manager = "{manager}"' in text
    assert 'runtime = "runc"' in text


def test_the_images_name_changes_with_what_it_is_made_from(tmp_path: Path) -> None:
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "rootfs" / "file").write_text("a")
    (tmp_path / "customize.sh").write_text("true")
    before = image.Recipe(tmp_path, "source", ())
    assert before.reference() == image.Recipe(tmp_path, "source", ()).reference()
    assert before.digest() != image.Recipe(tmp_path, "other source", ()).digest()
    assert before.digest() != image.Recipe(tmp_path, "source", ("Acquire::x",)).digest()
    first = before.digest()
    (tmp_path / "rootfs" / "file").chmod(0o755)
    second = before.digest()
    (tmp_path / "rootfs" / "file").write_text("b")
    assert len({first, second, before.digest()}) == 3


LISTING = """\
-P FORWARD ACCEPT
-N NETAVARK_FORWARD
-N MINE
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
-A FORWARD -j MINE
-A NETAVARK_FORWARD -d 10.88.0.0/16 -j ACCEPT
"""


def test_netavarks_chains_go_and_others_stay() -> None:
    assert netfilter.undo(LISTING) == [
        ["-D", "FORWARD", "-m", "comment", "--comment", "netavark firewall plugin rules", "-j", "NETAVARK_FORWARD"],
        ["-F", "NETAVARK_FORWARD"],
        ["-X", "NETAVARK_FORWARD"],
    ]


def test_a_network_that_is_still_there_keeps_all_chains() -> None:
    assert netfilter.undo(LISTING + "-N NETAVARK-1D8721804F16F\n") == []


def test_the_bmcs_configuration_names_real_files_and_the_power_command(lab: settings.Lab, checkout: Path) -> None:
    at_checkout = settings.load(checkout, {}, {})
    made = bmcd.Bmc(at_checkout).settings()
    command = made["power_command"]
    assert isinstance(command, list)
    assert Path(command[0]).stat().st_mode & 0o111
    assert json.loads(json.dumps(made)) == made


def test_a_bmc_that_is_not_there_does_not_answer(lab: settings.Lab) -> None:
    assert bmcd.Bmc(lab).pids() == []
    assert bmcd.Bmc(lab).answers() is False


def test_a_damaged_memory_of_the_bmc_is_set_aside(lab: settings.Lab) -> None:
    memory = lab.state / "bmc-state.json"
    bmc = bmcd.Bmc(lab)
    memory.write_text('{"format": 1}')
    bmc.set_aside_damaged_state()
    assert memory.exists()
    memory.write_text("{half")
    bmc.set_aside_damaged_state()
    assert not memory.exists()
    assert (lab.state / "bmc-state.damaged").read_text() == "{half"


@pytest.mark.parametrize(("failures", "gives_up"), [(2, False), (99, True)])
def test_a_node_that_does_not_die_at_once_is_removed_with_patience(
    lab: settings.Lab, monkeypatch: pytest.MonkeyPatch, failures: int, gives_up: bool
) -> None:
    calls = []

    def busy(*words: Any, what: str, **_: Any) -> str:
        calls.append(words[0])
        if len(calls) <= failures:
            raise LabError(f"{what} failed: given PIDs did not die within timeout")
        return ""

    monkeypatch.setattr(node.time, "sleep", lambda seconds: None)
    machine = node.Node(lab, busy)  # type: ignore[arg-type]
    if gives_up:
        with pytest.raises(LabError, match="did not die"):
            machine._remove_container()
    else:
        machine._remove_container()
        assert calls == ["rm"] * (failures + 1)
