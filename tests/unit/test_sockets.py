"""Who listens on a port: from a captured tree, and on this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.sockets import (
    Listener,
    bind_problem,
    conflict,
    decode_address,
    listeners,
    overlaps,
    parse_listeners,
    unit_of,
)

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
# As a kernel wrote them: sshd on all addresses, a server on 127.0.0.1:8123, an established connection to port 8123, one in IPv6.
TCP = (
    HEAD
    + "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1081 1 0000 100 0 0 10 0\n"
    + "   1: 0100007F:1FBB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0000 100 0 0 10 0\n"
    + "   2: 0100007F:1FBB 0100007F:9AFE 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 0000 20 4 0 10 -1\n"
    + "   3: truncated\n"
)
TCP6 = (
    HEAD.replace("local_address", "local_address                         ")
    + "   0: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000"
    "   990        0 5151 1 0000 100 0 0 10 0\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Lay out a /proc with a stray server on 8123 and the serving unit on 8000."""
    net = tmp_path / "proc" / "net"
    net.mkdir(parents=True)
    (net / "tcp").write_text(TCP)
    (net / "tcp6").write_text(TCP6)
    for pid, inode, comm, cgroup in (
        (77, 4242, "python3", "0::/system.slice/squatter.service\n"),
        (90, 5151, "vllm", "1:name=systemd:/system.slice/plumbline-serving.service\n0::/\n"),
        (91, 5151, "VLLM::EngineCor", "0::/system.slice/plumbline-serving.service\n"),
    ):
        folder = tmp_path / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd" / "3").symlink_to(f"socket:[{inode}]")
        (folder / "fd" / "4").symlink_to("/dev/null")
        (folder / "comm").write_text(comm + "\n")
        (folder / "cmdline").write_bytes(b"python3\0-m\0http.server\x008123\0")
        (folder / "cgroup").write_text(cgroup)
    return tmp_path


def test_the_squatter_is_named_with_process_pid_unit_and_remedy(tree: Path) -> None:
    (found,) = listeners(tree, [8123])
    assert found == Listener("127.0.0.1", 8123, 4242, 77, "python3", "python3 -m http.server 8123", "squatter.service")
    assert found.describe() == "python3 (pid 77, unit squatter.service)"
    assert found.remedy() == "systemctl stop squatter.service"
    assert conflict([found], "0.0.0.0", "plumbline-serving.service") is found


def test_the_units_own_process_is_no_conflict(tree: Path) -> None:
    (found,) = listeners(tree, [8000])
    assert (found.pid, found.unit) == (90, "plumbline-serving.service")
    assert conflict([found], "127.0.0.1", "plumbline-serving.service") is None
    assert conflict([found], "127.0.0.1", "other.service") is found


def test_a_free_port(tree: Path) -> None:
    assert listeners(tree, [9000]) == []


def test_a_process_that_cannot_be_seen(tree: Path) -> None:
    (found,) = listeners(tree, [22])
    assert found.pid is None
    assert "cannot be seen" in found.describe()
    assert found.remedy().startswith("ss -ltnp")


def test_a_process_without_a_unit_is_to_be_killed() -> None:
    assert Listener("0.0.0.0", 1, 2, 5, "nc", "nc -l 1", "session-3.scope").remedy() == "kill 5"


def test_only_listening_sockets_count() -> None:
    assert [listener.inode for listener in parse_listeners(TCP)] == [1081, 4242]


def test_addresses() -> None:
    assert decode_address("0100007F") == "127.0.0.1"
    assert decode_address("00000000000000000000000001000000") == "::1"
    assert decode_address("0000000000000000FFFF00000100007F") == "::ffff:127.0.0.1"


@pytest.mark.parametrize(
    ("listening", "wanted", "expected"),
    [
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("10.0.0.5", "127.0.0.1", False),
        ("::1", "localhost", True),
        ("10.0.0.5", "localhost", False),
    ],
)
def test_which_listeners_keep_a_server_out(listening: str, wanted: str, expected: bool) -> None:
    assert overlaps(listening, wanted) is expected


def test_units_in_control_groups() -> None:
    assert unit_of("0::/system.slice/a.service\n") == "a.service"
    assert unit_of("12:memory:/other.service\n1:name=systemd:/system.slice/b.service/child\n0::/\n") == "b.service"
    assert unit_of("0::/user.slice/user-0.slice/session-1.scope\n") == "session-1.scope"
    assert unit_of("0::/\n") == ""


def test_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = listeners(Path("/"), [port])
    assert found.pid == os.getpid()
    assert found.address == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_an_address_of_this_machine_can_be_bound(host: str) -> None:
    assert bind_problem(host) == ""


# 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
@pytest.mark.parametrize("host", ["192.0.2.1", "not a host", "nöt ä host" * 20, "300.1.1.1"])
def test_an_address_of_nobody_here_is_told(host: str) -> None:
    assert bind_problem(host)
