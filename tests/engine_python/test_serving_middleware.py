"""The middleware in front of vLLM's own server, on the CPU: each fault that it is to survive."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine_python.serving_support import (
    CONTEXT,
    KEY,
    MODEL,
    Server,
    command,
    environment,
    free_port,
    head,
    install,
    response,
    serve,
    write_model,
)

BODY = 2**23
LONGEST = 3000
PLACES = 4
LIMIT_SECONDS = 3
SETTINGS: dict[str, Any] = {
    "prompt_maximum_characters": LONGEST,
    "remove_control_characters": True,
    "normalise_full_width_punctuation": True,
    "maximum_concurrent_requests": PLACES,
    "retry_after_seconds": 2,
    "generate_endpoint": True,
    "maximum_body_bytes": BODY,
    "receive_timeout_seconds": LIMIT_SECONDS,
    "send_timeout_seconds": LIMIT_SECONDS,
}
# It goes on for as long as a test needs it: no end token counts, and the context is long.
LONG = {"model": MODEL, "prompt": "a", "max_tokens": CONTEXT - 64, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(model, tmp_path_factory.mktemp("runtime"), SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did: afterwards nothing runs, and the server answers."""
    yield
    if "server" in request.fixturenames:
        server: Server = request.getfixturevalue("server")
        server.becomes(0)
        assert server.complete("a").status == 200


def stream(server: Server, **more: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Begin a long answer, and return once its first piece came."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    head_ = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/completions", json.dumps({**LONG, **more}), head_)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.readline().startswith(b"data: {")
    return connection, answer


def gauges(server: Server, name: str) -> list[float]:
    """Return the values of one of vLLM's metrics, one for each engine."""
    lines = server.ask("/metrics", key=None).text.splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(name + "{")]


def leave(*streams: tuple[http.client.HTTPConnection, http.client.HTTPResponse]) -> None:
    for connection, answer in streams:
        answer.close()
        connection.close()


