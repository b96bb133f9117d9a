"""The gateway under faults: a real HAProxy with the role's configuration, three nodes that are processes, on loopback."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import gateway_runtime as runtime

from tests.gateway_support import KEYS, NODE_KEY, WITHOUT_HAPROXY, Gateway, Node, chat, gateway, headers, read, wait_for

pytestmark = pytest.mark.skipif(WITHOUT_HAPROXY, reason="HAProxy is not installed: python -m lab packages --gateway")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all tests that leave it as it was."""
    with gateway(tmp_path_factory.mktemp("calm")) as made:
        yield made


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Gateway]:
    with gateway(tmp_path) as made:
        yield made


def raw_head(length: int) -> bytes:
    """The headers of a sound request whose body has this length."""
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {KEYS['alice']}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def served(front: Gateway) -> int:
    return sum((node.control() or {})["served"] for node in front.nodes)


class Load:
    """Requests one after the other from several clients, until it is ended; what came of each."""

    def __init__(self, front: Gateway, clients: int = 8, **body: Any) -> None:
        self.front, self.body = front, chat(stream=True, **body)
        self.outcomes: list[tuple[str, str]] = []
        self.ending = threading.Event()
        self.threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self) -> None:
        while not self.ending.is_set():
            node = ""
            try:
                status, found, body = self.front.post(self.body)
                node = found.get("x-node", "")
                whole = body.rstrip().endswith(b"data: [DONE]")
                self.outcomes.append(("answered" if status == 200 and whole else f"cut ({status})", node))
            except (OSError, http.client.HTTPException) as error:
                self.outcomes.append((type(error).__name__, node))

    def end(self) -> Counter[str]:
        self.ending.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        return Counter(outcome for outcome, _ in self.outcomes)

    def wait_for_more(self, count: int = 30) -> None:
        wanted = len(self.outcomes) + count
        wait_for(lambda: len(self.outcomes) >= wanted, f"{count} more answers")


def test_a_key_lets_in_and_the_node_sees_the_gateways_own(calm: Gateway) -> None:
    status, found, body = calm.post(chat())
    assert status == 200, body
    assert found["x-node"] in {"n1", "n2", "n3"}
    # The node refuses every key but its own, so the gateway has put that one in the place of the client's.
    assert KEYS["alice"] != NODE_KEY


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong-key-0123456789abcdef"},
        {"Authorization": f"Bearer {NODE_KEY}"},
        {"Authorization": f"Basic {KEYS['alice']}"},
        {"Authorization": KEYS["alice"]},
        {"Authorization": f"Bearer {KEYS['alice']}x"},
        {"Authorization": "Bearer " + "x" * 8000},
        {"X-Plumbline-Client": "alice"},
    ],
)
def test_wrong_keys_are_refused_and_reach_no_node(calm: Gateway, sent: dict[str, str]) -> None:
    before = served(calm)
    connection = calm.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat()), sent)
    status, found, body = read(connection)
    connection.close()
    assert status == 401
    assert found["www-authenticate"] == "Bearer"
    assert "Bearer KEY" in json.loads(body)["error"]["message"]
    assert served(calm) == before


def test_keys_are_neither_in_the_maps_nor_in_the_log(tmp_path: Path) -> None:
    log = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    log.bind(("127.0.0.1", 0))
    log.settimeout(10)
    with gateway(tmp_path, 1, log=f"127.0.0.1:{log.getsockname()[1]}") as front:
        front.post(chat(), path=f"/v1/chat/completions?api_key={KEYS['alice']}")
        line = ""
        while "POST" not in line:
            line = log.recv(65536).decode()
        front.post(chat(), key="wrong-key-0123456789abcdef")
        refused = log.recv(65536).decode()
        configured = "".join(path.read_text() for path in front.current.iterdir() if path.name != "nodes.map")
        shown = runtime.ask(front.socket, "show map clients.map")
    log.close()
    assert 'alice "POST /v1/chat/completions" 200' in line
    assert '- "POST /v1/chat/completions" 401' in refused
    for text in (line, refused, configured, shown):
        assert KEYS["alice"] not in text
        assert "wrong-key" not in text


