"""sushy's HTTP connector, made patient within one deadline: the only module here that imports sushy at the top.

sushy retries a fixed number of times and does not look at `Retry-After`. A BMC that restarts says 503 for minutes, and
a person wants to wait for as long as `timeout_seconds` says, no longer.
"""

from __future__ import annotations

import logging
import time
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from sushy import connector as sushy_connector
from sushy import exceptions as sushy_exceptions

from .redfish_connection import NOT_READY, TLS_BROKEN

CONNECT_ATTEMPTS = 3
CONNECT_SECONDS = 10.0
CONNECT_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0

# sushy warns about what it retries; the answer to a person is one sentence, made in redfish_client.
logging.getLogger("sushy").addHandler(logging.NullHandler())
logging.getLogger("sushy").setLevel(logging.CRITICAL)


def retry_after_seconds(header: str | None, now: float) -> float | None:
    """Read a `Retry-After` header (seconds or an HTTP date); None where there is none that can be read."""
    if not header:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except (TypeError, ValueError):
        return None


def refuse_foreign_redirect(response: requests.Response, *_arguments: Any, **_options: Any) -> None:
    """Follow a redirect within the BMC only: requests would take the session's token along to wherever it leads.

    Raises:
        InvalidURL: it leads to another host or port, or from HTTPS to HTTP.
    """
    if not response.is_redirect:
        return
    here = urlsplit(response.url)
    there = urlsplit(urljoin(response.url, response.headers["Location"]))
    if there.hostname != here.hostname or (there.scheme != "https" and here.scheme == "https"):
        raise requests.exceptions.InvalidURL(
            f"it redirects to {there.scheme}://{there.netloc}, where the login would be sent along: name the BMC itself in bmc_host"
        )


class PatientConnector(sushy_connector.Connector):
    """A connector that waits for a BMC that is not ready, up to `timeout_seconds` for each request."""

    def __init__(self, url: str, *, verify: Any, timeout_seconds: float) -> None:
        """Make a connector; `verify` is true, false or the path of a CA file."""
        self._last_response: Any = None
        super().__init__(
            url,
            verify=verify,
            response_callback=self._remember,
            # 1: sushy makes one attempt of its own, all waiting is done here.
            server_side_retries=1,
            server_side_retries_delay=0,
            default_request_timeout=timeout_seconds,
            connect_timeout=min(timeout_seconds, CONNECT_SECONDS),
        )
        self._patience = timeout_seconds
        # A BMC stands in the management network: no proxy of the environment, no ~/.netrc beside the given login.
        self._session.trust_env = False
        self._session.hooks["response"].append(refuse_foreign_redirect)

    def _remember(self, response: Any) -> None:
        self._last_response = response

    def retry_after(self) -> float | None:
        """Seconds that the last answer asked to wait; None where it did not."""
        headers = getattr(self._last_response, "headers", {})
        return retry_after_seconds(headers.get("Retry-After"), time.time())

    def upload(self, path: str, body: Any, content_type: str, timeout_seconds: float) -> Any:
        """Stream a body once; sushy sends JSON only, and would hold it in memory. Nothing is sent a second time here."""
        url = urljoin(self._url, path)
        headers = {"Content-Type": content_type, "OData-Version": "4.0", "Accept-Encoding": "identity"}
        try:
            response = self._session.post(
                url, data=body, headers=headers, verify=self._verify, timeout=(CONNECT_SECONDS, timeout_seconds)
            )
        except requests.exceptions.RequestException as error:
            self._last_response = None
            raise sushy_exceptions.ConnectionError(url=url, error=error) from None
        self._remember(response)
        sushy_exceptions.raise_for_response("POST", url, response)
        return response

    def _op(self, method: str, path: str = "", **options: Any) -> Any:
        """Send one request; answers "not ready" and dropped connections are tried again until the deadline."""
        options["server_side_retries_left"] = 0
        deadline = time.monotonic() + self._patience
        failures = 0
        while True:
            try:
                return super()._op(method, path, **options)
            except sushy_exceptions.ServerSideError as error:
                if error.status_code not in NOT_READY:
                    raise
                pause = self.retry_after()
                pause = min(2.0 if pause is None else max(pause, 0.2), LONGEST_PAUSE_SECONDS)
                if time.monotonic() + pause > deadline:
                    raise
            except sushy_exceptions.ConnectionError as error:
                failures += 1
                pause = CONNECT_PAUSE_SECONDS
                # What was sent may have been acted upon: only requests that change nothing are sent again.
                if method != "GET" or failures >= CONNECT_ATTEMPTS or not is_transient(error):
                    raise
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)


def is_transient(error: BaseException) -> bool:
    """Whether a failed connection may succeed a moment later: not for certificates, names and slow answers."""
    text = str(error).lower()
    if any(word in text for word in TLS_BROKEN):
        return True
    lasting = ("certificate", "ssl", "tls", "name or service not known", "name resolution", "timed out", "getaddrinfo")
    return not any(word in text for word in lasting)
