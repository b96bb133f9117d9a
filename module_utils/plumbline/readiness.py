"""Ready means that a right completion came back.

`/health` answers 200 for a model whose every logit is equal, so it proves nothing. This file is both a library and, copied to
`/opt/plumbline/bin/plumbline-ready`, the program that the serving unit runs after its engine: the unit is active only once it succeeded.
Standard library only, Python 3.9, no import from its neighbours (it must stand alone on the node).

`wait` waits for the right completion. `back-off`, before the engine starts, forgets what the last run left and pauses after
starts that came to nothing: systemd itself learnt to lengthen its pauses only in version 254.

Exit codes: 0 ready; 75 not ready in time, or the engine ended (worth another try); 78 refused: it answers, but wrongly
(trying again will not help).
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import math
import os
import re
import socket
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable
from urllib.parse import urlsplit

EXIT_READY, EXIT_NOT_READY, EXIT_REFUSED = 0, 75, 78
FLAT = 1e-4
"""Log-probabilities closer than this are called equal; the best tokens of a working model differ by more at least once."""
TOP_LOGPROBS = 5
MOST_FAULTS = 5
"""After so many answers HTTP 500 in a row the endpoint is given up: its engine lives, and fails the same way each time."""


class NotYet(Exception):  # noqa: N818  a state of the endpoint, not a fault of the program
    """The endpoint does not answer yet; asking again may help."""


class ServerFault(NotYet):
    """The endpoint says that it failed inside; it may be about to end, or may have to be given up."""


class Refused(Exception):  # noqa: N818
    """The endpoint answers, but not rightly; asking again will not help."""


class KeyRefused(Refused):
    """The endpoint refuses the API key."""


@dataclass(frozen=True)
class Question:
    """What to ask, and a regular expression that must be found in the answer."""

    text: str
    expected: str
    api: str = "chat"
    max_tokens: int = 24

    def body(self, model: str) -> dict[str, Any]:
        """Return the request body: greedy, with the log-probabilities of the best tokens."""
        common: dict[str, Any] = {"model": model, "max_tokens": self.max_tokens, "temperature": 0, "stream": False}
        if self.api == "chat":
            return {
                **common,
                "messages": [{"role": "user", "content": self.text}],
                "logprobs": True,
                "top_logprobs": TOP_LOGPROBS,
            }
        return {**common, "prompt": self.text, "logprobs": TOP_LOGPROBS}

    @property
    def path(self) -> str:
        """Return the path below the base URL."""
        return "/chat/completions" if self.api == "chat" else "/completions"


@dataclass(frozen=True)
class Answer:
    """A completion: its text, and for each token the log-probabilities of the best candidates (empty when the server gives none)."""

    text: str
    top_logprobs: list[list[float]]
    completion_tokens: int
    model: str
    seconds: float = 0.0


def parse_answer(api: str, payload: Any) -> Answer:
    """Return the answer in the JSON of a completion.

    :raises Refused: when it is not what the API promises.
    """
    try:
        choice = payload["choices"][0]
        usage = payload.get("usage") or {}
        logprobs = choice.get("logprobs") or {}
        if api == "chat":
            text = choice["message"]["content"] or ""
            top = [
                [float(entry["logprob"]) for entry in token.get("top_logprobs", [])]
                for token in logprobs.get("content") or []
            ]
        else:
            text = choice["text"]
            top = [[float(value) for value in (token or {}).values()] for token in logprobs.get("top_logprobs") or []]
        return Answer(text, top, int(usage.get("completion_tokens", 0)), str(payload.get("model", "")))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Refused(
            f"the endpoint's completion is not what the OpenAI API promises ({type(error).__name__}: {error}); "
            "is another program on this port?"
        ) from error


def degenerate(top_logprobs: list[list[float]]) -> str:
    """Return what is wrong with the model's distribution, or nothing.

    A checkpoint that lost its (tied) embedding gives equal logits: all candidates of every token are equally likely.
    """
    values = [value for token in top_logprobs for value in token]
    if any(not math.isfinite(value) for value in values):
        return "a log-probability is not a finite number"
    judged = [token for token in top_logprobs if len(token) > 1]
    if judged and all(max(token) - min(token) < FLAT for token in judged):
        return (
            f"the {TOP_LOGPROBS} best candidates of all {len(judged)} tokens are equally likely, as when a weight such as "
            "the tied embedding is missing"
        )
    return ""


def judge(question: Question, answer: Answer) -> str:
    """Return why the answer is not right, as a sentence, or nothing."""
    remedy = "verify the checkpoint against its source and run the model stage again"
    flat = degenerate(answer.top_logprobs)
    if flat:
        return f"the model answers nonsense: {flat}; {remedy}"
    if not answer.text.strip():
        return f"the model answered {question.text!r} with no text ({answer.completion_tokens} tokens); {remedy}"
    if not re.search(question.expected, answer.text):
        return (
            f"the model answered {question.text!r} with {answer.text.strip()[:200]!r}, in which {question.expected!r} was "
            f"not found; {remedy}, or set serving_ready_question and serving_ready_expected to what this model knows"
        )
    return ""


def ask(base_url: str, api_key: str, model: str, question: Question, timeout_seconds: float) -> Answer:
    """Ask the endpoint.

    :raises NotYet: when it cannot be reached or says that it is busy. :raises Refused: for any other answer that is no completion.
    """
    parts = urlsplit(base_url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme != "http" or not parts.hostname or port == -1:
        raise Refused(f"the base URL is like http://127.0.0.1:8000/v1, not {base_url!r}")
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout_seconds)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    began = time.monotonic()
    try:
        connection.request("POST", parts.path.rstrip("/") + question.path, json.dumps(question.body(model)), headers)
        response = connection.getresponse()
        status, body = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise NotYet(f"no answer from {base_url}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if status in (429, 502, 503, 504):
        raise NotYet(f"{base_url} answers HTTP {status}")
    if status in (401, 403):
        raise KeyRefused(
            f"{base_url} refuses the API key (HTTP {status}); compare serving_api_key with the key that the service was started with"
        )
    text = body.decode("utf-8", "replace")
    if status >= 500:
        raise ServerFault(f"{base_url} answers HTTP {status} to a plain question: {text.strip()[:300]}")
    if status != 200:
        raise Refused(f"{base_url} answers HTTP {status} to a plain question: {text.strip()[:300]}")
    try:
        payload = json.loads(text)
    except ValueError as error:
        raise Refused(
            f"{base_url} answers with something that is not JSON; is another program on this port?"
        ) from error
    answer = parse_answer(question.api, payload)
    return Answer(answer.text, answer.top_logprobs, answer.completion_tokens, answer.model, time.monotonic() - began)


def alive(pid: int | None) -> bool:
    """Tell whether the process still runs; always, when no process is to be watched."""
    return pid is None or Path(f"/proc/{pid}").exists()


@dataclass(frozen=True)
class Wait:
    """How to wait: until when on the monotonic clock, whom to watch, and where to say how it goes."""

    deadline: float
    main_pid: int | None
    report: Callable[[str], None]
    request_timeout_seconds: float = 120.0
    pause_seconds: float = 1.0


def wait_until_ready(base_url: str, api_key: str, model: str, question: Question, wait: Wait) -> Answer:
    """Return the right answer, once it comes.

    :raises NotYet: when the time is over or the engine ended. :raises Refused: at once, when the answer is wrong.
    """
    last = "nothing tried yet"
    faults = 0
    while True:
        if not alive(wait.main_pid):
            raise NotYet("the engine ended before it answered; the lines above say why")
        remaining = wait.deadline - time.monotonic()
        if remaining <= 0:
            raise NotYet(f"no right completion in time; last: {last}")
        try:
            answer = ask(base_url, api_key, model, question, min(wait.request_timeout_seconds, remaining))
        except NotYet as error:
            last = str(error)
            faults = faults + 1 if isinstance(error, ServerFault) else 0
            if faults >= MOST_FAULTS:
                raise NotYet(f"{last} ({faults} times in a row)") from error
            wait.report(f"waiting: {last}")
            time.sleep(min(wait.pause_seconds, max(0.0, remaining)))
            continue
        problem = judge(question, answer)
        if problem:
            raise Refused(problem)
        return answer


def record(path: Path, answer: Answer, api_key: str, main_pid: int | None, url: str) -> None:
    """Write what runs now: which configuration, model and key it was started with, and its answer. Readable by its owner and root only.

    `PLUMBLINE_CONFIGURATION` and `PLUMBLINE_SERVES` come from the unit, `INVOCATION_ID`, which names this start, from systemd.
    """
    content = {
        "configuration": os.environ.get("PLUMBLINE_CONFIGURATION", ""),
        "serves": os.environ.get("PLUMBLINE_SERVES", ""),
        "invocation": os.environ.get("INVOCATION_ID", ""),
        "url": url,
        "key_sha256": key_digest(api_key),
        "main_pid": main_pid,
        "ready_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "answer": {key: value for key, value in asdict(answer).items() if key != "top_logprobs"},
    }
    temporary = path.with_name(path.name + ".new")
    temporary.unlink() if temporary.exists() else None
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(content, file)
    temporary.replace(path)


def key_digest(api_key: str) -> str:
    """Return what stands for a key where it must be compared but not kept."""
    return hashlib.sha256(api_key.encode()).hexdigest()


def pause_seconds(failures: int, delay: float, maximum: float) -> float:
    """Return how long to pause before a start, after so many that did not become ready: none twice, then doubling up to a maximum.

    The first retry comes at once, so that an engine that was killed is soon back.
    """
    return 0.0 if failures < 2 else min(maximum, delay * 2.0 ** min(failures - 2, 30))


def count_start(path: Path) -> int:
    """Return how many starts in a row did not become ready, and count this one as such until `wait` says otherwise."""
    try:
        failures = max(0, int(path.read_text(encoding="ascii")))
    except (OSError, ValueError):
        failures = 0
    path.write_text(str(failures + 1), encoding="ascii")
    return failures


def notify(message: str) -> None:
    """Tell systemd how it goes (`systemctl status` shows it); silent where nobody listens. Protocol: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(f"STATUS={message}".encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        return


def _reporter() -> Callable[[str], None]:
    """Return a function that says each new thing once in the journal, and keeps the status line fresh."""
    began = time.monotonic()
    last = [""]

    def report(message: str) -> None:
        notify(f"{message} ({time.monotonic() - began:.0f} s)")
        if message != last[0]:
            print(f"plumbline-ready: {message}", flush=True)
            last[0] = message

    return report


def main(arguments: list[str] | None = None) -> int:
    """Run the program; the API key comes from the environment variable VLLM_API_KEY."""
    parser = argparse.ArgumentParser(
        prog="plumbline-ready", description="Tell whether an OpenAI-compatible endpoint is ready."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    wait = commands.add_parser("wait", help="wait until the endpoint gives a right completion")
    wait.add_argument("--url", required=True, help="base URL, for example http://127.0.0.1:8000/v1")
    wait.add_argument("--model", required=True, help="name of the served model")
    wait.add_argument("--question", required=True, help="what to ask")
    wait.add_argument("--expected", required=True, help="regular expression that must be found in the answer")
    wait.add_argument("--api", choices=("chat", "completions"), default="chat")
    wait.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="how long to wait in all")
    wait.add_argument("--record", type=Path, help="file to write what runs now to")
    wait.add_argument("--failures", type=Path, help="file of the count of failed starts, removed when ready")
    back_off = commands.add_parser("back-off", help="pause after starts that did not become ready")
    back_off.add_argument("--failures", type=Path, required=True, help="file of the count of failed starts")
    back_off.add_argument("--delay", type=float, required=True, metavar="SECONDS", help="first pause")
    back_off.add_argument("--maximum", type=float, required=True, metavar="SECONDS", help="longest pause")
    back_off.add_argument("--forget", type=Path, nargs="+", default=[], help="files of the last run, to be removed")
    options = parser.parse_args(arguments)
    report = _reporter()
    return _back_off(options, report) if options.command == "back-off" else _wait(options, report)


def _back_off(options: argparse.Namespace, report: Callable[[str], None]) -> int:
    for path in options.forget:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            report(f"error: {path} of the last run cannot be removed ({error})")
            return EXIT_NOT_READY
    try:
        failures = count_start(options.failures)
    except OSError as error:
        # A full /run, say: no reason not to serve. It could be the tenth start in a row that fails, so pause as after two.
        report(f"failed starts cannot be counted in {options.failures} ({error}); pausing {options.delay:.0f} s")
        time.sleep(options.delay)
        return EXIT_READY
    seconds = pause_seconds(failures, options.delay, options.maximum)
    if seconds:
        report(f"pausing {seconds:.0f} s after {failures} starts that did not become ready")
        time.sleep(seconds)
    return EXIT_READY


def _wait(options: argparse.Namespace, report: Callable[[str], None]) -> int:
    try:
        re.compile(options.expected)
    except re.error as error:
        report(
            f"refused: the expected answer {options.expected!r} is no regular expression ({error}); correct serving_ready_expected"
        )
        return EXIT_REFUSED
    main_pid = int(os.environ["MAINPID"]) if os.environ.get("MAINPID", "").isdigit() else None
    api_key = os.environ.get("VLLM_API_KEY", "")
    question = Question(options.question, options.expected, options.api)
    try:
        patience = Wait(time.monotonic() + options.timeout, main_pid, report)
        answer = wait_until_ready(options.url, api_key, options.model, question, patience)
    except Refused as error:
        report(f"refused: {error}")
        return EXIT_REFUSED
    except NotYet as error:
        report(f"not ready: {error}")
        return EXIT_NOT_READY
    try:
        if options.record:
            record(options.record, answer, api_key, main_pid, options.url)
        if options.failures and options.failures.exists():
            options.failures.unlink()
    except OSError as error:
        report(f"not ready: what runs now could not be noted ({error})")
        return EXIT_NOT_READY
    report(f"ready: {answer.text.strip()[:80]!r} in {answer.seconds:.1f} s")
    return EXIT_READY


if __name__ == "__main__":
    sys.exit(main())
