"""How a BMC is reached, and what is said to a person when it is not.

Every failure becomes one sentence: what was tried, what was expected, what was found, and what to do. The password is in none.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = "/redfish/v1/"
NOT_READY = (502, 503, 504)
# How TLS says that the other side went away: no fault of a certificate.
TLS_BROKEN = ("eof occurred in violation", "unexpected eof", "unexpected_eof")


class RedfishError(Exception):
    """What went wrong, in one sentence.

    `status` is the HTTP status where the BMC answered, else 0; `transient` says whether waiting may help.
    """

    def __init__(self, message: str, status: int = 0, transient: bool = False) -> None:
        """Keep the sentence and what the caller may decide by."""
        super().__init__(message)
        self.status = status
        self.transient = transient


class ConflictError(RedfishError):
    """The resource changed between our read and our write."""


@dataclass
class ConnectionOptions:
    """How to reach a BMC.

    `timeout_seconds` bounds every answer, and how long a BMC that is not ready is waited for.
    """

    base_url: str
    username: str
    password: str = field(repr=False, default="")
    ca_file: str | None = None
    validate_certs: bool = True
    timeout_seconds: float = 30.0

    @property
    def verify(self) -> bool | str:
        """What a certificate is checked against: a CA file, the system's CAs (true) or nothing (false)."""
        return self.ca_file if self.validate_certs and self.ca_file else self.validate_certs

    def problem(self) -> str:
        """One sentence about what is wrong with these options; empty where nothing is."""
        if not _is_address(self.base_url):
            return (
                f'The address of the BMC must be like https://bmc.example:443, found "{self.base_url}":'
                " set bmc_host to the BMC's name or address"
            )
        for name, value in (("bmc_username", self.username), ("bmc_password", self.password)):
            if not value:
                return (
                    f"The login at {self.base_url} needs a user name and a password, but {name} is empty:"
                    " set it in the inventory (a password in the vault)"
                )
        if self.timeout_seconds <= 0:
            return f"bmc_timeout_seconds must be above 0, found {self.timeout_seconds:g}"
        found = _ca_problem(self.ca_file) if self.validate_certs and self.ca_file else ""
        if found:
            return (
                f"The CA file {self.ca_file} for {self.base_url} {found}: correct bmc_ca_file, or leave it unset to trust the"
                " system's CAs"
            )
        return ""