@pytest.mark.parametrize(
    "path",
    [
        *("/secret", "/plumbline/status", "/metrics", "/v1", "/", "//v1/models", "/generate/x"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/%6coad_lora_adapter"),
    ],
)
def test_what_is_not_for_users_is_not_there(calm: Gateway, path: str) -> None:
    connection = calm.connect()
    connection.request("GET", path, headers=headers(KEYS["alice"]))
    status, _, body = read(connection)
    connection.close()
    assert status == 404
    # The gateway's own answer: it did not even ask the node.
    assert b"this endpoint serves" in body


def test_what_is_no_http_is_refused(calm: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", calm.port)) as raw:
        raw.sendall(b"\x16\x03\x01 what is this\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400")


def test_ten_megabytes_are_refused_before_they_are_read(calm: Gateway) -> None:
    status, _, body = calm.post(chat(padding_of_the_test="x" * 10_000_000))
    assert status == 413
    assert "4194304 bytes" in json.loads(body)["error"]["message"]
    # What is large and allowed arrives whole, though it is larger than the gateway's buffer.
    status, _, body = calm.post(chat(padding_of_the_test="x" * 3_000_000))
    assert status == 200, body


def test_a_body_of_untold_length_is_refused(calm: Gateway) -> None:
    connection = calm.connect()
    sent = {**headers(KEYS["alice"]), "Transfer-Encoding": "chunked"}
    connection.request("POST", "/v1/chat/completions", headers=sent)
    assert read(connection)[0] == 411
    connection.close()


def test_each_key_has_its_rate(tmp_path: Path) -> None:
    with gateway(tmp_path, 1, window_requests=3) as front:
        front.limits = {"bob": 1}
        front.reload()
        front.wait_ready("n1")
        alice = [front.post(chat()) for _ in range(5)]
        bob = [front.post(chat(), key=KEYS["bob"]) for _ in range(2)]
        # Looking at what is served is free.
        connection = front.connect()
        connection.request("GET", "/v1/models", headers=headers(KEYS["alice"]))
        looked = read(connection)[0]
        connection.close()
    assert [status for status, _, _ in alice] == [200, 200, 200, 429, 429]
    assert [status for status, _, _ in bob] == [200, 429]
    assert alice[-1][1]["retry-after"] == "10"
    assert json.loads(alice[-1][2])["error"]["type"] == "rate_limit_error"
    assert looked == 200


def test_a_refused_request_does_not_use_up_the_rate(tmp_path: Path) -> None:
    """Else a client that asks too often would never be let in again."""
    with gateway(tmp_path, 1, window_requests=2, window_seconds=1) as front:
        assert [front.post(chat())[0] for _ in range(2)] == [200, 200]
        statuses: list[int] = []

        def let_in_again() -> bool:
            statuses.append(front.post(chat())[0])
            return statuses[-1] == 200

        wait_for(let_in_again, "being let in while asking all the time")
        assert statuses[0] == 429


def test_what_is_too_much_is_told_at_once_and_what_is_accepted_is_answered(tmp_path: Path) -> None:
    options = ("--slots", "2", "--prefill", "0.5")
    with gateway(tmp_path, 1, options, node_requests=2, queue_requests=3, queue_seconds=20, threads=1) as front:
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: front.post(chat()), range(20)))
        statuses = Counter(status for status, _, _ in answers)
        most = (front.nodes[0].control() or {})["most"]
    assert statuses == {200: 5, 503: 15}
    assert all(found["retry-after"] == "2" for status, found, _ in answers if status == 503)
    assert {json.loads(body)["error"]["message"].split(";")[0] for status, _, body in answers if status == 503} == {
        "the endpoint is at its limit"
    }
    assert most == 2


def test_who_waits_too_long_is_told_when_to_come_again(tmp_path: Path) -> None:
    with (
        gateway(tmp_path, 1, ("--prefill", "5"), node_requests=1, queue_seconds=1) as front,
        ThreadPoolExecutor(2) as pool,
    ):
        first, second = (pool.submit(front.post, chat()) for _ in range(2))
        statuses = sorted([first.result()[0], second.result()[0]])
    assert statuses == [200, 503]


def test_sigkill_of_a_node_under_load_loses_only_what_it_was_answering(front: Gateway) -> None:
    load = Load(front, clients=9, max_tokens=20)
    load.wait_for_more()
    in_flight = (front.nodes[1].control() or {})["running"]
    front.nodes[1].end(signal.SIGKILL)
    load.wait_for_more(60)
    outcomes = load.end()
    lost = sum(count for outcome, count in outcomes.items() if outcome != "answered")
    # What had begun to be answered is cut; what had not is asked again elsewhere. The count is taken a moment before the kill.
    assert lost <= in_flight + 2, outcomes
    assert {node for outcome, node in load.outcomes[-20:]} == {"n1", "n3"}
    front.wait_ready("n1", "n3")


