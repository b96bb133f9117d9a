"""A Redfish service as Plumbline uses it: log in, read, change, log out.

sushy does the HTTP work (sessions and their renewal, TLS, encodings). What is added is what our users need beside it: waiting
for a BMC that is not ready (`redfish_connector`), ETags that do not overwrite somebody else's change, documents as plain JSON
(sushy's classes drop vendors' members, and its registry class drops `Dependencies`), and errors for people
(`redfish_connection`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .redfish_connection import ROOT, ConflictError, ConnectionOptions, RedfishError, explain
from .redfish_document import address, items, mapping, text

Json = dict[str, Any]
# What a BMC answers for a resource or a method that it lists but does not serve.
MISSING = (404, 405, 501)
PRECONDITION = (412, 428)
# A collection with more pages has no end: firmware that counts up and never says that there is nothing left.
_MOST_PAGES = 1000


@dataclass
class Answer:
    """What the BMC said to a change: `task_uri` is set where it answered 202 with a task or a job."""

    status: int
    body: Json
    etag: str = ""
    task_uri: str = ""


class RedfishClient:
    """One login at one BMC; use it in a `with` statement, which always logs out."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Keep the options; nothing is sent before the `with` statement."""
        self.options = options
        self.root: Json = {}
        self._connector: Any = None
        self._auth: Any = None

    def __enter__(self) -> RedfishClient:
        """Connect and log in.

        Raises:
            RedfishError: the BMC cannot be reached, is no Redfish service, or refuses the login.
        """
        problem = self.options.problem()
        if problem:
            raise RedfishError(problem)
        try:
            # Only here: a controller without sushy is told what to install, instead of a traceback at import.
            import sushy  # noqa: PLC0415

            from .redfish_connector import PatientConnector  # noqa: PLC0415
        except ImportError as error:
            raise RedfishError(
                f"The Python library sushy is needed on the controller and cannot be imported ({error}):"
                " run `pip install -r requirements.txt` in the environment that runs Ansible"
            ) from None
        try:
            self._connector = PatientConnector(
                self.options.base_url, verify=self.options.verify, timeout_seconds=self.options.timeout_seconds
            )
            self._log_in(sushy)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        """Log out."""
        self.close()

    def close(self) -> None:
        """End the session at the BMC: it has few, and one that is left open blocks others for half an hour."""
        auth, self._auth = self._auth, None
        connector, self._connector = self._connector, None
        if auth is not None:
            # The work is done or its error is under way; a BMC that has just gone down has no session to end.
            with contextlib.suppress(Exception):
                auth.close()
        if connector is not None:
            connector.close()

    def _log_in(self, sushy: Any) -> None:
        auth = sushy.auth.SessionAuth(self.options.username, self.options.password)
        try:
            main = sushy.main.Sushy(self.options.base_url, auth=auth, connector=self._connector)
        except Exception as error:
            without_sessions = isinstance(error, sushy.exceptions.MissingXAuthToken)
            without_sessions = without_sessions or getattr(error, "status_code", 0) in MISSING
            # A refused password does not lead to a second try: that could lock the account.
            if not without_sessions:
                raise self._explain(error, "log in at", ROOT) from None
            auth = sushy.auth.BasicAuth(self.options.username, self.options.password)
            main = self._call(
                "log in at", ROOT, sushy.main.Sushy, self.options.base_url, auth=auth, connector=self._connector
            )
        self._auth = auth
        # sushy ends the session when its object is collected, whenever that is; ending it is our business.
        main._auth = None
        self.root = main.json

    def _call(self, verb: str, uri: str, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            raise self._explain(error, verb, uri) from None

    def _explain(self, error: Exception, verb: str, uri: str) -> RedfishError:
        return explain(error, self.options, verb, uri)

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, uri: str) -> Json:
        """Read a resource as JSON."""
        return self.get_with_etag(uri)[0]

    def get_with_etag(self, uri: str) -> tuple[Json, str]:
        """Read a resource and its ETag, of the header or of the body; empty where it has none."""
        response = self._call("read", uri, self._connector.get, uri)
        document = self._json(response, uri)
        etag = response.headers.get("ETag") or document.get("@odata.etag") or ""
        return document, str(etag)

    def get_optional(self, uri: str | None) -> Json:
        """Read a resource that may be missing: an empty document where there is none."""
        if not uri:
            return {}
        try:
            return self.get(uri)
        except RedfishError as error:
            if error.status in MISSING:
                return {}
            raise

    def members(self, collection_uri: str | None) -> list[Json]:
        """All members of a collection, with one request where the BMC can expand them."""
        if not collection_uri:
            return []
        expand = mapping(self.root, "ProtocolFeaturesSupported", "ExpandQuery")
        if expand.get("NoLinks") and "?" not in collection_uri:
            try:
                expanded = self.get(f"{collection_uri}?$expand=.($levels=1)")
            except RedfishError as error:
                if not error.status:
                    raise
                expanded = {}
            found = items(expanded, "Members")
            # Some BMCs say that they expand and return bare links.
            if found and all(len(member) > 1 for member in found) and "Members@odata.nextLink" not in expanded:
                return found
        result: list[Json] = []
        next_uri: str = collection_uri
        seen: set[str] = set()
        while next_uri and next_uri not in seen:
            seen.add(next_uri)
            if len(seen) > _MOST_PAGES:
                raise RedfishError(
                    f"The BMC at {self.options.base_url} was expected to end the list {collection_uri}, but it has more than"
                    f" {_MOST_PAGES} pages: restart the BMC, or update its firmware"
                )
            page = self.get_optional(next_uri)
            uris = [address(member) for member in items(page, "Members")]
            result += [document for document in map(self.get_optional, uris) if document]
            next_uri = text(page, "Members@odata.nextLink")
        return result

    def system(self, identity: str = "") -> Json:
        """The computer system with this `Id`; without one the only one, or the only one with a BIOS (beside GPU baseboards).

        Raises:
            RedfishError: there is none with that id, or there are several and none was named.
        """
        bmc = f"The BMC at {self.options.base_url}"
        collection = link(self.root, "Systems")
        members = [address(member) for member in items(self.get_optional(collection), "Members")]
        uris = {uri.rstrip("/").rsplit("/", 1)[-1]: uri for uri in members if uri}
        if not uris:
            raise RedfishError(f"{bmc} lists no computer system under {collection or ROOT}: is it a server's BMC?")
        if identity and identity not in uris:
            raise RedfishError(
                f'{bmc} has no system "{identity}": expected one of {", ".join(uris)}; set bmc_system_id'
            )
        if not identity and len(uris) > 1:
            hosts = [document for document in map(self.get_optional, uris.values()) if link(document, "Bios")]
            if len(hosts) == 1:
                return hosts[0]
            raise RedfishError(
                f"{bmc} manages {len(uris)} systems ({', '.join(uris)}), of which one must be chosen: set bmc_system_id"
            )
        return self.get(uris[identity or next(iter(uris))])

    # -- changing ----------------------------------------------------------------------------------------------------

    def post(self, uri: str, body: Json) -> Answer:
        """Send a POST (an action)."""
        return self._answer(self._call("send an action to", uri, self._connector.post, uri, data=body))

    def delete(self, uri: str) -> Answer:
        """Delete a resource; one that is gone already is no error."""
        try:
            return self._answer(self._call("delete", uri, self._connector.delete, uri))
        except RedfishError as error:
            if error.status != 404:
                raise
            return Answer(error.status, {})

    def look(self, uri: str) -> Answer:
        """Read what may be anything, such as a task's monitor: 202 with a task, 200 with a result, or 204."""
        return self._answer(self._call("read", uri, self._connector.get, uri))

    def upload(self, uri: str, body: Any, content_type: str, timeout_seconds: float) -> Answer:
        """Stream a body (an object with `read` and `__len__`) to the BMC, once.

        `timeout_seconds` bounds the wait for the answer, which many BMCs give only when they have looked at the whole body.
        """
        return self._answer(
            self._call("upload to", uri, self._connector.upload, uri, body, content_type, timeout_seconds)
        )

    @property
    def retry_after_seconds(self) -> float | None:
        """What the last answer said about when to come again; None where it said nothing."""
        connector = self._connector
        return None if connector is None else connector.retry_after()  # type: ignore[no-any-return]

    def patch(self, uri: str, body: Json, etag: str = "") -> Answer:
        """Change a resource that was read with `etag`.

        BMCs differ in the form they want: weak, strong, without quotes, or none. After a 412 the ETag is read again. Where
        it is the same, only the form was wrong, and the others are tried; where it differs, somebody else was faster.

        Raises:
            ConflictError: the resource has changed since it was read.
            RedfishError: the BMC refused the change, or could not be reached.
        """
        forms = etag_forms(etag)
        for form in forms:
            headers = {"If-Match": form} if form else {}
            try:
                return self._answer(self._call("change", uri, self._connector.patch, uri, data=body, headers=headers))
            except RedfishError as error:
                if error.status not in PRECONDITION or form == forms[-1]:
                    raise
                if form == forms[0] and self.get_with_etag(uri)[1] != etag:
                    raise ConflictError(
                        f"{self.options.base_url}{uri} changed while it was being set: another tool works on this BMC;"
                        " run again when it is done",
                        error.status,
                    ) from None
        raise AssertionError("unreachable: the last form returns or raises")

    @staticmethod
    def _answer(response: Any) -> Answer:
        body: Json = {}
        # Some BMCs answer a change with an empty page or with text; the status is what counts.
        with contextlib.suppress(ValueError):
            parsed = response.json() if response.content else {}
            body = parsed if isinstance(parsed, dict) else {}
        task = ""
        if response.status_code == 202:
            task = str(response.headers.get("Location") or body.get("@odata.id") or "")
            task = urlsplit(task).path if task.startswith("http") else task
        return Answer(response.status_code, body, str(response.headers.get("ETag") or ""), task)

    def _json(self, response: Any, uri: str) -> Json:
        document = None
        with contextlib.suppress(ValueError):
            document = response.json()
        if not isinstance(document, dict):
            kind = response.headers.get("Content-Type", "no content type")
            raise RedfishError(
                f"{self.options.base_url}{uri} should have answered with a Redfish document (JSON) but sent {kind}:"
                " is this address a BMC, or a login page or proxy in front of it?",
                response.status_code,
            )
        return document


def link(document: Mapping[str, Any], *names: str) -> str:
    """The `@odata.id` behind nested members, e.g. `link(system, "Bios")`; empty where there is none."""
    return address(document, *names)


def etag_forms(etag: str) -> list[str]:
    """The forms to try in `If-Match`, best first, each once; the empty one (no header) last."""
    strong = re.sub(r"^W/", "", etag)
    bare = strong.strip('"')
    forms = [etag, strong, f'"{bare}"' if bare else "", bare, ""]
    return [form for form in dict.fromkeys(forms) if form] + [""]
