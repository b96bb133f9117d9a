"""What the gateway does for users, asked on the machine itself: a right answer with a key, none without.

Standard library only: it runs on the node.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .gateway_runtime import Server
from .readiness import Question, Refused, judge, parse_answer

# OpenSSL's X509_V_FLAG_PARTIAL_CHAIN: the very certificate in the file is trusted, whoever signed it. Python names it from 3.10 on.
_PARTIAL_CHAIN = 0x80000
SECONDS_PER_DAY = 86400
WRONG_KEY = "plumbline-wrong-key-0123456789"


@dataclass(frozen=True)
class Target:
    """Where the gateway is reached from here."""

    address: str
    port: int
    certificate_file: str = ""
    """The certificate that it must show; empty: without TLS."""
    server_name: str = ""
    """The name that its certificate must be for."""
    timeout_seconds: float = 120.0

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection whose certificate was checked.

        :raises OSError: when nobody answers, or not with that certificate (ssl.SSLError).
        """
        connection = http.client.HTTPConnection(
            self.server_name or self.address, self.port, timeout=self.timeout_seconds
        )
        plain = socket.create_connection((self.address, self.port), self.timeout_seconds)
        if not self.certificate_file:
            connection.sock = plain
            return connection
        try:
            context = ssl.create_default_context(cafile=self.certificate_file)
            context.verify_flags |= ssl.VerifyFlags(_PARTIAL_CHAIN)
            connection.sock = context.wrap_socket(plain, server_hostname=self.server_name)
        except OSError:
            plain.close()
            raise
        return connection


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    body: bytes
    certificate: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def ask(target: Target, key: str, model: str, question: Question) -> Reply:
    """Send one completion through the gateway; an empty key sends none.

    :raises OSError: when there is no answer.
    """
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    began = time.monotonic()
    connection = target.connect()
    try:
        certificate = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
        connection.request("POST", "/v1" + question.path, json.dumps(question.body(model)), headers)
        response = connection.getresponse()
        return Reply(response.status, response.read(), certificate or {}, time.monotonic() - began)
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer ({type(error).__name__})") from None
    finally:
        connection.close()


def _words(reply: Reply) -> str:
    text = reply.body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"]["message"])
    return f"HTTP {reply.status}: {text.strip()[:300]}"


def completion(
    target: Target, key: str, model: str, question: Question, scope: str
) -> tuple[dict[str, Any], Reply | None]:
    """Return the measurement `completion`, and what came back."""
    entry: dict[str, Any] = {"name": "completion", "scope": scope, "expected": True, "value": None}
    remedy = "plumbline-gateway status; journalctl -u plumbline-gateway -n 20"
    try:
        reply = ask(target, key, model, question)
    except OSError as error:
        entry.update(error=f"no answer through the gateway: {error}", next_command=remedy)
        return entry, None
    if reply.status in (429, 502, 503, 504):
        entry.update(error=f"the gateway answers {_words(reply)}", next_command=remedy)
    elif reply.status != 200:
        entry.update(value=False, cause=f"the gateway answers {_words(reply)}", next_command=remedy)
    else:
        try:
            answer = parse_answer(question.api, json.loads(reply.body))
            problem = judge(question, answer)
            entry["conditions"] = {
                "question": question.text,
                "answer": answer.text.strip()[:500],
                "expected_pattern": question.expected,
                "model": answer.model,
                "seconds": round(reply.seconds, 3),
            }
        except (Refused, ValueError) as error:
            problem = str(error)
        entry.update(value=not problem, cause=problem)
    return entry, reply


def key_required(target: Target, model: str, question: Question, scope: str) -> list[dict[str, Any]]:
    """Return the measurements `wrong_api_key_refused`, for a wrong key and for none."""
    found = []
    for what, key in (("a wrong key", WRONG_KEY), ("no key", "")):
        entry: dict[str, Any] = {
            "name": "wrong_api_key_refused",
            "scope": f"{scope}, {what}",
            "expected": True,
            "value": None,
        }
        try:
            reply = ask(target, key, model, question)
        except OSError as error:
            entry["error"] = f"no answer through the gateway: {error}"
        else:
            entry.update(value=reply.status == 401)
            if reply.status != 401:
                entry["cause"] = f"a request with {what} was not refused with 401: {_words(reply)}"
                entry["next_command"] = "run playbooks/gateway.yml again"
        found.append(entry)
    return found


def certificate(shown: dict[str, Any], scope: str, now: float) -> list[dict[str, Any]]:
    """Return the measurements of the certificate that clients see, as `getpeercert()` gives it."""
    if not shown:
        skipped = "the gateway speaks plain HTTP (gateway_tls is false)"
        return [{"name": "gateway_certificate_days", "scope": scope, "skipped": skipped}]
    end = str(shown["notAfter"])
    days = (ssl.cert_time_to_seconds(end) - now) / SECONDS_PER_DAY
    signed_by_itself = shown.get("issuer") == shown.get("subject")
    names = ", ".join(value for _, value in shown.get("subjectAltName", ()))
    conditions = {"ends": end, "names": names, "self_signed": signed_by_itself}
    origin = (
        "self-signed; clients must be told to trust /etc/plumbline/gateway/certificate.pem"
        if signed_by_itself
        else "from the inventory"
    )
    return [
        {
            "name": "gateway_certificate_days",
            "scope": scope,
            "value": round(days, 1),
            "unit": "d",
            "conditions": conditions,
        },
        {"name": "gateway_certificate_origin", "scope": scope, "value": origin, "conditions": conditions},
    ]


def nodes(servers: Sequence[Server]) -> list[dict[str, Any]]:
    """Return the measurements of the nodes behind the gateway: each node, and the share that is given requests.

    A node has two ports, its unit's and that of an upgrade; one that is ready is enough. One that somebody took out of service is skipped.
    """
    by_node: dict[str, list[Server]] = {}
    for server in servers:
        by_node.setdefault(server.node, []).append(server)
    found: list[dict[str, Any]] = []
    ready = drained = 0
    for name, ports in by_node.items():
        entry: dict[str, Any] = {"name": "gateway_node", "scope": name}
        if any(port.ready for port in ports):
            ready += 1
            entry.update(value="ready", expected="ready")
        elif any(port.drained for port in ports):  # the other port, where nothing listens, is called DOWN
            drained += 1
            entry["skipped"] = f"taken out of service by hand; plumbline-gateway ready {name} brings it back"
        else:
            cause = f"its last health check: {ports[0].check or 'none yet'}"
            entry.update(
                value="unready",
                expected="ready",
                cause=cause,
                next_command=f"on {name}: systemctl status plumbline-serving",
            )
        found.append(entry)
    total: dict[str, Any] = {"name": "gateway_nodes_ready", "scope": "gateway"}
    wanted = len(by_node) - drained
    if wanted:
        total.update(
            value=float(ready),
            unit="nodes",
            limit=float(wanted),
            limit_source="nodes of the inventory that are in service",
        )
        if not ready:
            total["cause"] = "no node behind the gateway passes its health check"
            total["next_command"] = "plumbline-gateway status"
    else:
        total["error"] = "every node was taken out of service by hand"
        total["next_command"] = "plumbline-gateway status"
    return [*found, total]
