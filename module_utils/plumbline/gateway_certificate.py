"""A certificate that the gateway makes itself where the inventory has none. Runs on the node; openssl does the cryptography."""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

Run = Callable[[list[str]], "tuple[int, str, str]"]

DAYS = 825
"""How long it is valid; some clients refuse more (Apple's rule since 2019)."""
RENEW_SECONDS = 30 * 86400


class CertificateError(Exception):
    """Why there is no certificate, as one sentence."""


def alternative_names(names: Sequence[str]) -> str:
    """Return the extension subjectAltName for names and addresses."""

    def one(name: str) -> str:
        try:
            return f"IP:{ipaddress.ip_address(name)}"
        except ValueError:
            return f"DNS:{name}"

    return ",".join(dict.fromkeys(one(name) for name in names))


def still_good(path: Path, names: Sequence[str], openssl: str, run: Run) -> bool:
    """Tell whether a certificate is there, is for these names, and does not end within a month."""
    if (
        not path.is_file()
        or run([openssl, "x509", "-in", str(path), "-noout", "-checkend", str(RENEW_SECONDS)])[0] != 0
    ):
        return False
    shown = run([openssl, "x509", "-in", str(path), "-noout", "-ext", "subjectAltName"])[1]
    found = {word.strip().replace("IP Address:", "IP:") for line in shown.splitlines()[1:] for word in line.split(",")}
    return found == set(alternative_names(names).split(","))


def make(path: Path, names: Sequence[str], openssl: str, run: Run) -> None:
    """Make a key and a certificate for these names, in one file of mode 0600.

    :raises CertificateError: when openssl or the file system refuses.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".certificate-") as folder:
            key, certificate = Path(folder) / "key", Path(folder) / "certificate"
            command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
            command += [
                "-days",
                str(DAYS),
                "-subj",
                "/CN=Plumbline gateway",
                "-keyout",
                str(key),
                "-out",
                str(certificate),
            ]
            command += ["-addext", f"subjectAltName={alternative_names(names)}"]
            status, _, err = run(command)
            if status != 0:
                said = (err.strip().splitlines() or ["it gave no reason"])[-1]
                raise CertificateError(
                    f"expected openssl to make a certificate for {', '.join(names)}, found that it refuses ({said}): correct "
                    "gateway_server_name, or give gateway_tls_certificate and gateway_tls_key"
                )
            whole = Path(folder) / "whole"
            descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(certificate.read_text(encoding="ascii") + key.read_text(encoding="ascii"))
            whole.replace(path)
    except OSError as error:
        raise CertificateError(f"the gateway's certificate cannot be written to {path}: {error.strerror}") from None


def public_part(pem: str) -> str:
    """Return the certificates of a PEM text, without its key."""
    kept: list[str] = []
    inside = False
    for line in pem.splitlines():
        inside = inside or line.strip() == "-----BEGIN CERTIFICATE-----"
        if inside:
            kept.append(line.strip())
        if line.strip() == "-----END CERTIFICATE-----":
            inside = False
    return "\n".join(kept) + "\n" if kept else ""
