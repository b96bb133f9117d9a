"""The gateway's files, its runtime socket's answers and its probe, as plain functions; each check has a test in which it fails."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    gateway_certificate,
    gateway_files,
    gateway_probe,
    gateway_runtime,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gateway_runtime import Server
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.readiness import Question

from tests.gateway_support import HAPROXY, KEYS, NODE_KEY, WITHOUT_HAPROXY, Gateway, free_ports, gateway

TEXT = "global\n    description plumbline @CONFIGURATION@\n"
QUESTION = Question("What is the capital of France?", "Paris")


def run(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def accepts(command: list[str]) -> tuple[int, str, str]:
    return 0, "", ""


def refuses(command: list[str]) -> tuple[int, str, str]:
    said = (
        "[NOTICE]   (1) : haproxy version is 2.6.12\n"
        "[ALERT]    (1) : config : parsing [/etc/plumbline/gateway/.new-x/haproxy.cfg:7] : unknown keyword 'blance' in 'backend' section\n"
        "[ALERT]    (1) : config : Error(s) found in configuration file : /etc/x\n"
    )
    return 1, "", said


# -- files ----------------------------------------------------------------------------------------------------------------


def test_a_configuration_is_put_in_place_whole_and_closed_to_others(tmp_path: Path) -> None:
    made = gateway_files.put(tmp_path / "gateway", TEXT, {"clients.map": "D alice\n"}, "haproxy", accepts)
    assert made.name == gateway_files.digest(TEXT, {"clients.map": "D alice\n"})
    assert (made / "haproxy.cfg").read_text() == f"global\n    description plumbline {made.name}\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o600}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    gateway_files.switch(tmp_path / "gateway", made)
    assert gateway_files.current(tmp_path / "gateway") == made
    assert gateway_files.text_of(made) == TEXT


def test_what_haproxy_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    before = gateway_files.put(tmp_path, TEXT, {}, "haproxy", accepts)
    gateway_files.switch(tmp_path, before)
    with pytest.raises(gateway_files.GatewayFilesError) as refusal:
        gateway_files.put(tmp_path, TEXT + "more", {}, "haproxy", refuses)
    assert "parsing [haproxy.cfg:7] : unknown keyword 'blance'" in str(refusal.value)
    assert "nothing was changed" in str(refusal.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([before.name, "current"])
    assert gateway_files.current(tmp_path) == before


@pytest.mark.skipif(WITHOUT_HAPROXY, reason="HAProxy is not installed: python -m lab packages --gateway")
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("global\nnonsense yes\n", "unknown keyword 'nonsense' in 'global' section"),
        ("frontend a\n bind 127.0.0.1:1 nonsense\n", "nonsense"),
        (
            "frontend a\n mode http\n bind 127.0.0.1:1\n use_backend b if { path,map(absent.map) -m found }\n",
            "absent.map",
        ),
        ("frontend a\n bind 127.0.0.1:1 ssl crt absent.pem\n", "absent.pem"),
    ],
)
def test_the_cause_is_what_haproxy_complains_of(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(gateway_files.GatewayFilesError) as refusal:
        gateway_files.try_out(text, {}, HAPROXY, run)
    assert cause in str(refusal.value)
    assert "/tmp/" not in str(refusal.value).replace(HAPROXY, "haproxy")


def test_every_part_counts_for_the_digest() -> None:
    digests = [
        gateway_files.digest(TEXT, {"a": "1"}),
        gateway_files.digest(TEXT, {"a": "2"}),
        gateway_files.digest(TEXT, {"b": "1"}),
        gateway_files.digest(TEXT + "x", {"a": "1"}),
        gateway_files.digest(TEXT, {}),
    ]
    assert len(set(digests)) == 5
    assert gateway_files.digest(TEXT, {"a": "1"}) == digests[0]


def test_old_configurations_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    made = [gateway_files.put(tmp_path, TEXT + str(n), {}, "haproxy", accepts) for n in range(4)]
    (tmp_path / "self-signed.pem").write_text("x")
    (tmp_path / "notes").mkdir()
    gateway_files.switch(tmp_path, made[3])
    gateway_files.tidy(tmp_path, made[3], made[2])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"current", "self-signed.pem", "notes", made[3].name, made[2].name}


def test_a_difference_names_files_and_shows_none(tmp_path: Path) -> None:
    made = gateway_files.put(tmp_path, TEXT, {"clients.map": "D alice\n", "nodes.map": "k\n"}, "haproxy", accepts)
    assert gateway_files.changed_files(made, {"clients.map": "D alice\n", "nodes.map": "other\n"}) == ["nodes.map"]
    assert gateway_files.changed_files(None, {"nodes.map": "k\n"}) == ["nodes.map"]


# -- certificate ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_a_certificate_is_made_once_for_its_names(tmp_path: Path) -> None:
    path, openssl = tmp_path / "self-signed.pem", str(shutil.which("openssl"))
    names = ["llm.example.net", "127.0.0.1", "::1"]
    assert not gateway_certificate.still_good(path, names, openssl, run)
    gateway_certificate.make(path, names, openssl, run)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["self-signed.pem"]
    # openssl writes an IPv6 address in full, so that one is compared as another name; plain names and IPv4 are what people use.
    assert gateway_certificate.alternative_names(names) == "DNS:llm.example.net,IP:127.0.0.1,IP:::1"
    gateway_certificate.make(path, names[:2], openssl, run)
    assert gateway_certificate.still_good(path, names[:2], openssl, run)
    assert not gateway_certificate.still_good(path, ["other.example.net"], openssl, run)
    public = gateway_certificate.public_part(path.read_text())
    assert "PRIVATE" not in public
    ssl.create_default_context(cadata=public)


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gateway_certificate.CertificateError, match="correct gateway_server_name"):
        gateway_certificate.make(tmp_path / "x.pem", ["a,b=c"], str(shutil.which("openssl")), run)
    assert list(tmp_path.iterdir()) == []


# -- the socket's answers -----------------------------------------------------------------------------------------------------

STATE = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_time_since_last srv_check_status srv_port
4 nodes 1 n1 10.0.0.1 2 0 1 1 5 6 8000
4 nodes 2 n2 10.0.0.2 2 8 1 1 5 6 8000
4 nodes 3 moved 10.0.0.9 2 8 1 1 5 6 8000
4 nodes 4 renumbered 10.0.0.4 2 8 1 1 5 6 8000
4 nodes 5 gone 10.0.0.5 2 8 1 1 5 6 8000
4 nodes 6 named 10.0.0.6 2 1 1 1 5 6 8000
"""
CONFIGURED = """backend nodes
    server n1 10.0.0.1:8000
    server n2 10.0.0.2:8000
    server moved 10.0.0.3:8000
    server renumbered 10.0.0.4:8001
    server named node6.example.net:8000
    server six [fd00::1]:8000
"""


