"""Secrets and certificates: made once, kept while sound, made again when damaged."""

from __future__ import annotations

import datetime as dt
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from lab import credentials, settings, tls

NOW = dt.datetime.now(dt.timezone.utc)


def test_a_secret_is_long_private_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = credentials.ensure_secret(path)
    assert len(first) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert credentials.ensure_secret(path) == first


@pytest.mark.parametrize(
    "damage", [b"", b"short\n", b"\xff" * 50, b"x" * 43, b"two words that are long enough for it\n"]
)
def test_a_damaged_secret_is_made_again(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(damage)
    assert len(credentials.ensure_secret(path)) >= 32


def test_loose_permissions_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    credentials.ensure_secret(path)
    path.chmod(0o644)
    credentials.ensure_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_an_ssh_key_is_kept_and_its_public_half_repaired(tmp_path: Path) -> None:
    path = tmp_path / "key"
    line = credentials.ensure_key(path, "ops@lab")
    assert line.startswith("ssh-ed25519 ")
    assert line.endswith(" ops@lab")
    path.with_name("key.pub").write_bytes(b"\xffgarbage")
    assert credentials.ensure_key(path, "ops@lab") == line
    assert path.with_name("key.pub").read_text().strip() == line
    path.write_text("garbage")
    assert credentials.ensure_key(path, "ops@lab") != line


def vault_lab(tmp_path: Path) -> settings.Lab:
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    lab = settings.load(tmp_path, {}, {})
    lab.ensure_state()
    return lab


def decrypted(lab: settings.Lab) -> str:
    done = subprocess.run(
        ["ansible-vault", "view", "--vault-password-file", str(lab.state / "vault-password"), str(lab.vault_file)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("ansible-vault") is None, reason="ansible-vault is not on PATH")
@pytest.mark.parametrize("other_password", [False, True])
def test_the_vault_holds_the_secrets_encrypted_and_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_password: bool
) -> None:
    lab = vault_lab(tmp_path)
    if other_password:
        # A shell in which `. lab/activate` ran, or one for another site.
        (tmp_path / "other").write_text("another site's password\n")
        monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "other"))
    credentials.ensure_vault(lab, "the-password", "the-key")
    first = lab.vault_file.read_bytes()
    assert first.startswith(b"$ANSIBLE_VAULT;")
    assert decrypted(lab) == "---\nvault_bmc_password: the-password\nvault_serving_api_key: the-key\n"
    credentials.ensure_vault(lab, "the-password", "the-key")
    assert lab.vault_file.read_bytes() == first
    lab.vault_file.write_bytes(first[:40])
    credentials.ensure_vault(lab, "the-password", "another-key")
    assert "vault_serving_api_key: another-key" in decrypted(lab)


def files(directory: Path) -> tuple[Path, Path, Path]:
    return directory / "ca.pem", directory / "bmc.pem", directory / "bmc.key"


def test_certificates_are_made_once(tmp_path: Path) -> None:
    assert tls.ensure(tmp_path) is True
    assert tls.ensure(tmp_path) is False
    assert (tmp_path / "bmc.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["ca.pem", "bmc.pem", "bmc.key"])
def test_a_damaged_certificate_is_not_sound(tmp_path: Path, name: str) -> None:
    tls.make(*files(tmp_path), NOW)
    assert tls.is_sound(*files(tmp_path), NOW)
    (tmp_path / name).write_bytes(b"garbage")
    assert not tls.is_sound(*files(tmp_path), NOW)


@pytest.mark.parametrize("name", ["ca.pem", "bmc.pem", "bmc.key"])
def test_a_file_of_another_set_is_not_sound(tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    tls.make(*files(tmp_path), NOW)
    tls.make(*files(other), NOW)
    shutil.copy(other / name, tmp_path / name)
    assert not tls.is_sound(*files(tmp_path), NOW)


def test_a_certificate_is_renewed_a_month_before_its_end(tmp_path: Path) -> None:
    tls.make(*files(tmp_path), NOW)
    assert tls.is_sound(*files(tmp_path), NOW + tls.VALID - tls.RENEW_BEFORE - dt.timedelta(hours=1))
    assert not tls.is_sound(*files(tmp_path), NOW + tls.VALID - tls.RENEW_BEFORE + dt.timedelta(hours=1))


def test_a_strict_client_accepts_the_certificate_and_another_authority_does_not(tmp_path: Path) -> None:
    tls.make(*files(tmp_path), NOW)
    stranger = tmp_path / "stranger"
    tls.make(*files(stranger), NOW)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "bmc.pem", tmp_path / "bmc.key")

    def handshake(ca: Path) -> None:
        near, far = socket.socketpair()

        def serve() -> None:
            try:
                server.wrap_socket(far, server_side=True).close()
            except OSError:
                far.close()

        thread = threading.Thread(target=serve)
        thread.start()
        client = ssl.create_default_context(cafile=str(ca))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            with client.wrap_socket(near, server_hostname="127.0.0.1"):
                pass
        finally:
            near.close()
            thread.join()

    handshake(tmp_path / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(stranger / "ca.pem")
