"""What a load is to be: read from JSON, refused with a sentence when it is not sound."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .load_target import Target

ARRIVALS = ("constant", "poisson", "closed")
SLO_FIELDS = ("time_to_first_token_seconds", "inter_token_latency_seconds", "end_to_end_latency_seconds")

# What each number must be at least, and at most where that makes sense.
BOUNDS: dict[str, tuple[float, float]] = {
    "rate_per_second": (0.0, 100_000),
    "concurrency": (0, 65_536),
    "requests": (0, 100_000_000),
    "duration_seconds": (0, 366 * 86_400),
    "max_duration_seconds": (0, 366 * 86_400),
    "warmup_requests": (0, 10_000),
    "warmup_wait_seconds": (0, 86_400),
    "prompt_tokens": (1, 10_000_000),
    "output_tokens": (1, 10_000_000),
    "request_timeout_seconds": (0.001, 86_400),
    "max_in_flight": (1, 65_536),
    "grace_seconds": (0, 86_400),
    "interval_seconds": (0, 86_400),
    "seed": (0, 1 << 62),
    "first_prompt": (0, 1 << 53),
}
_WHOLE = (
    "concurrency",
    "requests",
    "warmup_requests",
    "prompt_tokens",
    "output_tokens",
    "max_in_flight",
    "seed",
    "first_prompt",
)


@dataclass(frozen=True)
class LoadSpec:
    """The load to apply. Lengths in tokens, times in seconds, rates in requests per second; 0 stands for none."""

    base_url: str
    api_key: str = field(default="", repr=False)
    ca_file: str = ""
    model: str = ""
    arrival: str = "constant"
    rate_per_second: float = 0.0
    concurrency: int = 0
    requests: int = 0
    duration_seconds: float = 0.0
    max_duration_seconds: float = 0.0
    warmup_requests: int = 1
    warmup_wait_seconds: float = 0.0
    prompt_tokens: int = 128
    output_tokens: int = 64
    ignore_eos: bool = True
    prompts: tuple[Any, ...] = ()
    prompts_file: str = ""
    request_timeout_seconds: float = 120.0
    max_in_flight: int = 256
    grace_seconds: float = 10.0
    interval_seconds: float = 0.0
    output: str = ""
    seed: int = 1
    first_prompt: int = 0
    slo: dict[str, float] = field(default_factory=dict)

    def target(self) -> Target:
        """Return where the load goes.

        :raises ValueError: when that is no endpoint.
        """
        target = Target(self.base_url, self.api_key, self.ca_file)
        target.place()
        return target


def read_spec(content: Any) -> LoadSpec:
    """Return the load that a JSON object describes; `api_key_file` may stand for `api_key`.

    :raises ValueError: with one sentence, when it is not sound.
    """
    if not isinstance(content, dict):
        raise ValueError(f"a load is a JSON object, {type(content).__name__} was found")
    given = dict(content)
    key_file = given.pop("api_key_file", None)
    if key_file is not None:
        given["api_key"] = _text_of(key_file, "api_key_file").strip()
    known = {item.name: item for item in fields(LoadSpec)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]} is no field of a load; it takes api_key_file, {', '.join(known)}")
    if not isinstance(given.get("base_url"), str):
        raise ValueError("base_url is missing: where the endpoint is, for example http://127.0.0.1:8000/v1")
    for name, value in given.items():
        _check(name, value)
    if given.get("prompts_file"):
        given["prompts"] = tuple(read_prompts(_text_of(given["prompts_file"], "prompts_file"), given["prompts_file"]))
    elif "prompts" in given:
        given["prompts"] = tuple(_prompt(entry, f"prompts[{index}]") for index, entry in enumerate(given["prompts"]))
    spec = LoadSpec(**given)
    _refuse_contradictions(spec)
    return spec


def read_prompts(text: str, name: str) -> list[Any]:
    """Return the prompts of a JSONL file.

    Each line is a text, or an object with `prompt` (a text) or `messages` (as the API takes them), and `output_tokens` if it wants its own.
    :raises ValueError: naming the line that is none.
    """
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{place} is no JSON: {error}") from error
        prompts.append(_prompt(entry, place))
    if not prompts:
        raise ValueError(f"{name} holds no prompt: one JSON value a line was expected")
    return prompts


def _prompt(entry: Any, place: str) -> Any:
    if isinstance(entry, str) and entry:
        return {"messages": [{"role": "user", "content": entry}]}
    if isinstance(entry, dict):
        messages = entry.get("messages")
        if isinstance(entry.get("prompt"), str) and entry["prompt"]:
            messages = [{"role": "user", "content": entry["prompt"]}]
        tokens = entry.get("output_tokens")
        sound = isinstance(messages, list) and messages and all(isinstance(item, dict) for item in messages)
        if sound and (tokens is None or (isinstance(tokens, int) and tokens > 0)):
            return {"messages": messages, **({"output_tokens": tokens} if tokens else {})}
    raise ValueError(
        f'{place}: a text, {{"prompt": "..."}} or {{"messages": [...]}} with output_tokens of 1 or more if any was expected'
    )


def _text_of(path: Any, name: str) -> str:
    try:
        return Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} {path} cannot be read: {error}") from error


def _check(name: str, value: Any) -> None:
    if name in BOUNDS:
        least, most = BOUNDS[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < least or value > most or (name in _WHOLE and value != int(value)):
            kind = "a whole number" if name in _WHOLE else "a number"
            raise ValueError(f"{name} is {kind} from {least:g} to {most:g}, {value!r} was found")
    elif name == "arrival" and value not in ARRIVALS:
        raise ValueError(f"arrival is one of {', '.join(ARRIVALS)}, {value!r} was found")
    elif name == "ignore_eos" and not isinstance(value, bool):
        raise ValueError(f"ignore_eos is true or false, {value!r} was found")
    elif name == "prompts" and not isinstance(value, (list, tuple)):
        raise ValueError("prompts is a list")
    elif name == "slo":
        _check_slo(value)
    elif name in ("base_url", "api_key", "ca_file", "model", "prompts_file", "output") and not isinstance(value, str):
        raise ValueError(f"{name} is a text, {value!r} was found")


def _check_slo(slo: Any) -> None:
    if not isinstance(slo, dict):
        raise ValueError("slo is an object of bounds in seconds")
    for name, value in slo.items():
        if name not in SLO_FIELDS:
            raise ValueError(f"slo has no {name}; it takes {', '.join(SLO_FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ValueError(f"slo: {name} is a number above zero, {value!r} was found")


def _refuse_contradictions(spec: LoadSpec) -> None:
    if spec.arrival == "closed":
        if not spec.concurrency:
            raise ValueError("arrival closed needs a concurrency of 1 or more: how many users wait for an answer each")
        if spec.rate_per_second:
            raise ValueError("arrival closed has no rate_per_second: how fast answers come is what it finds out")
    elif not spec.rate_per_second > 0:
        raise ValueError(f"arrival {spec.arrival} needs a rate_per_second above 0")
    if not spec.requests and not spec.duration_seconds:
        raise ValueError("requests or duration_seconds must say when the load ends")