def names(state: str) -> list[str]:
    return [line.split()[3] for line in state.splitlines() if line.startswith("4 ")]


def test_of_the_state_only_what_still_fits_the_configuration_is_kept() -> None:
    """HAProxy would take an address or a port from the file even where the configuration has another (haproxy/haproxy#1412, #3296)."""
    configured = gateway_runtime.configured_servers(CONFIGURED)
    assert configured["six"] == ("fd00::1", "8000")
    assert names(gateway_runtime.state_to_keep(STATE, configured, fresh=False)) == ["n1", "n2", "named"]


def test_a_fresh_start_keeps_only_what_people_have_set() -> None:
    kept = gateway_runtime.state_to_keep(STATE, gateway_runtime.configured_servers(CONFIGURED), fresh=True)
    assert names(kept) == ["n2", "named"]
    assert kept.splitlines()[0] == "1"


@pytest.mark.parametrize("damaged", ["", "nonsense\n", "1\n", "1\n# be_id\n4 nodes\n", "\n\n"])
def test_a_damaged_state_is_no_obstacle(damaged: str, tmp_path: Path) -> None:
    state, configuration = tmp_path / "state", tmp_path / "haproxy.cfg"
    state.write_text(damaged)
    configuration.write_text(CONFIGURED)
    gateway_runtime.prepare(state, configuration)
    assert state.read_text().startswith("1\n")
    assert names(state.read_text()) == []


# -- measurements -----------------------------------------------------------------------------------------------------------------


