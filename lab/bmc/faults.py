"""Faults on demand, as data: `{"kind": "http_error", "count": 2, "status": 503, "retry_after": 1}`.

A fault with a `count` ends by itself; without one it stays until it is deleted. `method` and `path` (a regular
expression, searched in the URI) narrow a fault of requests. Those that act "now" are events and are not kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .messages import refuse

Json = dict[str, Any]

# kind: (what it acts on, {parameter: (type, default)}, description)
KINDS: dict[str, tuple[str, dict[str, tuple[type | tuple[type, ...], Any]], str]] = {
    "http_error": (
        "request",
        {"status": (int, 503), "retry_after": ((int, type(None)), None), "message": (str, "")},
        "answers with an error instead of handling the request",
    ),
    "slow": ("request", {"seconds": ((int, float), 2.0)}, "answers late"),
    "drop": (
        "request",
        {"when": (str, "before")},
        "closes the connection: before the request is handled, or after it (then it was carried out)",
    ),
    "garbage": ("request", {"text": (str, '{"Members": [')}, "answers 200 with a body that is not JSON"),
    "truncated": ("request", {}, "sends half of the answer and closes the connection; the request was carried out"),
    "wrong_type": ("request", {"content_type": (str, "text/html")}, "sends the answer under another content type"),
    "slow_body": ("request", {"seconds": ((int, float), 2.0)}, "sends the answer in small pieces over that time"),
    "error_in_200": (
        "request",
        {"message": (str, "The request failed.")},
        "answers 200 with an error body instead of handling the request",
    ),
    "session_expires": ("request", {}, "lets the session of the request expire as it arrives"),
    "etag_conflict": ("request", {}, "answers 412 to a write, as if another client had come first"),
    "session_loss": ("now", {}, "forgets every session"),
    "bmc_reboot": ("now", {"seconds": ((int, float), 5.0)}, "stops listening for that long and forgets every session"),
    "stale_pending": ("now", {"attributes": (dict, {})}, "leaves pending values that nobody staged here"),
    "attributes_gone": ("now", {}, "shows no BIOS attributes until the next POST, as after a factory reset of the BMC"),
    "clock_wrong": ("clock", {"seconds": ((int, float), -86400.0)}, "puts the BMC's clock ahead by that much"),
    "sensor_dead": ("sensor", {"sensor": (str, "")}, "says that this sensor is enabled, and gives no reading of it"),
    "sensor_reading": (
        "sensor",
        {"sensor": (str, ""), "reading": ((int, float), 0)},
        "lets this sensor read that, be it beyond its limits",
    ),
    "power_supply_lost": ("sensor", {"index": (int, 0)}, "takes the line from this power supply"),
    "log_entry": (
        "now",
        {
            "severity": (str, "Critical"),
            "message": (str, "Uncorrectable ECC"),
            "sensor_type": (str, "Memory"),
            "sensor_number": (int, 0),
            "code": (str, "Assert"),
            "created": (str, ""),
        },
        "writes an entry to the event log",
    ),
    "slow_reset": ("reset", {"seconds": ((int, float), 30.0)}, "lengthens the next POST"),
    "reset_ignored": ("reset", {}, "accepts a reset and does nothing"),
    "post_hangs": ("reset", {}, "lets the next POST hang in memory initialisation until a forced reset"),
    "power_stuck": (
        "reset",
        {"state": (str, "PoweringOff")},
        "accepts a reset and leaves PowerState at that value until a forced reset",
    ),
    "stage_drops": (
        "stage",
        {"attributes": (list, [])},
        "says yes to a change and does not stage these attributes (all, when the list is empty)",
    ),
    "value_clamped": (
        "apply",
        {"attributes": (dict, {})},
        "lets these attributes take other values than the staged ones",
    ),
    "setting_ignored": (
        "apply",
        {"attributes": (list, []), "silent": (bool, True)},
        "does not let these attributes (all, when the list is empty) take at the reset",
    ),
    "update_fails": ("update", {"message": (str, "The image could not be written.")}, "ends an update with an error"),
    "update_busy": (
        "update",
        {"status": (int, 503), "retry_after": ((int, type(None)), 1)},
        "refuses an update, as if another one were under way",
    ),
    "update_stuck": ("update", {}, "leaves an update's task at 50 % until the BMC restarts"),
    "update_rolled_back": (
        "update",
        {"silent": (bool, False)},
        "does not let a staged image start: the old one runs on; the task admits it or not",
    ),
    "upload_broken": ("update", {"after_bytes": (int, 65536)}, "closes the connection in the middle of an image"),
    "queue_busy": (
        "job",
        {"status": (int, 503), "retry_after": ((int, type(None)), None)},
        "refuses to make a configuration job: the job queue is busy",
    ),
    "job_fails": (
        "job",
        {
            "message": (str, "Unable to complete the operation because of an internal issue."),
            "keeps_pending": (bool, False),
        },
        "ends the configuration job as failed, with that message; nothing is applied, and the values go or stay pending",
    ),
    "job_stuck": ("job", {}, "leaves the configuration job at its start; the reset applies nothing"),
}
_COMMON = {"kind", "count", "method", "path"}


@dataclass
class Fault:
    """One injected fault."""

    identity: str
    kind: str
    parameters: Json
    count: int | None = None
    method: str | None = None
    path: str | None = None
    hits: int = 0
    _pattern: re.Pattern[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Compile the pattern once."""
        self._pattern = re.compile(self.path) if self.path else None

    def matches(self, method: str, path: str) -> bool:
        """Whether a request is meant."""
        if self.method is not None and self.method != method:
            return False
        return self._pattern is None or self._pattern.search(path) is not None

    def to_json(self) -> Json:
        """Return the fault as the control endpoint shows it."""
        shown = {"id": self.identity, "kind": self.kind, **self.parameters, "count": self.count, "hits": self.hits}
        return {**shown, "method": self.method, "path": self.path}


