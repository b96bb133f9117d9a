"""The gateway on the lab's node, in front of the real engine: what users get, SIGKILL, a reload under load, a new key, a drained node."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import CHECKOUT, Lab
from tests.e2e.test_1_demo import evidence

pytestmark = pytest.mark.lab

PLAYBOOK = "playbooks/gateway.yml"
UNIT = "plumbline-gateway.service"
PROGRAM = "/opt/plumbline/bin/plumbline-gateway"


def extra(**variables: object) -> tuple[str, str]:
    return "-e", json.dumps(variables)


class Front:
    """The gateway as a user has it: the published port, its certificate, a key."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        record = json.loads((CHECKOUT / "lab" / ".state" / "lab.json").read_text())
        self.port = int(record["gateway_port"])
        self.key = (CHECKOUT / "lab" / ".state" / "api-key").read_text().strip()
        self.model = lab.node("sed -n 's/^model_name=//p' /etc/systemd/system/plumbline-serving.service")
        certificate = folder / "gateway.pem"
        certificate.write_text(lab.node("cat /etc/plumbline/gateway/certificate.pem") + "\n")
        self.context = ssl.create_default_context(cafile=str(certificate))

    def post(self, key: str = "", **body: Any) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=self.context)
        asked = {"model": self.model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        payload = json.dumps({**asked, "max_tokens": 24, "temperature": 0, **body})
        headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/v1/chat/completions", payload, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def front(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Front:
    return Front(lab, tmp_path_factory.mktemp("front"))


@pytest.fixture
def restored(lab: Lab) -> Iterator[None]:
    yield
    outcome = lab.playbook(PLAYBOOK)
    assert outcome.returncode == 0, outcome.output[-3000:]


def test_the_gate_looked_through_the_gateway(lab: Lab, front: Front) -> None:
    outcome = lab.playbook(PLAYBOOK)
    assert outcome.returncode == 0, outcome.output[-3000:]
    judged = {
        str(record["name"]): record for record in evidence() if record.get("stage") == "gateway" and "name" in record
    }
    assert judged["completion"]["status"] == "OK"
    assert judged["gateway_nodes_ready"]["value"] == 1
    assert judged["gateway_certificate_origin"]["value"].startswith("self-signed")  # type: ignore[attr-defined]
    status, body = front.post()
    assert status == 200, body
    assert b"Paris" in body
    assert front.post("plumbline-wrong-key-0123456789")[0] == 401


def test_the_unit_is_closed_and_holds_no_key(lab: Lab, front: Front) -> None:
    assert front.key not in lab.node(
        f"cat /etc/systemd/system/{UNIT} /etc/plumbline/gateway/current/haproxy.cfg /etc/plumbline/gateway/current/clients.map"
    )
    assert lab.node("stat -c %a /etc/plumbline/gateway/current/nodes.map /run/plumbline-gateway").split() == [
        "600",
        "700",
    ]
    assert front.key not in lab.node(f"journalctl -u {UNIT} --no-pager -o cat")
    exposure = float(lab.node(f"systemd-analyze security {UNIT} --no-pager | tail -1").split(": ")[1].split()[0])
    assert exposure <= 3.0
    # Workers, which talk to the network, are not root.
    assert set(lab.node("ps -o user= -C haproxy").split()) == {"root", "haproxy"}


@pytest.mark.parametrize("victim", ["worker", "master"])
def test_sigkill_of_the_gateway_is_followed_by_one_that_serves(lab: Lab, front: Front, victim: str) -> None:
    main = lab.node(f"systemctl show -p MainPID --value {UNIT}")
    pid = main if victim == "master" else lab.node(f"pgrep -P {main} haproxy").split()[0]
    lab.node(f"kill -KILL {pid}")
    deadline = time.monotonic() + 60
    while True:
        try:
            status, body = front.post()
            if status == 200:
                assert b"Paris" in body
                break
        except (OSError, http.client.HTTPException):
            pass
        assert time.monotonic() < deadline, lab.node(f"systemctl status {UNIT}", check=False)
        time.sleep(0.2)
    assert lab.node(f"systemctl show -p MainPID --value {UNIT}") != main
    assert lab.node(f"systemctl is-active {UNIT}") == "active"


def test_a_changed_configuration_is_reloaded_under_load_without_a_lost_request(
    lab: Lab, front: Front, restored: None
) -> None:
    outcomes: Counter[str] = Counter()
    ending = threading.Event()

    def client() -> None:
        while not ending.is_set():
            try:
                status, body = front.post(stream=True, max_tokens=12)
                outcomes["answered" if status == 200 and b"[DONE]" in body else f"status {status}"] += 1
            except (OSError, http.client.HTTPException) as error:
                outcomes[type(error).__name__] += 1

    threads = [threading.Thread(target=client, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    main = lab.node(f"systemctl show -p MainPID --value {UNIT}")
    outcome = lab.playbook(PLAYBOOK, *extra(gateway_client_seconds=61), "--diff")
    ending.set()
    for thread in threads:
        thread.join(120)
    assert outcome.returncode == 0, outcome.output[-3000:]
    assert "+    timeout client 61s" in outcome.output
    assert front.key not in outcome.output
    assert lab.node(f"systemctl show -p MainPID --value {UNIT}") == main
    assert set(outcomes) == {"answered"}, outcomes
    assert outcomes["answered"] > 0


def test_what_haproxy_refuses_leaves_the_old_one_running(lab: Lab, front: Front) -> None:
    before = lab.node("readlink /etc/plumbline/gateway/current")
    outcome = lab.playbook(PLAYBOOK, *extra(gateway_health_path="/a b c"))
    outcome.refused_with("that it refuses it", "haproxy.cfg:", "nothing was changed")
    assert lab.node("readlink /etc/plumbline/gateway/current") == before
    assert front.post()[0] == 200


def test_what_haproxy_accepts_and_cannot_run_is_taken_back(lab: Lab, front: Front, restored: None) -> None:
    """More open files than this container may have: `haproxy -c` does not see that, the start does."""
    before = lab.node("readlink /etc/plumbline/gateway/current")
    outcome = lab.playbook(PLAYBOOK, *extra(gateway_connections=100_000))
    outcome.refused_with("did not come up", "Cannot raise FD limit", "the one before it is in force again")
    assert lab.node("readlink /etc/plumbline/gateway/current") == before
    assert front.post()[0] == 200


def test_a_new_key_counts_at_once_and_the_old_one_no_more(lab: Lab, front: Front, restored: None) -> None:
    key = "another-key-of-the-gateway-0123456789"
    outcome = lab.playbook(PLAYBOOK, *extra(gateway_api_keys={"other": key}), "--diff")
    assert outcome.returncode == 0, outcome.output[-3000:]
    assert "clients.map changed" in outcome.output
    assert key not in outcome.output.replace(json.dumps(key), "")
    assert front.post(key)[0] == 200
    assert front.post()[0] == 401


def test_a_node_taken_out_of_service_gets_nothing_and_comes_back(lab: Lab, front: Front) -> None:
    try:
        lab.node(f"{PROGRAM} drain lab-node1 --wait 60")
        assert front.post()[0] == 503
        # Neither a reload nor a restart brings it back unasked.
        lab.node(f"systemctl reload {UNIT} && systemctl restart {UNIT}")
        assert front.post()[0] == 503
        lab.playbook(PLAYBOOK).refused_with("taken out of service by hand")
    finally:
        lab.node(f"{PROGRAM} ready lab-node1")
    deadline = time.monotonic() + 30
    while front.post()[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_a_second_run_changes_nothing(lab: Lab) -> None:
    outcome = lab.playbook(PLAYBOOK)
    assert outcome.returncode == 0, outcome.output[-3000:]
    assert outcome.recap()["changed"] == 0
