"""The middleware around applications of the test's own: what vLLM on the CPU does not show, or not in a moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import plumbline_serving
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plumbline_serving.counts import Counts
from plumbline_serving.middleware import Middleware
from plumbline_serving.prompts import Hygiene, Refusal
from plumbline_serving.settings import Settings, SettingsError, from_environment
from plumbline_serving.text import full_width_punctuation, with_usual_punctuation, without_control_characters

from tests.conftest import CHECKOUT

Message = dict[str, Any]
ECHO_PATH = "/v1/chat/completions"


def scope(path: str = ECHO_PATH, method: str = "POST", **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": [], **more}


class Client:
    """A client: the messages that it sends, and what it got."""

    def __init__(self, *messages: Message) -> None:
        self.left = list(messages)
        self.got: list[Message] = []

    async def receive(self) -> Message:
        if not self.left:
            await asyncio.Event().wait()  # it is there and says no more
        return self.left.pop(0)

    async def send(self, message: Any) -> None:
        self.got.append(dict(message))

    @property
    def status(self) -> int:
        return int(self.got[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.got[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got[1:])


def body(content: Any, more: bool = False) -> Message:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return {"type": "http.request", "body": raw, "more_body": more}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body that it got, and with the length that its header names."""
    whole = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise RuntimeError("the client is gone")
        whole += message["body"]
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": scope["headers"]})
    await send({"type": "http.response.body", "body": whole})


def middleware(app: Callable[..., Awaitable[None]] = echo, **settings: Any) -> Middleware:
    return Middleware(app, Settings(**settings))


async def answer(inside: Middleware, client: Client, **more: Any) -> Client:
    with contextlib.suppress(RuntimeError):  # the application's own trouble with a client that is gone
        await inside(scope(**more), client.receive, client.send)
    return client


# --- texts ---


def test_full_width_punctuation_is_unicodes_own() -> None:
    found = full_width_punctuation()
    assert {"，": ",", "！": "!", "（": "(", "：": ":", "\u3000": " ", "￥": "¥"}.items() <= found.items()
    for kept in "ＡｚＺ０９。、「」中ｱ“":
        assert kept not in found
    assert with_usual_punctuation("ＡＢ，中文。（１）") == "ＡＢ,中文。(１)"


@given(st.text(st.characters(codec=None)))
def test_what_is_taken_out_is_what_unicode_calls_control_or_surrogate(text: str) -> None:
    wanted = "".join(c for c in text if c in "\t\n\r" or unicodedata.category(c) not in ("Cc", "Cs"))
    assert without_control_characters(text) == wanted


@given(st.text())
def test_only_punctuation_changes_and_only_its_form(text: str) -> None:
    found = with_usual_punctuation(text)
    assert len(found) == len(text)
    for before, after in zip(text, found, strict=True):
        assert before == after or after == unicodedata.normalize("NFKC", before)


def test_text_without_anything_to_do_stays_the_same_object() -> None:
    for text in ("plain\n", "中文。", "é\u00a0", "한글", "😀"):
        assert without_control_characters(text) is text
        assert with_usual_punctuation(text) is text


# --- prompts ---


def shortened(document: dict[str, Any], maximum: int = 10) -> dict[str, Any]:
    Hygiene(Settings(prompt_maximum_characters=maximum, prompt_overlong="truncate")).document(document)
    return document


def test_a_prompt_is_cut_between_characters() -> None:
    assert shortened({"prompt": "😀" * 11})["prompt"] == "😀" * 10
    assert shortened({"prompt": ["a" * 11, "b" * 10, "c"]})["prompt"] == ["a" * 10, "b" * 10, "c"]


