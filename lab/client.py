"""One real question to the served model, so that a person sees an answer and not only a table."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from lab.settings import Lab
from lab.shell import LabError, read

QUESTION = "What is 2 + 2?"
TIMEOUT_SECONDS = 120
ANSWER_TOKENS = 64


def _call(lab: Lab, path: str, body: dict[str, Any] | None = None) -> Any:
    url = f"http://127.0.0.1:{lab.api_port}/v1/{path}"
    key = read(lab.state / "api-key").strip()
    if not key:
        raise LabError("the lab has no API key yet: run make lab")
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(
        url, data=data, headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    )
    # No proxy of the user's may get between this program and loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise LabError(
            f"the endpoint {url} answered {error.code} {error.reason}: run make demo, and read its first failure"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise LabError(
            f"the endpoint {url} gives no answer ({reason}): run make demo, and read its first failure"
        ) from None


def ask(lab: Lab, question: str) -> None:
    """Print the endpoint, the question and what the model says."""
    models = _call(lab, "models")
    try:
        name = models["data"][0]["id"]
        body = {
            "model": name,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
        }
        answer = str(_call(lab, "chat/completions", body)["choices"][0]["message"]["content"]).strip()
    except (KeyError, IndexError, TypeError):
        raise LabError(
            "the endpoint answered, but not in the form of the OpenAI API: look at what listens on its port"
        ) from None
    if not answer:
        raise LabError(
            f"the model {name} gave an empty answer to '{question}': its checkpoint is suspect, run the model stage again"
        )
    print(f"\nEndpoint  http://127.0.0.1:{lab.api_port}/v1   model {name}   key in lab/.state/api-key")
    print(f"Question  {question}")
    print("Answer    " + "\n          ".join(answer.splitlines()))
