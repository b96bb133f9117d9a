"""The TLS context of the server."""

from __future__ import annotations

import ssl

from .config import ConfigError


def server_context(cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and newer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        raise ConfigError(
            f"The certificate {cert_file} with the key {key_file} cannot be used ({error}); "
            "give a PEM certificate and its key, or make one with --generate-certificate DIR."
        ) from error
    return context