def prompt_text(model: Path, ids: list[int]) -> str:
    """Return what the model read."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - slow

    return str(Tokenizer.from_file(str(model / "tokenizer.json")).decode(ids, skip_special_tokens=False))


# --- readiness and drain ---


def test_ready_means_that_this_start_gave_a_right_completion(server: Server) -> None:
    record = server.runtime / "ready.json"
    answer = server.status()
    assert (answer.status, answer.json["ready"], answer.json["draining"], answer.json["running"]) == (
        200,
        True,
        False,
        0,
    )
    content = record.read_text()
    try:
        for text in (json.dumps({"invocation": "of-another-start"}), "{", "[]"):
            record.write_text(text)
            answer = server.status()
            assert (answer.status, answer.json["ready"], answer.json["draining"]) == (503, False, False)
            # Notice: requests are taken all the same.
            assert server.complete("a").status == 200
    finally:
        record.write_text(content)
    assert server.status().status == 200
    assert server.ask("/plumbline/status", {}, key=None).status == 405


def test_a_drain_refuses_what_is_new_and_finishes_what_runs(server: Server) -> None:
    refused = server.status().json["refused"]
    running = stream(server, max_tokens=400)
    drain = server.runtime / "draining"
    drain.touch()
    try:
        answer = server.complete("a")
        assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (503, "2", "close")
        assert answer.json["error"]["code"] == 503
        assert "about to stop" in answer.message
        for path in (
            "/tokenize",
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/embeddings",
            "/generate",
            "/invocations",
        ):
            assert server.ask(path, {"prompt": "a"}).status == 503, path
        # What tells how it goes is still answered.
        for path in ("/health", "/metrics", "/v1/models", "/version"):
            assert server.ask(path).status == 200, path
        status = server.status()
        assert (status.status, status.json["draining"], status.json["refused"]) == (503, True, refused + 7)
        rest = running[1].read()
        assert rest.rstrip().endswith(b"data: [DONE]")
        server.becomes(0)
    finally:
        drain.unlink()
        leave(running)
    assert server.status().status == 200


def test_a_body_that_was_half_there_when_the_drain_began_is_refused(server: Server) -> None:
    """So nothing begins to run after the drain has seen that nothing runs."""
    body = json.dumps({**LONG, "stream": False}).encode()
    with server.raw() as connection:
        connection.sendall(head("/v1/completions", len(body)) + body[:20])
        drain = server.runtime / "draining"
        drain.touch()
        try:
            connection.sendall(body[20:])
            assert response(connection)[0] == 503
        finally:
            drain.unlink()


# --- admission ---


def test_more_than_the_places_are_told_to_come_again(server: Server) -> None:
    streams = [stream(server) for _ in range(PLACES)]
    try:
        assert server.running() == PLACES
        answer = server.complete("a")
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert f"({PLACES})" in answer.message
        assert "close" not in answer.headers.get("connection", "")
        # This one needs no place of the engine.
        assert server.ask("/tokenize", {"model": MODEL, "prompt": "abc"}).json["count"] == 3
        assert server.status().status == 200
        leave(streams.pop())
        server.becomes(PLACES - 1)
        assert server.complete("a").status == 200
    finally:
        leave(*streams)


# --- prompts ---


def test_control_characters_and_full_width_punctuation(server: Server, model: Path) -> None:
    dirty, clean = "a\x00b\x1b[31m\x7f\x85c\ud800，中\tＡ！\n", "ab[31mc,中\tＡ!\n"
    answer = server.complete(dirty, return_token_ids=True)
    assert prompt_text(model, answer.json["choices"][0]["prompt_token_ids"]) == clean
    several = server.complete([dirty, "plain", dirty], return_token_ids=True).json["choices"]
    found = [prompt_text(model, choice["prompt_token_ids"]) for choice in several]
    assert found == [clean, "plain", clean]
    messages = [
        {"role": "system", "content": "s\x01"},
        {"role": "user", "content": [{"type": "text", "text": dirty}, {"type": "text", "text": "？"}]},
    ]
    asked = {"model": MODEL, "messages": messages, "max_tokens": 1, "return_token_ids": True}
    for path in ("/v1/chat/completions", "/invocations"):
        answer = server.ask(path, asked)
        assert answer.status == 200, answer.text
        # vLLM itself puts a line break between the parts of a message.
        assert prompt_text(model, answer.json["prompt_token_ids"]) == f"<s><{clean}\n?>"


def test_prompts_of_tokens_pass(server: Server) -> None:
    answer = server.complete([[1, 2, 3], [4, 5]], return_token_ids=True)
    assert [choice["prompt_token_ids"] for choice in answer.json["choices"]] == [[1, 2, 3], [4, 5]]


def test_overlong_prompts_are_refused(server: Server) -> None:
    assert server.complete("中" * 2000).status == 200
    assert server.complete("x" * LONGEST).status == 200
    answer = server.complete("x" * (LONGEST + 1))
    assert (answer.status, answer.message) == (
        400,
        f"Expected a prompt of at most {LONGEST} characters, found {LONGEST + 1}: shorten it.",
    )
    messages = [
        {"role": "user", "content": "x" * 2000},
        {"role": "user", "content": [{"type": "text", "text": "y" * 1001}]},
    ]
    answer = server.ask("/v1/chat/completions", {"model": MODEL, "messages": messages})
    assert (answer.status, "found 3001" in answer.message) == (400, True)


def test_prompts_of_10_mb(server: Server) -> None:
    document = json.dumps({"model": MODEL, "prompt": "x" * 10_000_000})
    answer = server.ask("/v1/completions", document)
    assert (answer.status, answer.message) == (413, f"Expected a body of at most {BODY} bytes, found more: shorten it.")
    # Of no length that was told before.
    pieces = (document[at : at + 100_000].encode() for at in range(0, len(document), 100_000))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    fields = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", "Transfer-Encoding": "chunked"}
    connection.request("POST", "/v1/completions", pieces, fields, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    # As many at once as there are places, below the limit: refused for their length, and the server goes on.
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(server.complete("x" * 8_000_000).status)) for _ in range(PLACES)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [400] * PLACES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "tiny", "prompt": "a"',
        b"\xff\xfe\xfa",
        b'{"prompt": "\xff"}',
        b"[]",
        b"null",
        b'"text"',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"prompt": "a\x01b"}',
        b'{"max_tokens": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate", "/v1/responses"])
def test_malformed_json(server: Server, path: str, body: bytes) -> None:
    answer = server.ask(path, body, method="POST")
    assert answer.status == 400
    assert answer.message.startswith("Expected a JSON ")
    assert answer.message.endswith(".")
    assert "Traceback" not in answer.text


def test_compressed_bodies_are_refused(server: Server) -> None:
    packed = gzip.compress(json.dumps({"model": MODEL, "prompt": "a"}).encode())
    answer = server.ask("/v1/completions", packed, Content_Encoding="gzip")
    assert answer.status == 415
    assert "not compressed" in answer.message


# --- keys ---


@pytest.mark.parametrize("key", [None, "wrong", KEY + "x", KEY[:-1], "", "é"])
def test_wrong_keys(server: Server, key: str | None) -> None:
    paths = (
        "/v1/completions",
        "/v1/chat/completions",
        "/generate",
        "/invocations",
        "/tokenize",
        "/detokenize",
        "/pause",
    )
    for path in paths:
        encoded = None if key is None else key.encode().decode("latin-1")
        # Not even malformed JSON is told to somebody without the key.
        assert server.ask(path, b"{", key=encoded).status == 401, path
    assert server.ask("/v1/models", key=None).status == 401
    for path in ("/health", "/metrics", "/plumbline/status"):
        assert server.ask(path, key=None).status == 200, path


def test_without_the_key_half_a_body_is_not_waited_for(server: Server) -> None:
    with server.raw() as connection:
        connection.sendall(head("/v1/completions", 5_000_000, key="wrong") + b"{")
        assert response(connection)[0] == 401


# --- clients ---


def test_a_client_that_never_reads_loses_its_place(server: Server) -> None:
    # With these, each token is some kilobytes: more than the kernel keeps for a client.
    body = json.dumps({**LONG, "logprobs": 20, "max_tokens": CONTEXT - 64}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    try:
        connection.sendall(head("/v1/completions", len(body)) + body)
        server.becomes(1)
        server.becomes(0, seconds=240)
        # It was ended in the middle, and the connection with it: what is left of it ends without the stream's last line.
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except ConnectionResetError:
            pass
        assert b"[DONE]" not in found
    finally:
        connection.close()


def test_a_thousand_idle_connections(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip(f"needs 2000 open files, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    idle = []
    try:
        for number in range(1000):
            connection = server.raw()
            # Every other one has begun a request, and says no more.
            connection.sendall(head("/v1/completions", 100)[:60] if number % 2 else b"")
            idle.append(connection)
        assert server.complete("a").status == 200
        status = server.status()
        assert (status.status, status.json["running"]) == (200, 0)
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_half_sent_bodies_take_no_place_and_end(server: Server) -> None:
    whole = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1}).encode()
    half = [server.raw() for _ in range(3 * PLACES)]
    try:
        for connection in half:
            connection.sendall(head("/v1/completions", len(whole)) + whole[:10])
        assert server.complete("a").status == 200
        assert server.running() == 0
        # One leaves, one goes on and is answered, the others are told.
        half.pop().close()
        finishing = half.pop()
        finishing.sendall(whole[10:])
        assert response(finishing)[0] == 200
        finishing.close()
        for connection in half:
            status, text = response(connection)
            assert (status, json.loads(text)["error"]["type"]) == (408, "RequestTimeoutError")
            assert connection.recv(1) == b""
    finally:
        for connection in half:
            connection.close()


def test_a_client_that_is_gone_in_mid_stream_is_no_longer_computed_for(server: Server) -> None:
    streams = [stream(server) for _ in range(PLACES)]
    assert server.running() == PLACES
    leave(*streams)
    server.becomes(0)
    # The engine's gauge moves with its steps only: one more request moves it. Eight abandoned answers of thousands of tokens would show.
    assert server.complete("a").status == 200
    until = time.monotonic() + 10
    while any(running := gauges(server, "vllm:num_requests_running")) and time.monotonic() < until:
        time.sleep(0.2)
    assert running
    assert not any(running), f"the engine still computes: {running}"


def test_counts_do_not_leak_whenever_clients_leave(server: Server) -> None:
    """Each leaves at a moment of its own: within the head, the body, before, in and after the answer."""
    body = json.dumps({**LONG, "max_tokens": 40}).encode()
    request = head("/v1/completions", len(body)) + body
    choose = random.Random(1)

    def hammer(seed: int) -> None:
        moments = random.Random(seed)
        for _ in range(25):
            with server.raw() as connection:
                sent = moments.choice([len(request), len(request), moments.randrange(len(request))])
                connection.sendall(request[:sent])
                if sent == len(request) and moments.random() < 0.7:
                    connection.settimeout(moments.random())
                    with contextlib.suppress(TimeoutError):
                        connection.recv(moments.choice([1, 500, 100_000]))

    threads = [threading.Thread(target=hammer, args=(choose.randrange(10**6),)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.becomes(0)


def test_pipelined_requests_are_answered_in_their_order(server: Server) -> None:
    bodies = [
        json.dumps({"model": MODEL, "prompt": text, "max_tokens": 1, "echo": True}).encode()
        for text in ("a", "b\x00b", "c")
    ]
    with server.raw() as connection:
        connection.sendall(b"".join(head("/v1/completions", len(body)) + body for body in bodies))
        # One reader for all three, since it may read ahead.
        answers = connection.makefile("rb")
        found = []
        for _ in bodies:
            assert b" 200 " in answers.readline()
            length = 0
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            found.append(json.loads(answers.read(length))["choices"][0]["text"])
    assert [text.startswith(start) for text, start in zip(found, ("a", "bb", "c"), strict=True)] == [True] * 3


def test_a_stream_arrives_piece_by_piece(server: Server) -> None:
    """The first piece is here while the server still computes the last."""
    running = stream(server)
    assert server.running() == 1
    lines = [running[1].readline() for _ in range(20)]
    assert sum(line.startswith(b"data: {") for line in lines) == 10
    leave(running)


# --- the old clients' path ---


def test_generate_is_a_completion(server: Server) -> None:
    wanted = server.complete("hello", max_tokens=12).json["choices"][0]["text"]
    answer = server.ask("/generate", {"prompt": "hello", "max_tokens": 12})
    assert (answer.status, set(answer.json)) == (200, {"text"})
    assert answer.json["text"] == wanted
    assert server.ask("/generate", {"prompt": "x" * (LONGEST + 1)}).status == 400
    # What vLLM refuses stays refused, in its words.
    answer = server.ask("/generate", {"prompt": "a", "max_tokens": 10 * CONTEXT})
    assert (answer.status, answer.json["error"]["code"]) == (400, 400)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": ["a"]}, "prompt to be a text"),
        ({}, "prompt to be a text"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens to be a whole number"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens to be a whole number"),
        ({"prompt": "a", "stream": True}, "found stream as well"),
    ],
)
def test_generate_says_what_it_wants(server: Server, body: dict[str, Any], words: str) -> None:
    answer = server.ask("/generate", body)
    assert answer.status == 400
    assert words in answer.message


# --- several API server processes, and wrong settings ---


@pytest.mark.long
def test_two_api_servers_count_together_and_truncate(model: Path, tmp_path: Path) -> None:
    settings = {"prompt_maximum_characters": 100, "prompt_overlong": "truncate"}
    with serve(model, tmp_path, settings, "--api-server-count", "2", "--root-path", "/below") as server:
        streams = [stream(server) for _ in range(6)]
        # Whichever process is asked, it knows of all.
        assert {server.running() for _ in range(20)} == {6}
        leave(*streams)
        server.becomes(0)
        long = "x" * 60 + "中" * 60
        answer = server.complete(long, return_token_ids=True)
        assert prompt_text(model, answer.json["choices"][0]["prompt_token_ids"]) == long[:100]
        assert (
            server.ask("/below/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1}, key="wrong").status
            == 401
        )
        (tmp_path / "draining").touch()
        assert {server.complete("a").status for _ in range(20)} == {503}
        assert server.status().json["refused"] == 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"prompt_overlong": "cut"},
            "expected prompt_overlong in PLUMBLINE_SERVING to be refuse or truncate, found 'cut'",
        ),
        ({"drains": 1}, "found 'drains' as well"),
        ("{", "expected PLUMBLINE_SERVING to be a JSON object"),
    ],
)
def test_wrong_settings_end_it_before_a_model_is_loaded(model: Path, tmp_path: Path, settings: Any, words: str) -> None:
    install(tmp_path)
    done = subprocess.run(
        command(model, free_port()),
        env=environment(tmp_path, settings),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("plumbline_serving: expected ")
    assert words in last
    assert "Traceback" not in done.stderr
    assert "Loading weights" not in done.stdout + done.stderr