def test_of_a_conversation_the_longest_text_is_cut() -> None:
    told = shortened({"messages": [{"content": "sys"}, {"content": "d" * 20}, {"content": "why?"}]})
    assert [message["content"] for message in told["messages"]] == ["sys", "ddd", "why?"]
    with pytest.raises(Refusal, match="at most 10 characters, found 33"):
        shortened({"messages": [{"content": "x" * 11}] * 3})


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"role": "user", "content": "a\x00"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\x00"}]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a\x00"}]}]}
            ]
        },
        {"messages": [[{"role": "user", "content": "a\x00"}]]},
        {"input": "a\x00"},
        {"input": [{"type": "message", "content": [{"type": "input_text", "text": "a\x00"}]}]},
        {"system": [{"type": "text", "text": "a\x00"}], "messages": []},
        {"instructions": "a\x00", "input": "b"},
        {"prompt": ["b", "a\x00"]},
    ],
)
def test_texts_are_found_wherever_an_api_puts_them(document: dict[str, Any]) -> None:
    assert Hygiene(Settings(remove_control_characters=True)).document(document) is True
    assert "\\u0000" not in json.dumps(document)


def test_what_is_no_prose_is_left_alone() -> None:
    document = {
        "model": "a\x00",
        "prompt": [[1, 2], 3, None],
        "messages": [
            {"content": None, "name": "，"},
            {"content": [{"type": "image_url", "image_url": {"url": "data:，\x00"}}]},
            7,
        ],
        "user": "\x00",
    }
    settings = Settings(
        remove_control_characters=True, normalise_full_width_punctuation=True, prompt_maximum_characters=1
    )
    assert Hygiene(settings).document(document) is False


def test_a_body_with_nothing_to_change_passes_as_it_is() -> None:
    raw = b'{"prompt" : "a\\u4e2d" ,"x":1e4}'
    assert Hygiene(Settings(remove_control_characters=True, prompt_maximum_characters=9)).body(raw) is raw


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_what_is_no_number_is_no_json(number: bytes) -> None:
    with pytest.raises(Refusal, match="is no number of JSON"):
        Hygiene(Settings()).body(b'{"temperature": ' + number + b"}")


def test_a_changed_body_is_the_same_but_for_the_change() -> None:
    document = {
        "prompt": "a\x00\u2028中😀",
        "seed": 2**70,
        "b": [None, True, 0.1, -1.5e-7, {"x": ""}],
        "logit_bias": {"50256": -100},
    }
    found = Hygiene(Settings(remove_control_characters=True)).body(json.dumps(document).encode())
    assert json.loads(found) == {**document, "prompt": "a\u2028中😀"}


def test_a_lone_surrogate_that_may_stay_is_still_json() -> None:
    found = Hygiene(Settings(normalise_full_width_punctuation=True)).body(b'{"prompt": "\\ud800\\uff0c"}')
    assert json.loads(found) == {"prompt": "\ud800,"}


