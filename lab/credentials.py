"""Secrets of one lab: SSH keys, passwords and the encrypted vault. Made once, checked each time, redone when damaged."""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from pathlib import Path

from lab.settings import Lab
from lab.shell import read, run, say, write_atomically

_SECRET = re.compile(r"[A-Za-z0-9_-]{32,}\n")


def ensure_secret(path: Path) -> str:
    """A random secret kept in a file of its own, mode 0600; a damaged file is replaced."""
    content = read(path)
    if not _SECRET.fullmatch(content):
        content = secrets.token_urlsafe(32) + "\n"
        write_atomically(path, content, 0o600)
    path.chmod(0o600)
    return content.strip()


def ensure_key(path: Path, comment: str) -> str:
    """An ed25519 key pair at ``path`` and ``path``.pub; the public line."""
    public = path.with_name(f"{path.name}.pub")
    if path.exists():
        path.chmod(0o600)
        derived = run(["ssh-keygen", "-y", "-P", "", "-f", path], what="reading an SSH key", check=False)
        if derived.returncode == 0:
            line = f"{' '.join(derived.stdout.split()[:2])} {comment}\n"
            if read(public) != line:
                write_atomically(public, line, 0o644)
            return line.strip()
    path.unlink(missing_ok=True)
    public.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path], what="making an SSH key")
    return public.read_text().strip()


def vault_text(bmc_password: str, api_key: str) -> str:
    """The variables that the vault holds."""
    return f"---\nvault_bmc_password: {bmc_password}\nvault_serving_api_key: {api_key}\n"


def ensure_vault(lab: Lab, bmc_password: str, api_key: str) -> None:
    """Write the inventory's vault unless the one that is there was made from these secrets."""
    password_file = lab.vault_password_file
    password = ensure_secret(password_file)
    plain = vault_text(bmc_password, api_key)
    stamp = lab.state / "vault.sha256"
    current = lab.vault_file.read_bytes() if lab.vault_file.is_file() else b""
    # The stamp ties the encrypted file to what went into it, so that a healthy vault costs no ansible-vault call.
    if read(stamp) == _stamp(current, password, plain):
        return
    say(f"writing the encrypted vault of inventories/{lab.vault_file.parent.parent.parent.name}")
    vault = Path(sys.executable).with_name("ansible-vault")
    encrypted = run(
        [vault, "encrypt", "--vault-password-file", password_file, "--output", "-"],
        what="encrypting the vault",
        stdin=plain,
        env={"ANSIBLE_CONFIG": str(lab.root / "ansible.cfg")},
    ).stdout.encode()
    write_atomically(lab.vault_file, encrypted, 0o600)
    write_atomically(stamp, _stamp(encrypted, password, plain), 0o600)


def _stamp(encrypted: bytes, password: str, plain: str) -> str:
    return hashlib.sha256(b"\0".join([encrypted, password.encode(), plain.encode()])).hexdigest()
