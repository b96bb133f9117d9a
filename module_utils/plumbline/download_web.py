"""HTTP(S) for large files: proxies of the environment, TLS checked, retries with back-off, continued by Range. Standard library only.

Every failure becomes one sentence in which no token and no signed query stands.
"""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional
from urllib.parse import SplitResult, urlsplit

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

# Headers of one request: method, URL and the headers that are sent besides.
Signer = Callable[[str, str, Mapping[str, str]], Mapping[str, str]]


class DownloadError(Exception):
    """Why a file could not be had, in one sentence. `transient`: another attempt may help."""

    def __init__(self, message: str, transient: bool = False, wait_seconds: float = 0.0) -> None:
        """Keep the sentence and what a retry may decide by."""
        super().__init__(message)
        self.transient = transient
        self.wait_seconds = wait_seconds


def shown(url: str) -> str:
    """The URL without user, password and query, which may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{_host(parts)}{parts.path}"


@dataclass
class Web:
    """How the web is reached. `timeout_seconds` bounds each connection and each read, `attempts` each file."""

    ca_file: str = ""
    validate_certs: bool = True
    timeout_seconds: float = 60.0
    attempts: int = 5
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        """Make the opener; raises DownloadError for a CA file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise DownloadError(
                f"The CA file {self.ca_file} cannot be read ({error}): expected certificates in PEM; correct model_source_ca_file."
            ) from None
        if not self.validate_certs:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # No argument of ProxyHandler: it reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(), urllib.request.HTTPSHandler(context=context), _Redirects()
        )

    def open(self, method: str, url: str, headers: Mapping[str, str], sign: Optional[Signer] = None) -> Any:  # noqa: UP045
        """One request; the answer with a status of 2xx, to be closed by the caller. Raises DownloadError."""
        complete = {"User-Agent": "plumbline", "Accept-Encoding": "identity", **headers}
        if sign is not None:
            complete.update(sign(method, url, headers))
        _refuse_open_secrets(url, complete)
        request = urllib.request.Request(url, headers=complete, method=method)  # noqa: S310 - the scheme was checked
        try:
            return self._opener.open(request, timeout=self.timeout_seconds)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error, url) from None
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error, url) from None

    def read(self, answer: Any, size: int, url: str) -> bytes:
        """The next bytes of an answer, none at its end. Raises DownloadError, which may be transient."""
        try:
            data: bytes = answer.read(size)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _broken(error, url) from None
        return data

    def retried(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, tried again after transient failures, with twice the wait each time."""
        wait = _FIRST_WAIT_SECONDS
        for attempt in range(1, self.attempts + 1):
            try:
                return work()
            except DownloadError as error:
                if not error.transient:
                    raise
                if attempt >= self.attempts:
                    raise DownloadError(f"{error} Tried {attempt} times.") from None
                self.sleep(min(max(wait, error.wait_seconds), _LONGEST_WAIT_SECONDS))
                wait *= 2
        raise AssertionError("unreachable")

    def text(self, url: str, headers: Mapping[str, str], sign: Optional[Signer] = None, limit: int = 64 << 20) -> bytes:  # noqa: UP045
        """A small document, whole; raises DownloadError for one of more than `limit` bytes."""

        def once() -> bytes:
            with self.open("GET", url, headers, sign) as answer:
                data = bytearray()
                while len(data) <= limit and (piece := self.read(answer, 1 << 20, url)):
                    data += piece
            if len(data) > limit:
                raise DownloadError(f"{shown(url)} is larger than {limit} bytes: expected a list of files.")
            return bytes(data)

        data: bytes = self.retried(once)
        return data


def refuse_url(url: str) -> None:
    """Raise DownloadError for what is no http or https URL of a host."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DownloadError(
            f"{shown(url)}: expected an http or https URL with a host, found another; look at model_source."
        )
    if parts.username or parts.password:
        raise DownloadError(
            f"{shown(url)}: the URL holds a user or password; put a token into model_source_token (a vault), which is never shown."
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but send no secret to another host and never leave TLS."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: PLR0917 - urllib's
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme != "https"):
            raise DownloadError(
                f"{shown(req.full_url)} redirects to {new.scheme}://{_host(new)}, which is not protected by TLS: correct the mirror."
            )
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            for name in [*following.headers]:
                if _secret(name):
                    following.remove_header(name)
        return following


def _secret(header: str) -> bool:
    return header.lower() in ("authorization", "cookie") or header.lower().startswith("x-amz-")


def _refuse_open_secrets(url: str, headers: Mapping[str, str]) -> None:
    parts = urlsplit(url)
    if (
        parts.scheme == "http"
        and parts.hostname not in _LOOPBACK
        and any(name.lower() == "authorization" for name in headers)
    ):
        raise DownloadError(
            f"{shown(url)}: a token or signature is sent over https only; give the https URL of the mirror."
        )


def _refusal(error: urllib.error.HTTPError, url: str) -> DownloadError:
    wait = error.headers.get("Retry-After", "") if error.headers else ""
    advice = {
        401: "set model_source_token (or the model_source_s3_* keys) in the vault",
        403: "the token or key may not read it, or a signed URL has expired",
        404: "correct model_source, or put the file on the mirror",
        407: "set the proxy's user in HTTPS_PROXY (model_source_environment)",
        416: "the file on the mirror is shorter than what is here already",
    }.get(error.code, "look at the server's log")
    return DownloadError(
        f"{shown(url)}: expected the file, the server answered {error.code} {error.reason or ''}".rstrip()
        + f"; {advice}.",
        transient=error.code in _TRANSIENT,
        wait_seconds=float(wait) if wait.isdigit() else 0.0,
    )


def _broken(error: Exception, url: str) -> DownloadError:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DownloadError(
            f"{shown(url)}: its certificate was not accepted ({reason.verify_message}); name the CA that signed it in model_source_ca_file."
        )
    return DownloadError(
        f"{shown(url)}: the connection failed ({reason}); look at the network, the name and the proxy (HTTPS_PROXY).",
        transient=True,
    )


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    try:
        port = parts.port
    except ValueError:
        port = None
    return f"{host}:{port}" if port else host
