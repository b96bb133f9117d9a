"""What the middleware costs a request: `python bench/serving_middleware.py [--rounds 7]`, with the engine's Python or any from 3.10.

The same application answers with and without the middleware around it, in turns (so that a machine's noise hits both alike); the
difference of the medians of a round is what the middleware adds: head, body, hygiene, counts and the two messages of the answer. The bound
is 50 microseconds for a prompt of 2,000 characters, with every setting on. Prints JSON; ends with 1 where the bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine_plugins/serving"))

from plumbline_serving.middleware import Middleware
from plumbline_serving.settings import Settings

CHARACTERS = 2000
BOUND_MICROSECONDS = 50.0
REQUESTS = 400
_ENGLISH = "The quick brown fox jumps over the lazy dog, and asks:\nwhy? "


def chinese(punctuation: str) -> str:
    """Return CHARACTERS characters, an eighth of them punctuation, the others Chinese of all kinds: searching is slower there."""
    choose = random.Random(1)
    return "".join(
        choose.choice(punctuation) if choose.random() < 1 / 8 else chr(choose.randrange(0x4E00, 0x9FA6))
        for _ in range(CHARACTERS)
    )


def prompts() -> dict[str, str]:
    """Return the prompts by name, each of CHARACTERS characters."""
    english = _ENGLISH * CHARACTERS
    return {
        "English, nothing to change": english[:CHARACTERS],
        "Chinese, nothing to change": chinese("。、"),
        "English, a control character in each line": english.replace("\n", "\x00\n")[:CHARACTERS],
        "Chinese, full-width punctuation": chinese("，？！（）："),
        "Chinese, full-width punctuation and control characters": chinese("，？！（）：\x00\x1b"),
    }


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read the body and answer."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def seconds(app: Any, body: bytes) -> float:
    """Return the median duration of a request."""
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": head}
    message = {"type": "http.request", "body": body, "more_body": False}

    async def receive() -> dict[str, Any]:
        return message

    async def send(_: Any) -> None:
        return

    found = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        await app(scope, receive, send)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


async def measure(rounds: int) -> dict[str, Any]:
    """Return, for each prompt, what each round found, in microseconds."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(
            prompt_maximum_characters=CHARACTERS,
            remove_control_characters=True,
            normalise_full_width_punctuation=True,
            maximum_concurrent_requests=1000,
            maximum_body_bytes=2**23,
            drain_file=f"{directory}/draining",
        )
        inside = Middleware(application, settings)
        found: dict[str, Any] = {}
        for name, prompt in prompts().items():
            document = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
            # ASCII only is what most clients send, and more to parse: \uXXXX for each Chinese character.
            body = json.dumps(document).encode()
            added = [(await seconds(inside, body) - await seconds(application, body)) * 1e6 for _ in range(rounds)]
            found[name] = {
                "body_bytes": len(body),
                "rounds_microseconds": [round(value, 1) for value in added],
                "median_microseconds": round(statistics.median(added), 1),
                "within_bound": statistics.median(added) < BOUND_MICROSECONDS,
            }
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = asyncio.run(measure(rounds))
    within = all(entry["within_bound"] for entry in found.values())
    print(
        json.dumps(
            {"bound_microseconds": BOUND_MICROSECONDS, "within_bound": within, "prompts": found},
            indent=2,
            ensure_ascii=False,
        )
    )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