def by_name(measurements: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [entry for entry in measurements if entry["name"] == name]


def test_a_node_is_ready_when_one_of_its_ports_is() -> None:
    servers = [
        Server("n1", "UP", 1, 0, "L7OK 200"),
        Server("n1-upgrade", "DOWN", 0, 0, "L4CON Connection refused"),
        Server("n2", "DOWN", 0, 0, "L7STS 503 Service Unavailable"),
        Server("n2-upgrade", "DOWN", 0, 0, "L4CON"),
        Server("n3", "DRAIN", 0, 0, "L7OK"),
        Server("n3-upgrade", "DOWN", 0, 0, "L4CON"),
    ]
    found = gateway_probe.nodes(servers)
    n1, n2, n3 = by_name(found, "gateway_node")
    assert n1["value"] == "ready"
    assert n2["value"] == "unready"
    assert "L7STS 503" in n2["cause"]
    assert "plumbline-gateway ready n3" in n3["skipped"]
    (total,) = by_name(found, "gateway_nodes_ready")
    assert (total["value"], total["limit"]) == (1.0, 2.0)


def test_all_nodes_taken_out_is_told() -> None:
    (total,) = by_name(gateway_probe.nodes([Server("n1", "MAINT", 0, 0, "")]), "gateway_nodes_ready")
    assert "taken out" in total["error"]


def test_a_certificate_that_ends_soon_and_one_that_signed_itself_are_told() -> None:
    name = ((("commonName", "x"),),)
    shown = {
        "notAfter": "Jan  5 09:34:43 2027 GMT",
        "subject": name,
        "issuer": name,
        "subjectAltName": (("DNS", "a"), ("IP Address", "1.2.3.4")),
    }
    now = ssl.cert_time_to_seconds("Jan  3 09:34:43 2027 GMT")
    days, origin = gateway_probe.certificate(shown, "s", now)
    assert days["value"] == 2.0
    assert days["conditions"]["names"] == "a, 1.2.3.4"
    assert "self-signed" in origin["value"]
    assert "inventory" in gateway_probe.certificate({**shown, "issuer": "another"}, "s", now)[1]["value"]
    assert "skipped" in gateway_probe.certificate({}, "s", now)[0]


@pytest.mark.skipif(WITHOUT_HAPROXY, reason="HAProxy is not installed: python -m lab packages --gateway")
class TestProbe:
    """Against a real gateway with TLS."""

    @pytest.fixture
    def front(self, tmp_path: Path) -> Any:
        openssl = str(shutil.which("openssl"))
        (tmp_path / "current").mkdir()
        gateway_certificate.make(tmp_path / "current" / "tls.pem", ["localhost", "127.0.0.1"], openssl, run)
        with gateway(tmp_path, 1, tls=True) as made:
            yield made

    def target(self, front: Gateway, server_name: str = "localhost") -> gateway_probe.Target:
        public = gateway_certificate.public_part((front.current / "tls.pem").read_text())
        certificate = front.directory / "certificate.pem"
        certificate.write_text(public)
        return gateway_probe.Target("127.0.0.1", front.port, str(certificate), server_name, 30)

    def test_a_right_answer_with_a_key_and_none_without(self, front: Gateway) -> None:
        target = self.target(front)
        entry, reply = gateway_probe.completion(target, KEYS["alice"], "mock", QUESTION, "here")
        assert entry["value"] is True
        assert reply is not None
        assert gateway_probe.certificate(reply.certificate, "here", 0)[1]["value"].startswith("self-signed")
        assert [entry["value"] for entry in gateway_probe.key_required(target, "mock", QUESTION, "here")] == [
            True,
            True,
        ]

    def test_a_wrong_answer_is_one(self, front: Gateway) -> None:
        entry, _ = gateway_probe.completion(self.target(front), KEYS["alice"], "mock", Question("?", "London"), "here")
        assert entry["value"] is False
        assert "London" in entry["cause"]

    def test_another_certificate_or_name_is_no_answer(self, front: Gateway, tmp_path: Path) -> None:
        entry, _ = gateway_probe.completion(
            self.target(front, "llm.example.net"), KEYS["alice"], "mock", QUESTION, "here"
        )
        assert "certificate" in entry["error"].lower()
        target = self.target(front)
        gateway_certificate.make(tmp_path / "other.pem", ["localhost"], str(shutil.which("openssl")), run)
        Path(target.certificate_file).write_text(gateway_certificate.public_part((tmp_path / "other.pem").read_text()))
        entry, _ = gateway_probe.completion(target, KEYS["alice"], "mock", QUESTION, "here")
        assert "certificate" in entry["error"].lower()

    def test_no_node_ready_is_an_error_with_the_gateways_words(self, front: Gateway) -> None:
        front.nodes[0].control(ready=False)
        front.wait_ready()
        entry, _ = gateway_probe.completion(self.target(front), KEYS["alice"], "mock", QUESTION, "here")
        assert "HTTP 503: no node could take this request" in entry["error"]

    def test_an_endpoint_that_asks_for_no_key_is_found_out(self, front: Gateway) -> None:
        """The gate looks at the node itself, which answers whoever has its key, as a gateway without its check would."""
        node = gateway_probe.Target("127.0.0.1", front.nodes[0].port)
        entry, _ = gateway_probe.completion(node, NODE_KEY, "mock", QUESTION, "here")
        assert entry["value"] is True
        front.keys["anybody"] = gateway_probe.WRONG_KEY
        front.reload()
        wrong, none = gateway_probe.key_required(self.target(front), "mock", QUESTION, "here")
        assert wrong["value"] is False
        assert "was not refused with 401" in wrong["cause"]
        assert none["value"] is True

    def test_nobody_there_is_an_error(self) -> None:
        target = gateway_probe.Target("127.0.0.1", free_ports(1)[0])
        entry, reply = gateway_probe.completion(target, "x", "mock", QUESTION, "here")
        assert "no answer through the gateway" in entry["error"]
        assert reply is None
