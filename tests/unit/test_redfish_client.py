"""The Redfish client against the simulator: log-out in every case, patience within its deadline, one sentence for an error."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import (
    RedfishClient,
    etag_forms,
    link,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import (
    ConflictError,
    ConnectionOptions,
    RedfishError,
    error_text,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connector import (
    is_transient,
    refuse_foreign_redirect,
    retry_after_seconds,
)

from lab.bmc import tls
from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login, options


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


def failure(client: RedfishClient, uri: str = "/redfish/v1/Systems") -> str:
    """The sentence that a user would read; always without the password and without a traceback."""
    with pytest.raises(RedfishError) as caught, client:
        client.get(uri)
    text = str(caught.value)
    assert "\n" not in text
    assert "correct-horse" not in text
    assert "Traceback" not in text
    return text


def test_the_session_is_closed_at_the_end(bmc: RunningBmc) -> None:
    with login(bmc) as client:
        assert bmc.truth()["sessions"] == 1
        assert client.system()["Id"] == "1"
    assert bmc.truth()["sessions"] == 0


def test_the_session_is_closed_after_an_error(bmc: RunningBmc) -> None:
    with pytest.raises(ZeroDivisionError), login(bmc):
        _ = 1 / 0
    assert bmc.truth()["sessions"] == 0


def test_a_wrong_password_is_refused_once_and_names_the_account(bmc: RunningBmc) -> None:
    text = failure(login(bmc, password="wrong"))
    assert 'refused the login of user "admin" (HTTP 401)' in text
    assert "bmc_password" in text
    assert bmc.truth()["sessions"] == 0


def test_a_bmc_that_is_down(bmc: RunningBmc) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = failure(login(bmc, base_url=f"https://127.0.0.1:{port}"))
    assert "connection refused" in text
    assert f"https://127.0.0.1:{port}" in text
    assert "check that the BMC is up" in text


def test_a_503_is_waited_for_as_its_retry_after_says(bmc: RunningBmc) -> None:
    with login(bmc) as client:
        bmc.inject("http_error", count=2, status=503, retry_after=0, path="Systems")
        assert client.get("/redfish/v1/Systems")["Members"]


def test_a_503_that_outlasts_the_timeout(bmc: RunningBmc) -> None:
    bmc.inject("http_error", status=503, retry_after=1)
    text = failure(login(bmc, timeout_seconds=1))
    assert "HTTP 503" in text
    assert "bmc_timeout_seconds" in text


def test_a_retry_after_beyond_the_deadline_is_not_slept_through(bmc: RunningBmc) -> None:
    bmc.inject("http_error", status=503, retry_after=3600)
    assert "HTTP 503" in failure(login(bmc, timeout_seconds=5))


def test_a_slow_answer(bmc: RunningBmc) -> None:
    with login(bmc, timeout_seconds=1) as client:
        bmc.inject("slow", seconds=3, path="Systems")
        with pytest.raises(RedfishError, match="no answer within 1 s"):
            client.get("/redfish/v1/Systems")
        bmc.clear_faults()


def test_a_dropped_connection_is_tried_again_for_reading_only(bmc: RunningBmc) -> None:
    with login(bmc) as client:
        bmc.inject("drop", count=1, path="Systems")
        assert client.get("/redfish/v1/Systems")["Members"]
        bmc.inject("drop", count=1, method="PATCH", when="after")
        with pytest.raises(RedfishError, match="could not be asked to change"):
            client.patch("/redfish/v1/Systems/1", {"AssetTag": "x"})


def test_a_lost_session_is_renewed(bmc: RunningBmc) -> None:
    with login(bmc) as client:
        bmc.inject("session_loss")
        assert client.get("/redfish/v1/Systems")["Members"]
    assert bmc.truth()["sessions"] == 0


def test_an_answer_that_is_no_json(bmc: RunningBmc) -> None:
    with login(bmc) as client:
        bmc.inject("garbage", path="Systems")
        with pytest.raises(RedfishError, match=r"should have answered with a Redfish document"):
            client.get("/redfish/v1/Systems")


def test_a_certificate_of_another_authority(bmc: RunningBmc, tmp_path: Path) -> None:
    other, _cert, _key = tls.generate(tmp_path, ["127.0.0.1"])
    text = failure(login(bmc, ca_file=str(other)))
    assert "certificate" in text
    assert str(other) in text
    assert "bmc_ca_file" in text


def test_a_certificate_is_checked_by_default_and_not_when_told(bmc: RunningBmc) -> None:
    assert "the system's CAs" in failure(login(bmc, ca_file=None))
    with login(bmc, ca_file=None, validate_certs=False) as client:
        assert client.root["RedfishVersion"]


def test_a_missing_ca_file_is_named_before_anything_is_sent(bmc: RunningBmc) -> None:
    text = failure(login(bmc, ca_file="/nonexistent/ca.pem"))
    assert "/nonexistent/ca.pem" in text
    assert "does not exist" in text


def test_a_ca_file_that_is_none_says_what_it_is(bmc: RunningBmc, tmp_path: Path) -> None:
    whole = Path(bmc.ca_file).read_text()
    for content, words in (
        ("", "holds no whole certificate"),
        (whole[: len(whole) // 2], "holds no whole certificate"),
        ("0\x82\x01", "holds no whole certificate"),
        (None, "is no file but a folder or a device"),
    ):
        path = tmp_path
        if content is not None:
            path = tmp_path / "ca.pem"
            path.write_text(content)
        text = failure(login(bmc, ca_file=str(path)))
        assert f"The CA file {path} for {bmc.base_url} {words}" in text
        assert "correct bmc_ca_file" in text
    assert options(bmc, ca_file=str(tmp_path), validate_certs=False).problem() == ""


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"base_url": "bmc.example"}, "bmc_host"),
        ({"base_url": "https://"}, "bmc_host"),
        ({"base_url": "https://[https://10.0.0.7]:443"}, "bmc_host"),
        ({"base_url": "https://10.0.0.7:port"}, "bmc_host"),
        ({"username": ""}, "bmc_username"),
        ({"password": ""}, "bmc_password"),
        ({"timeout_seconds": 0}, "bmc_timeout_seconds"),
    ],
)
def test_options_that_cannot_work_are_named(bmc: RunningBmc, change: dict[str, object], word: str) -> None:
    assert word in options(bmc, **change).problem()


def test_the_password_is_not_shown_with_the_options(bmc: RunningBmc) -> None:
    assert bmc.password not in repr(options(bmc))


def test_a_name_that_does_not_resolve() -> None:
    text = failure(RedfishClient(ConnectionOptions("https://bmc.invalid", "admin", "x", timeout_seconds=5)))
    assert "bmc.invalid" in text
    assert "cannot be resolved" in text


def test_a_system_that_does_not_exist_is_answered_with_those_that_do(bmc: RunningBmc) -> None:
    with login(bmc) as client, pytest.raises(RedfishError, match=r'no system "7".*expected one of 1'):
        client.system("7")


def test_several_systems_need_a_choice(bmc: RunningBmc, monkeypatch: pytest.MonkeyPatch) -> None:
    with login(bmc) as client:
        both = {"Members": [{"@odata.id": "/redfish/v1/Systems/1"}, {"@odata.id": "/redfish/v1/Systems/DPU"}]}
        monkeypatch.setattr(client, "get_optional", lambda _uri: both)
        with pytest.raises(RedfishError, match=r"2 systems \(1, DPU\).*bmc_system_id"):
            client.system()
        assert client.system("1")["Id"] == "1"


SETTINGS = "/redfish/v1/Systems/1/Bios/Settings"


def test_an_etag_in_another_form_is_tried_again(bmc: RunningBmc) -> None:
    with login(bmc) as client:
        _document, etag = client.get_with_etag(SETTINGS)
        bmc.inject("etag_conflict", count=2, method="PATCH")
        client.patch(SETTINGS, {"Attributes": {"PcieHotPlugEnable": "Enabled"}}, etag)
    assert bmc.pending == {"PcieHotPlugEnable": "Enabled"}


def test_a_change_by_somebody_else_is_not_overwritten(bmc: RunningBmc) -> None:
    with login(bmc) as client:
        _document, etag = client.get_with_etag(SETTINGS)
        bmc.inject("stale_pending", attributes={"LlcPrefetchEnable": "Enabled"})
        with pytest.raises(ConflictError, match="changed while it was being set"):
            client.patch(SETTINGS, {"Attributes": {"PcieHotPlugEnable": "Enabled"}}, etag)
    assert bmc.pending == {"LlcPrefetchEnable": "Enabled"}


def test_members_are_read_with_and_without_expansion() -> None:
    for profile in ("ieit-nf8260g7", "dell-r750"):
        with running(profile) as bmc, login(bmc) as client:
            dimms = client.members(link(client.system(), "Memory"))
            assert len(dimms) >= 8
            # Documents, not links.
            assert all(dimm["DeviceLocator"] for dimm in dimms)


def test_forms_of_an_etag_end_with_none_and_repeat_nothing() -> None:
    assert etag_forms('W/"abc"') == ['W/"abc"', '"abc"', "abc", ""]
    assert etag_forms('"abc"') == ['"abc"', "abc", ""]
    assert etag_forms("abc") == ["abc", '"abc"', ""]
    assert etag_forms("") == [""]


def test_retry_after_as_seconds_date_and_nonsense() -> None:
    assert retry_after_seconds("7", now=0) == 7
    assert retry_after_seconds("Thu, 01 Jan 1970 00:01:00 GMT", now=20) == 40
    assert retry_after_seconds("Thu, 01 Jan 1970 00:00:00 GMT", now=20) == 0
    assert retry_after_seconds("soon", now=0) is None
    assert retry_after_seconds(None, now=0) is None


def test_certificates_and_names_do_not_mend_by_waiting() -> None:
    assert is_transient(OSError("Connection refused"))
    assert not is_transient(OSError("certificate verify failed"))
    assert not is_transient(OSError("Name or service not known"))


@pytest.mark.parametrize(
    "leads_to", ["http://other.example/redfish/v1", "https://other.example/x", "http://bmc.example/x"]
)
def test_a_redirect_away_from_the_bmc_is_not_followed_with_the_login(leads_to: str) -> None:
    response = requests.Response()
    response.status_code, response.url = 302, "https://bmc.example/redfish/v1/Systems"
    response.headers["Location"] = leads_to
    with pytest.raises(requests.exceptions.InvalidURL, match="where the login would be sent along"):
        refuse_foreign_redirect(response)
    response.headers["Location"] = "/redfish/v1/Systems/"
    refuse_foreign_redirect(response)


def test_a_bmc_that_redirects_elsewhere_is_named_and_the_other_place_gets_nothing(bmc: RunningBmc) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        elsewhere = f"http://localhost:{other.getsockname()[1]}/redfish/v1/"

        class Redirecting(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(307)
                self.send_header("Location", elsewhere)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            text = failure(login(bmc, base_url=f"http://127.0.0.1:{server.server_address[1]}"))
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        assert f"it redirects to http://localhost:{other.getsockname()[1]}" in text
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_error_bodies_are_read_in_their_forms() -> None:
    info = [{"Message": "A."}, {"Message": "B."}, {"Message": "A."}, "x"]
    assert error_text({"error": {"message": "general", "@Message.ExtendedInfo": info}}) == "A. B."
    assert error_text({"error": {"message": "general"}}) == "general"
    assert error_text("nothing") == ""
