"""A node whose SSH host key changed: what OpenSSH says of it, and how a key that the inventory names is taken over.

Never a key that nobody named: a changed key is what an attacker between controller and node looks like, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Runs a command; returns its exit status (127 where it does not exist), stdout and stderr.
Runner = Callable[[list[str]], "tuple[int, str, str]"]

FINGERPRINT = re.compile(r"^SHA256:[A-Za-z0-9+/]{43}$")
_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_SENT = re.compile(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:[A-Za-z0-9+/]{43})")
_OFFENDING = re.compile(r"Offending \S+ key in (.+?):(\d+)")
_HOST = re.compile(r"Host key for (\S+) has changed")
_BRACKETED = re.compile(r"^\[(.+)\]:(\d+)$")
_SCAN_SECONDS = "10"


@dataclass(frozen=True)
class ChangedKey:
    """What OpenSSH says: the host as known_hosts has it, the kind and fingerprint of the new key, and where the old one stands."""

    host: str
    kind: str
    fingerprint: str
    file: str
    line: int


def changed_key(text: str) -> ChangedKey | None:
    """Read OpenSSH's complaint about a changed host key; None where the text is something else."""
    if _CHANGED not in text:
        return None
    sent, offending, host = _SENT.search(text), _OFFENDING.search(text), _HOST.search(text)
    return ChangedKey(
        host=host.group(1) if host else "",
        kind=sent.group(1) if sent else "",
        fingerprint=sent.group(2) if sent else "",
        file=offending.group(1).strip() if offending else "",
        line=int(offending.group(2)) if offending else 0,
    )


def told(change: ChangedKey) -> str:
    """What was found, and what to do, for the end of a sentence."""
    where = f" (known until now from {change.file}, line {change.line})" if change.file else ""
    shown = f"{change.kind} key {change.fingerprint}".strip() if change.fingerprint else "key"
    remedy = (
        f"ssh-keygen -R '{change.host}'" + (f" -f {change.file}" if change.file else "")
        if change.host
        else "remove the old key from known_hosts"
    )
    return (
        f"it answers with another SSH host key than before its restart, the {shown}{where}: compare that with the machine's own, at its "
        "console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub); if it is the same, name it in restart_host_key_fingerprints, or "
        f"forget the old one ({remedy}) and add the new one"
    )


def take_over(change: ChangedKey, allowed: list[str], run: Runner, address: tuple[str, str] = ("", "")) -> str:
    """Put a new key that the inventory names in the place of the old one; one sentence why not, empty when it is done.

    Fetches the key once more and keeps only what has one of the *allowed* fingerprints, so that it does not matter who answers.
    *address* is where the node is reached (host and port), since known_hosts may have it under another name (HostKeyAlias).
    """
    if change.fingerprint not in allowed:
        return told(change)
    if not change.file or not change.host:
        return f"{told(change)} (OpenSSH did not say where the old key stands)"
    bracketed = _BRACKETED.match(change.host)
    name, port = bracketed.groups() if bracketed else (change.host, "22")
    name, port = address[0] or name, address[1] or port
    status, out, err = run(["ssh-keyscan", "-T", _SCAN_SECONDS, "-p", port, "--", name])
    keys = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
    good = [key for key in keys if len(key) == 3 and fingerprint(key[2]) in allowed]
    if not good:
        said = (err.strip().splitlines() or ["no key that is named in restart_host_key_fingerprints"])[-1]
        return f"its new SSH host key could not be fetched with ssh-keyscan (status {status}: {said[:200]})"
    status, _, err = run(["ssh-keygen", "-R", change.host, "-f", change.file])
    if status != 0:
        return f"the old SSH host key could not be removed from {change.file} ({(err.strip().splitlines() or ['no reason'])[-1][:200]})"
    try:
        _append(Path(change.file), [f"{change.host} {key[1]} {key[2]}" for key in good])
    except OSError as error:
        return f"the new SSH host key could not be written to {change.file} ({error.strerror or error})"
    return ""


def fingerprint(key: str) -> str:
    """The SHA256 fingerprint of a public key in base64, as OpenSSH writes it; empty for what is none."""
    try:
        raw = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")


def _append(path: Path, lines: list[str]) -> None:
    """Add lines to a file in one step: other runs read it at the same time."""
    text = path.read_text() if path.exists() else ""
    text += "" if not text or text.endswith("\n") else "\n"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".known_hosts.", delete=False) as draft:
        draft.write(text + "".join(f"{line}\n" for line in lines))
    os.chmod(draft.name, 0o600)  # noqa: PTH101 (a name, no Path)
    Path(draft.name).replace(path)