def _is_address(url: str) -> bool:
    """Whether this can be the address of a service: a scheme, a host and a port that is a number."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # as of brackets around what is no IPv6 address
        return False


def _ca_problem(file: str) -> str:
    """What keeps a CA file from being used, for a sentence; empty where nothing does."""
    path = Path(file)
    if not path.exists():
        return "does not exist on the controller"
    if not path.is_file():
        return "is no file but a folder or a device: expected a PEM file"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        return "holds no whole certificate: expected PEM (-----BEGIN CERTIFICATE-----), perhaps it was cut or is DER"
    except OSError as error:
        return f"cannot be read on the controller ({error.strerror})"
    return ""


def error_text(body: Any) -> str:
    """What a Redfish error body says: the messages of its extended info, else its own message."""
    if not isinstance(body, dict):
        return ""
    inner = body["error"] if isinstance(body.get("error"), dict) else body
    info = inner.get("@Message.ExtendedInfo")
    entries = info if isinstance(info, list) else [info]
    texts = [str(entry["Message"]).strip() for entry in entries if isinstance(entry, dict) and entry.get("Message")]
    return " ".join(dict.fromkeys(texts)) or str(inner.get("message") or "").strip()


def explain(error: Exception, options: ConnectionOptions, verb: str, uri: str) -> RedfishError:
    """Turn whatever a request raised into one sentence for a person.

    `verb` says what was tried ("read", "change") with the resource `uri`.
    """
    if isinstance(error, RedfishError):
        return error
    where = uri if uri.startswith("http") else f"{options.base_url}{uri}"
    status = int(getattr(error, "status_code", 0) or 0)
    if status:
        said = error_text({"error": getattr(error, "body", None) or {}})
        return explain_status(status, said, options, verb, where)
    return _explain_connection(error, options, verb, where)


def explain_status(status: int, said: str, options: ConnectionOptions, verb: str, where: str) -> RedfishError:
    """The sentence for an HTTP status, with what the BMC `said` about it."""
    quoted = f' ("{said[:400]}")' if said else ""
    bmc, user = f"The BMC at {options.base_url}", f'user "{options.username}"'
    if status == 401:
        text = f"{bmc} refused the login of {user} (HTTP 401){quoted}: check bmc_username and bmc_password (vault)"
    elif status == 403:
        text = (
            f"{bmc} does not let {user} {verb} {where} (HTTP 403){quoted}: give the account the role Operator or"
            " Administrator, or end other sessions where it has too many"
        )
    elif status in NOT_READY:
        text = (
            f"{bmc} was not ready to {verb} {where}: HTTP {status}{quoted} for the {options.timeout_seconds:g} s that"
            " bmc_timeout_seconds allows; it may be restarting: wait until it answers, or raise bmc_timeout_seconds"
        )
    elif status == 404:
        text = f"{bmc} has no {where} (HTTP 404), which was expected to {verb}: check bmc_host and the BMC's firmware"
    else:
        text = f"{bmc} refused to {verb} {where}: HTTP {status}{quoted or ', without a reason'}"
    return RedfishError(text, status, transient=status >= 500)


def _explain_connection(error: Exception, options: ConnectionOptions, verb: str, where: str) -> RedfishError:
    text = _without_wrappers(error)
    lower = text.lower()
    host = options.base_url
    if "wrong_version_number" in lower or "record layer failure" in lower:
        return RedfishError(
            f"The BMC at {host} does not speak TLS on this port: expected HTTPS there; check bmc_host and bmc_port"
        )
    broken = any(word in lower for word in TLS_BROKEN)
    if not broken and ("certificate" in lower or "sslerror" in lower or "[ssl" in lower):
        trusted = f"{options.ca_file} vouches for" if options.ca_file else "the system's CAs vouch for"
        return RedfishError(
            f"The certificate of the BMC at {host} was not accepted: expected one that {trusted}, found"
            f" {_tls_reason(text)}; set bmc_ca_file to the CA that signed it (or, on a network that you trust,"
            " bmc_validate_certs to false)"
        )
    remedy = f"check that the BMC is up and that bmc_host and bmc_port are right: curl -k {host}{ROOT}"
    seconds = re.search(r"timeout=([\d.]+)", lower)
    reason = text
    if "timed out" in lower or "timeout" in lower:
        waited = float(seconds.group(1)) if seconds else options.timeout_seconds
        reason = f"no answer within {waited:g} s"
        remedy = "check that it is up and reachable from the controller, or raise bmc_timeout_seconds"
    else:
        for words, meaning in _REASONS:
            if any(word in lower for word in words):
                reason = meaning
                break
    return RedfishError(f"The BMC at {host} could not be asked to {verb} {where}: {reason}; {remedy}", transient=True)


_REASONS = (
    (("refused",), "connection refused"),
    (("name or service not known", "name resolution", "getaddrinfo", "nodename"), "its name cannot be resolved"),
    (("unreachable", "no route"), "there is no route to it"),
    (
        ("aborted", "disconnected", "reset by peer", "incompleteread", "broken", *TLS_BROKEN),
        "it closed the connection in the middle",
    ),
)


def _without_wrappers(error: Exception) -> str:
    """The text of an exception without what sushy puts around it."""
    text = " ".join(str(error).split())
    match = re.search(r"Error: (.*)$", text)
    return match.group(1) if match else text or type(error).__name__


def _tls_reason(text: str) -> str:
    match = re.search(r"certificate verify failed: ([^()\"']+)", text)
    if match:
        return match.group(1).strip(" .,")
    match = re.search(r"\[SSL[^\]]*\] ([^()\"']+)", text)
    return match.group(1).strip(" .,") if match else text[:200]