def _bad(name: str, value: Any, expected: str) -> Exception:
    return refuse(400, "PropertyValueTypeError", value, name, expected, related=f"/{name}")


def parse(body: Json, identity: str) -> Fault:
    """Return the fault that a JSON object describes, or refuse it naming the member at fault."""
    kind = body.get("kind")
    if kind not in KINDS:
        raise refuse(400, "PropertyValueNotInList", kind, "kind", ", ".join(KINDS), related="/kind")
    acts_on, specification, _ = KINDS[kind]
    parameters = {}
    for name in sorted(set(body) - _COMMON - set(specification)):
        raise refuse(400, "PropertyUnknown", name, related=f"/{name}")
    for name, (kinds, default) in specification.items():
        value = body.get(name, default)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise _bad(name, value, str(kinds))
        parameters[name] = value
    count = body.get("count")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise _bad("count", count, "a positive integer or null")
    if count is None and acts_on in ("reset", "stage", "apply", "update", "job"):
        count = 1
    method, path = body.get("method"), body.get("path")
    if method is not None and method not in ("GET", "POST", "PATCH", "PUT", "DELETE"):
        raise _bad("method", method, "an HTTP method")
    try:
        return Fault(identity, kind, parameters, count, method, path)
    except (re.error, TypeError):
        raise _bad("path", path, "a regular expression") from None


class Faults:
    """The faults in force."""

    def __init__(self) -> None:
        """Start without a fault."""
        self._faults: dict[str, Fault] = {}
        self._next = 1

    def add(self, body: Json) -> Fault:
        """Put a fault in force (kinds that act at once are returned only; the service carries them out)."""
        fault = parse(body, str(self._next))
        self._next += 1
        if KINDS[fault.kind][0] != "now":
            self._faults[fault.identity] = fault
        return fault

    def all(self) -> list[Fault]:
        """Return the faults in force."""
        return list(self._faults.values())

    def get(self, identity: str) -> Fault | None:
        """Return one fault."""
        return self._faults.get(identity)

    def remove(self, identity: str) -> bool:
        """End a fault; say whether there was one."""
        return self._faults.pop(identity, None) is not None

    def clear(self) -> None:
        """End all faults."""
        self._faults.clear()

    def _spend(self, fault: Fault) -> Fault:
        fault.hits += 1
        if fault.count is not None and fault.hits >= fault.count:
            self._faults.pop(fault.identity, None)
        return fault

    def for_request(self, method: str, path: str) -> list[Fault]:
        """Return, and count, the faults that meet a request."""
        met = []
        for fault in self.all():
            acts_on = KINDS[fault.kind][0]
            if acts_on != "request" or not fault.matches(method, path):
                continue
            if fault.kind == "etag_conflict" and method not in ("PATCH", "PUT", "DELETE"):
                continue
            met.append(self._spend(fault))
        return met

    def clock_offset(self) -> float:
        """Return by how many seconds the clock is ahead."""
        return sum(float(one.parameters["seconds"]) for one in self._faults.values() if one.kind == "clock_wrong")

    def of_sensors(self) -> list[Fault]:
        """Return the faults of sensors and power supplies; these last until they are deleted."""
        return [fault for fault in self.all() if KINDS[fault.kind][0] == "sensor"]

    def take(self, kind: str) -> Fault | None:
        """Return, and count, a fault of this kind."""
        for fault in self.all():
            if fault.kind == kind:
                return self._spend(fault)
        return None
