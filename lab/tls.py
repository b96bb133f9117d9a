"""The lab's certificate authority and the BMC's certificate, so that verification stays on as it should at a real site."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lab.shell import say, write_atomically

VALID = dt.timedelta(days=730)
RENEW_BEFORE = dt.timedelta(days=30)
ADDRESS = ipaddress.ip_address("127.0.0.1")


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Plumbline lab"),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def is_sound(ca_file: Path, cert_file: Path, key_file: Path, now: dt.datetime) -> bool:
    """True where the three files belong together, name 127.0.0.1 and hold for another month."""
    try:
        ca = x509.load_pem_x509_certificate(ca_file.read_bytes())
        cert = x509.load_pem_x509_certificate(cert_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        cert.verify_directly_issued_by(ca)
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (
        key.public_key() == cert.public_key()
        and ADDRESS in names.get_values_for_type(x509.IPAddress)
        and all(c.not_valid_before_utc <= now and now + RENEW_BEFORE <= c.not_valid_after_utc for c in (ca, cert))
    )


def make(ca_file: Path, cert_file: Path, key_file: Path, now: dt.datetime) -> None:
    """A new authority and a certificate for 127.0.0.1. The authority's key is not kept: it has nothing more to sign."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    start, end = now - dt.timedelta(hours=1), now + VALID
    ca_name = _name(f"Plumbline lab authority {now:%Y-%m-%d}")
    ca = (
        x509.CertificateBuilder(ca_name, ca_name, ca_key.public_key(), x509.random_serial_number(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    cert = (
        x509.CertificateBuilder(ca_name, _name("lab BMC"), key.public_key(), x509.random_serial_number(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(True, False, False, False, False, False, False, False, False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ADDRESS), x509.DNSName("localhost")]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        # OpenSSL 3.5 and Python 3.13 check strictly: without this identifier they refuse the chain.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_atomically(key_file, _pem(key), 0o600)
    write_atomically(cert_file, cert.public_bytes(serialization.Encoding.PEM), 0o644)
    write_atomically(ca_file, ca.public_bytes(serialization.Encoding.PEM), 0o644)


def ensure(directory: Path) -> bool:
    """Make the certificates unless sound ones are there; True where they were made anew."""
    files = (directory / "ca.pem", directory / "bmc.pem", directory / "bmc.key")
    now = dt.datetime.now(dt.timezone.utc)
    if is_sound(*files, now):
        return False
    say("making the lab's certificate authority and the BMC's certificate")
    make(*files, now)
    return True
