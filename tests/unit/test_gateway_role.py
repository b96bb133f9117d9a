"""The gateway role's refusals, each with one sentence, and the files that it writes. One Ansible run for all of them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway_support import HAPROXY, WITHOUT_HAPROXY, free_ports
from tests.unit.playbook_run import CHECKOUT, Outcome, play, run_playbook

DEFAULTS = yaml.safe_load((CHECKOUT / "roles" / "gateway" / "defaults" / "main.yml").read_text())
KEY, OTHER, SERVING = "key-of-alice-0123456789abcdef", "key-of-bob-0123456789abcdefgh", "key-of-the-nodes-0123456789"
REFUSALS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no-users": ({"gateway_api_keys": {}}, ("gateway_api_keys, found none", "from the vault")),
    "short-key": ({"gateway_api_keys": {"alice": "short"}}, ("found otherwise for alice", "openssl rand -hex 32")),
    "odd-name": ({"gateway_api_keys": {"a b": KEY}}, ("found otherwise for a b",)),
    "one-key-twice": ({"gateway_api_keys": {"a": KEY, "b": KEY}}, ("two names with the same key",)),
    "limit-of-nobody": ({"gateway_rate_limits": {"carol": 5}}, ("gateway_rate_limits", "found carol")),
    "half-certificate": ({"gateway_tls_certificate": "PEM"}, ("found only the certificate", "self-signed")),
    "no-queue": (
        {"gateway_queue_requests": 0, "gateway_check_fall": 0},
        ("gateway_queue_requests, gateway_check_fall",),
    ),
}
SOUND = {"gateway_api_keys": {"alice": KEY, "bob": OTHER}, "serving_api_key": SERVING}
WRITTEN: dict[str, dict[str, Any]] = {
    "node1": {"gateway_rate_limits": {"bob": 7}, "serving_host": "0.0.0.0", "serving_port": 8100},
    "node2": {"gateway_tls": False, "serving_host": "10.0.0.2", "serving_upgrade_port": 9001, "gateway_host": "::"},
}
# Hosts in front, which are no nodes themselves.
FRONTS: dict[str, dict[str, Any]] = {
    "front": {"gateway_tls": False},
    "front-listed": {
        "gateway_nodes": [{"name": "a", "address": "10.1.1.1", "ports": [8000]}],
        "serving_api_key": SERVING,
        "gateway_rate_limit_requests": 30,
        "gateway_tls_certificate": "CERTIFICATE",
        "gateway_tls_key": "KEY",
    },
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcome, Path]]:
    folder = tmp_path_factory.mktemp("gateway")
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        cases = {host: changes for host, (changes, _) in REFUSALS.items()} | WRITTEN | FRONTS
        cases["squatted"] = {"gateway_port": squatter.getsockname()[1]}
        ports = free_ports(2 * len(cases))
        known: dict[str, dict[str, Any]] = {}
        for index, (host, changes) in enumerate(cases.items()):
            own = {
                "gateway_host": "127.0.0.1",
                "gateway_port": ports[2 * index],
                "gateway_metrics_port": ports[2 * index + 1],
            }
            sound = {**SOUND} if host not in FRONTS else {"gateway_api_keys": SOUND["gateway_api_keys"]}
            known[host] = {**DEFAULTS, **own, **sound, **changes}
        variables: dict[str, Any] = {name: f"{{{{ cases[inventory_hostname].{name} }}}}" for name in DEFAULTS}
        for name in ("serving_api_key", "serving_host", "serving_port", "serving_upgrade_port"):
            variables[name] = f"{{{{ cases[inventory_hostname].{name} }}}}"
        variables["cases"] = known
        role = {"name": "gateway", "tasks_from": "assert", "public": True}

        # By their paths: outside of the role a template is not found by its name.
        def rendered(name: str) -> str:
            path = CHECKOUT / "roles" / "gateway" / "templates" / name
            return (
                f"{{{{ lookup('ansible.builtin.template', '{path}', template_vars={{'gateway': __gateway_wish}}) }}}}"
            )

        texts = {"configuration": rendered("haproxy.cfg.j2"), "unit": rendered("plumbline-gateway.service.j2")}
        content = {**texts, "files": "{{ __gateway_files }}"}
        write = {
            "content": "{{ wanted | to_json }}",
            "dest": f"{folder}/{{{{ inventory_hostname }}}}.json",
            "mode": "0600",
        }
        tasks = [
            {
                "name": "Nodes are in their group",
                "ansible.builtin.group_by": {"key": "nodes"},
                "when": "inventory_hostname in nodes_of_the_test",
            },
            {"name": "The gateway can be set up", "ansible.builtin.include_role": role},
            {"name": "What it would write", "ansible.builtin.copy": write, "vars": {"wanted": content}},
        ]
        variables["nodes_of_the_test"] = [host for host in cases if host not in FRONTS]
        yield run_playbook(folder, [play(tasks, "gateway")], hosts=tuple(cases), variables=variables), folder


def written(outcome: tuple[Outcome, Path], host: str) -> dict[str, Any]:
    path = outcome[1] / f"{host}.json"
    assert path.exists(), json.dumps(outcome[0].evidence(host)) + outcome[0].output[-3000:]
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def servers(configuration: str) -> dict[str, str]:
    return dict(re.findall(r"^    server (\S+) (\S+)$", configuration, re.MULTILINE))


@pytest.mark.parametrize("host", REFUSALS)
def test_each_refusal_is_one_sentence_with_the_remedy(outcome: tuple[Outcome, Path], host: str) -> None:
    said = json.dumps(outcome[0].evidence(host))
    for word in REFUSALS[host][1]:
        assert word in said, said
    assert not (outcome[1] / f"{host}.json").exists()


def test_a_port_in_use_names_its_holder(outcome: tuple[Outcome, Path]) -> None:
    said = json.dumps(outcome[0].evidence("squatted"))
    assert re.search(r"in use on 127.0.0.1 by \S+ \(pid \d+", said), said


def test_nodes_on_loopback_are_refused_to_a_gateway_on_another_host(outcome: tuple[Outcome, Path]) -> None:
    said = json.dumps(outcome[0].evidence("front"))
    assert "Expected nodes that listen where this gateway reaches them" in said
    assert "set serving_host there" in said


def test_no_refusal_shows_a_traceback_or_a_key(outcome: tuple[Outcome, Path]) -> None:
    assert "Traceback" not in outcome[0].output
    assert not [key for key in (KEY, OTHER, SERVING) if key in outcome[0].output]


def test_a_node_is_its_own_gateway(outcome: tuple[Outcome, Path]) -> None:
    found = written(outcome, "node1")
    assert servers(found["configuration"]) == {"node1": "127.0.0.1:8100", "node1-upgrade": "127.0.0.1:8101"}
    assert "ssl crt tls.pem" in found["configuration"]
    assert found["files"]["limits.map"] == "bob 7\n"
    assert found["files"]["nodes.map"] == f"nodes {SERVING}\n"
    # HAProxy's converters give SHA-256 in capitals.
    wanted = {
        f"{hashlib.sha256(key.encode()).hexdigest().upper()} {name}" for name, key in (("alice", KEY), ("bob", OTHER))
    }
    assert set(found["files"]["clients.map"].splitlines()) == wanted
    # It makes its own certificate.
    assert "tls.pem" not in found["files"]


def test_an_address_of_a_node_is_taken_as_it_is(outcome: tuple[Outcome, Path]) -> None:
    found = written(outcome, "node2")["configuration"]
    assert servers(found) == {"node2": "10.0.0.2:8000", "node2-upgrade": "10.0.0.2:9001"}
    assert re.search(r"^    bind \[::\]:\d+$", found, re.MULTILINE)
    assert "ssl" not in found.replace("ssl-default", "")


def test_listed_nodes_and_a_certificate_of_the_inventory(outcome: tuple[Outcome, Path]) -> None:
    found = written(outcome, "front-listed")
    assert servers(found["configuration"]) == {"a": "10.1.1.1:8000"}
    assert found["files"]["tls.pem"] == "CERTIFICATE\nKEY\n"
    assert "map_str_int(limits.map,30)" in found["configuration"]


def test_no_secret_is_in_the_configuration_or_the_unit(outcome: tuple[Outcome, Path]) -> None:
    for host in (*WRITTEN, "front-listed"):
        found = written(outcome, host)
        shown = found["configuration"] + found["unit"]
        assert not [key for key in (KEY, OTHER, SERVING, "CERTIFICATE") if key in shown]


@pytest.mark.skipif(
    WITHOUT_HAPROXY or not shutil.which("openssl"),
    reason="HAProxy or openssl is not installed: python -m lab packages --gateway",
)
@pytest.mark.parametrize("host", WRITTEN)
def test_haproxy_accepts_what_the_role_writes(outcome: tuple[Outcome, Path], host: str, tmp_path: Path) -> None:
    found = written(outcome, host)
    text = (
        found["configuration"]
        .replace("/run/plumbline-gateway", str(tmp_path))
        .replace("/var/lib/plumbline-gateway", str(tmp_path))
    )
    text = re.sub(r"^    (user|group) haproxy\n", "", text, flags=re.MULTILINE)
    (tmp_path / "haproxy.cfg").write_text(text)
    (tmp_path / "servers.state").write_text("1\n")
    for name, content in found["files"].items():
        (tmp_path / name).write_text(content)
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=x",
    ]
    subprocess.run([*make, "-keyout", tmp_path / "k", "-out", tmp_path / "c"], check=True, capture_output=True)
    (tmp_path / "tls.pem").write_text((tmp_path / "c").read_text() + (tmp_path / "k").read_text())
    done = subprocess.run([HAPROXY, "-c", "-f", tmp_path / "haproxy.cfg"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[ALERT]" not in done.stderr
    complaints = [line for line in done.stderr.splitlines() if "[WARNING]" in line]
    assert complaints == []