@pytest.mark.parametrize("how", [{"draining": True}, {"ready": False}])
def test_a_node_that_turns_unready_among_three_loses_nothing(front: Gateway, how: dict[str, bool]) -> None:
    load = Load(front, clients=9, max_tokens=20)
    load.wait_for_more()
    before = front.nodes[2].control(**how)
    assert before is not None
    front.wait_ready("n1", "n2")
    load.wait_for_more(60)
    outcomes = load.end()
    assert set(outcomes) == {"answered"}, outcomes
    # Its running answers were finished, and it was given no new ones.
    after = front.nodes[2].control()
    assert after is not None
    assert after["cancelled"] == 0
    assert after["running"] == 0
    front.nodes[2].control(draining=False, ready=True)
    front.wait_ready("n1", "n2", "n3")


def test_an_upgrade_moves_to_the_second_port_without_a_lost_request(tmp_path: Path) -> None:
    """One node: the new unit beside the old one, then the old one drains and ends."""
    with gateway(tmp_path, 1) as front:
        load = Load(front, clients=4, max_tokens=10)
        load.wait_for_more()
        new = Node("new", front.spare[0])
        new.start()
        try:
            front.wait_ready("n1", "n1-upgrade")
            front.nodes[0].control(draining=True)
            front.wait_ready("n1-upgrade")
            wait_for(lambda: (front.nodes[0].control() or {})["running"] == 0, "the old one idle")
            front.nodes[0].end(signal.SIGTERM)
            load.wait_for_more()
            outcomes = load.end()
        finally:
            new.end()
    assert set(outcomes) == {"answered"}, outcomes
    assert load.outcomes[-1][1] == "new"


def test_reload_under_load_loses_no_connection_and_keeps_drains(front: Gateway) -> None:
    runtime.set_node(front.socket, "n3", "drain")
    front.wait_ready("n1", "n2")
    load = Load(front, clients=8, max_tokens=20)
    load.wait_for_more()
    for seconds in (40, 41, 42):
        front.changes["node_seconds"] = seconds
        front.reload()
        load.wait_for_more(20)
    outcomes = load.end()
    assert set(outcomes) == {"answered"}, outcomes
    assert front.servers()["n3"].drained
    assert {node for _, node in load.outcomes} == {"n1", "n2"}
    runtime.set_node(front.socket, "n3", "ready")
    front.wait_ready("n1", "n2", "n3")


def test_a_key_that_was_taken_away_is_dead_on_old_connections_too(front: Gateway) -> None:
    connection = front.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat()), headers(KEYS["bob"]))
    assert read(connection)[0] == 200
    del front.keys["bob"]
    front.reload()
    # The old connection is closed, or refuses; http.client would silently open a new one, so that is looked at as well.
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()), headers(KEYS["bob"]))
        status = read(connection)[0]
    except (OSError, http.client.HTTPException):
        status = 401
    connection.close()
    assert status == 401
    assert front.post(chat(), key=KEYS["bob"])[0] == 401
    assert front.post(chat())[0] == 200


def test_a_running_answer_outlives_the_reload(front: Gateway) -> None:
    connection = front.connect()
    body = json.dumps(chat(stream=True, max_tokens=300))
    connection.request("POST", "/v1/chat/completions", body, headers(KEYS["alice"]))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    front.changes["node_seconds"] = 77
    front.reload()
    rest = response.read()
    connection.close()
    assert rest.rstrip().endswith(b"data: [DONE]")
    assert rest.count(b'"delta"') == 299


def test_sigkill_of_the_gateway_ends_all_of_it_so_that_systemd_starts_it_again(front: Gateway) -> None:
    runtime.set_node(front.socket, "n2", "drain")
    runtime.save_state(front.socket, front.state, front.configuration)
    worker = front.worker()
    os.kill(worker, signal.SIGKILL)
    assert front.process is not None
    # The master ends with its worker: no half-dead gateway that holds the port.
    assert front.process.wait(120) != 0
    front.start()
    front.wait_ready("n1", "n3")
    assert front.post(chat())[0] == 200
    assert front.servers()["n2"].drained


def test_sigkill_of_the_master_is_followed_by_a_start_that_serves(front: Gateway) -> None:
    worker = front.worker()
    assert front.process is not None
    front.process.kill()
    front.process.wait(120)
    # systemd ends what is left in the control group; here nobody does.
    if Path(f"/proc/{worker}").exists():
        os.kill(worker, signal.SIGKILL)
    front.start()
    front.wait_ready("n1", "n2", "n3")
    assert front.post(chat())[0] == 200