# --- settings ---


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"maximum_body_bytes": -1}, "a whole number, 0 or more, found -1"),
        ({"maximum_body_bytes": 1.5}, "a whole number"),
        ({"maximum_body_bytes": True}, "a whole number"),
        ({"generate_endpoint": 1}, "true or false"),
        ({"model": None}, "a text"),
        ({"send_timeout_seconds": "3"}, "a number, 0 or more"),
        ({"nonsense": 1}, "found 'nonsense' as well"),
        ({"prompt_overlong": ""}, "refuse or truncate"),
        ([], "a JSON object, found list"),
    ],
)
def test_wrong_settings_are_one_sentence(document: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_SERVING", json.dumps(document))
    with pytest.raises(SettingsError, match=words):
        Middleware(echo)
    with pytest.raises(SystemExit, match=words):
        plumbline_serving.check_settings()


def test_not_a_number_is_no_time() -> None:
    with pytest.raises(SettingsError, match="send_timeout_seconds"):
        from_environment({"PLUMBLINE_SERVING": '{"send_timeout_seconds": NaN}'})


# --- counts ---


ANOTHER = """
import pathlib, sys
from plumbline_serving.counts import Counts
Counts(pathlib.Path(sys.argv[1]), "start").begin()
print("begun", flush=True)
sys.stdin.read()
"""


def test_processes_of_one_start_count_together_and_the_dead_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "requests.earlier").write_bytes(b"x")
    here = Counts(tmp_path, "start")
    assert [path.name for path in tmp_path.iterdir()] == ["requests.start"]
    here.begin()
    here.refuse()
    process = subprocess.Popen(
        [sys.executable, "-c", ANOTHER, str(tmp_path)],
        env={"PYTHONPATH": str(CHECKOUT / "engine_plugins/serving")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert (here.running(), here.refused()) == (2, 1)
    here.forget_the_dead()
    assert here.running() == 2
    process.kill()
    process.communicate()
    here.forget_the_dead()
    assert here.running() == 1
    here.end()
    assert here.running() == 0


def test_counts_live_in_the_process_where_there_is_no_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    counts = Counts(tmp_path / "nowhere", "start")
    counts.begin()
    assert counts.running() == 1
    assert "cannot hold the counts" in capfd.readouterr().out


# --- requests ---


async def test_the_length_is_that_of_the_changed_body() -> None:
    raw = json.dumps({"prompt": "a\x00"}).encode()
    inside = middleware(remove_control_characters=True)
    headers = [(b"content-length", str(len(raw)).encode()), (b"x", b"y")]
    client = await answer(inside, Client(body(raw[:5], True), body(raw[5:])), headers=headers)
    assert json.loads(client.body) == {"prompt": "a"}
    assert client.headers == {b"content-length": str(len(client.body)).encode(), b"x": b"y"}
    assert headers[0][1] == str(len(raw)).encode()  # the server's own are left alone


async def test_other_bodies_pass_in_pieces_and_within_the_limit() -> None:
    inside = middleware(maximum_body_bytes=6)
    client = await answer(inside, Client(body(b"abc", True), body(b"def")), path="/v1/audio/transcriptions")
    assert (client.status, client.body) == (200, b"abcdef")
    client = await answer(inside, Client(body(b"abc", True), body(b"defg")), path="/v1/audio/transcriptions")
    assert client.status == 413
    assert inside.service.counts.running() == 0


async def test_nothing_is_counted_any_more_after_the_application_failed() -> None:
    async def failing(_: Any, receive: Any, __: Any) -> None:
        await receive()
        raise RuntimeError("it broke")

    inside = middleware(failing)
    await answer(inside, Client(body({})))
    assert inside.service.counts.running() == 0


async def test_a_cancelled_request_is_cancelled_and_not_counted() -> None:
    begun = asyncio.Event()

    async def endless(_: Any, receive: Any, __: Any) -> None:
        await receive()
        begun.set()
        await asyncio.Event().wait()

    inside = middleware(endless)
    client = Client(body({}))
    task = asyncio.create_task(inside(scope(), client.receive, client.send))
    await begun.wait()
    assert inside.service.counts.running() == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inside.service.counts.running() == 0
    assert client.got == []


async def test_a_body_that_never_ends_is_told_so() -> None:
    inside = middleware(receive_timeout_seconds=0.05)
    client = await answer(inside, Client(body(b"{", True)))
    assert (client.status, client.headers[b"connection"]) == (408, b"close")


async def test_a_client_that_never_reads_is_let_go() -> None:
    class Deaf(Client):
        class Transport:
            aborted = False

            def abort(self) -> None:
                self.aborted = True

        transport = Transport()

        async def send(self, message: Any) -> None:
            await asyncio.Event().wait()

    inside = middleware(send_timeout_seconds=0.05)
    client = Deaf(body({}))
    await answer(inside, client)
    assert client.transport.aborted
    assert inside.service.counts.running() == 0


async def test_without_limits_nobody_is_hurried() -> None:
    inside = middleware(receive_timeout_seconds=0, send_timeout_seconds=0)
    client = Client(body(b"{", True))
    task = asyncio.create_task(inside(scope(), client.receive, client.send))
    done, _ = await asyncio.wait([task], timeout=0.2)
    assert not done
    task.cancel()


async def test_the_path_below_the_root_path_counts() -> None:
    inside = middleware(remove_control_characters=True)
    client = await answer(inside, Client(body({"prompt": "\x00"})), path="/below/v1/completions", root_path="/below")
    assert json.loads(client.body) == {"prompt": ""}
    client = await answer(inside, Client(), path="/below/plumbline/status", root_path="/below", method="GET")
    assert "running" in json.loads(client.body)


@pytest.mark.parametrize("path", ["/sleep", "/v1/load_lora_adapter", "/ping"])
async def test_operation_goes_on_while_draining_and_full(path: str, tmp_path: Path) -> None:
    (tmp_path / "draining").touch()
    inside = middleware(drain_file=str(tmp_path / "draining"), maximum_concurrent_requests=1)
    inside.service.counts.begin()
    assert (await answer(inside, Client(body(b"x")), path=path)).status == 200


async def test_before_a_connection_is_closed_the_body_is_taken(tmp_path: Path) -> None:
    """Else the kernel resets it, and the client may never see the 503."""
    (tmp_path / "draining").touch()
    client = Client(body(b"{", True), body(b"}"))
    await answer(middleware(drain_file=str(tmp_path / "draining"), retry_after_seconds=9), client)
    assert (client.status, client.headers[b"retry-after"], client.headers[b"connection"]) == (503, b"9", b"close")
    assert client.left == []


async def test_a_key_is_asked_where_vllm_asks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    inside = middleware()
    for authorization, status in (
        (b"Bearer secret", 200),
        (b"bearer secret", 200),
        (b"Bearer x", 401),
        (b"secret", 401),
    ):
        client = await answer(
            inside, Client(body({})), path="/invocations", headers=[(b"authorization", authorization)]
        )
        assert client.status == status


async def test_the_status_is_not_ready_when_the_engine_is_not_well() -> None:
    async def unwell(scope: Any, _: Any, send: Any) -> None:
        assert (scope["method"], scope["path"]) == ("GET", "/health")
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def broken(*_: Any) -> None:
        raise RuntimeError("no engine")

    for app, status in ((echo, 200), (unwell, 503), (broken, 503)):
        client = await answer(middleware(app), Client(), path="/plumbline/status", method="GET")
        assert (client.status, json.loads(client.body)["ready"]) == (status, status == 200)


async def test_without_systemd_the_record_names_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    record = tmp_path / "ready.json"
    inside = middleware(ready_record=str(record))
    for pid, status in ((os.getpid(), 200), (os.getppid(), 200), (1, 503)):
        record.write_text(json.dumps({"main_pid": pid, "invocation": ""}))
        assert (await answer(inside, Client(), path="/plumbline/status", method="GET")).status == status


async def test_a_websocket_passes_counts_and_is_refused_while_draining(tmp_path: Path) -> None:
    seen: list[int] = []
    drain = tmp_path / "draining"

    async def talk(scope: Any, receive: Any, send: Any) -> None:
        seen.append(inside.service.counts.running())
        assert scope["type"] == "websocket"
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})

    inside = middleware(talk, drain_file=str(drain))
    connection = {"type": "websocket", "path": "/v1/realtime", "headers": []}
    client = Client({"type": "websocket.connect"})
    await inside(connection, client.receive, client.send)
    assert (seen, client.got) == ([1], [{"type": "websocket.accept"}])
    assert inside.service.counts.running() == 0
    drain.touch()
    client = Client({"type": "websocket.connect"})
    await inside(connection, client.receive, client.send)
    assert [message["type"] for message in client.got] == ["websocket.close"]
    assert (len(seen), inside.service.counts.refused()) == (1, 1)


async def test_lifespan_and_other_methods_pass_untouched(tmp_path: Path) -> None:
    (tmp_path / "draining").touch()
    seen: list[Any] = []

    async def note(*arguments: Any) -> None:
        seen.append(arguments)

    inside = middleware(note, drain_file=str(tmp_path / "draining"), maximum_body_bytes=1)
    for passed in ({"type": "lifespan"}, scope(method="GET"), scope(method="OPTIONS"), scope("/metrics", "GET")):
        client = Client()
        arguments = (passed, client.receive, client.send)
        await inside(*arguments)
        assert seen.pop() == arguments