def test_a_client_that_never_reads_is_let_go_and_its_node_stops(front: Gateway) -> None:
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", front.port))
        body = json.dumps(chat(stream=True, max_tokens=100_000, padding=20_000)).encode()
        raw.sendall(raw_head(len(body)) + body)
        wait_for(lambda: any((n.control() or {})["running"] for n in front.nodes), "the answer begun")
        # Others are served meanwhile.
        assert front.post(chat())[0] == 200
        wait_for(lambda: any((n.control() or {})["cancelled"] for n in front.nodes), "the node's computing ended")
    assert all((n.control() or {})["running"] == 0 for n in front.nodes)


@pytest.mark.parametrize("pieces", ["one packet", "two packets"])
def test_a_client_that_goes_away_frees_its_place(tmp_path: Path, pieces: str) -> None:
    with gateway(tmp_path, 1, ("--prefill", "60"), node_requests=1) as front:
        node, body = front.nodes[0], json.dumps(chat()).encode()
        with socket.create_connection(("127.0.0.1", front.port)) as raw:
            head = raw_head(len(body))
            if pieces == "one packet":
                raw.sendall(head + body)
            else:
                raw.sendall(head)
                time.sleep(0.1)  # so that it really is another packet
                raw.sendall(body)
            wait_for(lambda: (node.control() or {})["running"] == 1, "the request at the node")
        wait_for(lambda: (node.control() or {})["cancelled"] == 1, "the node's computing ended")


def test_a_slow_answer_is_waited_for_though_the_client_says_nothing(tmp_path: Path) -> None:
    """The time limit of a silent client (1 s here) is not that of a node that computes (3 s)."""
    with gateway(tmp_path, 1, ("--prefill", "3"), client_seconds=1) as front:
        assert front.post(chat())[0] == 200
        assert front.post(chat(stream=True))[0] == 200


def test_a_half_sent_request_holds_no_place_at_a_node(calm: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", calm.port)) as raw:
        raw.sendall(raw_head(1000) + b"{")
        answer = raw.makefile("rb").read()
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert b"the whole request within 3 seconds" in answer
    assert all(server.sessions == 0 for server in calm.servers().values())


def test_a_thousand_idle_connections_leave_room_for_others(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    idle: list[socket.socket] = []
    try:
        with gateway(tmp_path, request_seconds=300) as front:

            def held() -> int:
                found = re.search(r"^CurrConns: (\d+)$", runtime.ask(front.socket, "show info"), re.MULTILINE)
                return int(found[1]) if found else 0

            idle += [socket.create_connection(("127.0.0.1", front.port)) for _ in range(1000)]
            wait_for(lambda: held() >= 1000, "a thousand connections held")
            assert Counter(front.post(chat())[0] for _ in range(50)) == {200: 50}
            assert held() >= 1000
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_node_at_all_is_told_at_once(front: Gateway) -> None:
    for node in front.nodes:
        node.control(ready=False)
    front.wait_ready()
    status, found, _ = front.post(chat())
    assert (status, found["retry-after"]) == (503, "2")
    connection = front.connect()
    connection.request("GET", "/health")
    assert read(connection)[0] == 503
    connection.close()
    front.nodes[0].control(ready=True)
    front.wait_ready("n1")
    assert front.post(chat())[0] == 200


def test_metrics_are_there_and_name_no_key(calm: Gateway) -> None:
    calm.post(chat())
    with urllib.request.urlopen(f"http://127.0.0.1:{calm.metrics_port}/metrics", timeout=10) as response:
        text = response.read().decode()
    assert re.search(r'^haproxy_server_status\{proxy="nodes",server="n1",state="UP"\} 1$', text, re.MULTILINE)
    assert re.search(r'^haproxy_backend_current_queue\{proxy="nodes"\} 0$', text, re.MULTILINE)
    assert KEYS["alice"] not in text


def test_the_program_drains_a_node_and_says_how_it_stands(front: Gateway) -> None:
    paths = ["--socket", front.socket, "--state", front.state, "--configuration", front.configuration]

    def program(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["/usr/bin/python3", "-I", runtime.__file__, *map(str, paths), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert program("drain", "n1", "--wait", "10").returncode == 0
    assert re.search(r"^n1 +DRAIN", program("status").stdout, re.MULTILINE)
    assert " n1 " in front.state.read_text()
    unknown = program("drain", "n9")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == "plumbline-gateway: expected a node of this gateway (n1, n2, n3), found 'n9'\n"
    assert program("ready", "n1").returncode == 0
    front.wait_ready("n1", "n2", "n3")
    front.end()
    assert "the gateway does not answer" in program("status").stderr
