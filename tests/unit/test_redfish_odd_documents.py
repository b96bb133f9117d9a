"""Whatever a BMC writes into a member of its documents, a module ends with a result or with one sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    redfish_client,
    redfish_inventory,
    redfish_module,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import snapshot
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import SettingError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_resource import read_bios
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_operation import (
    Request as FirmwareRequest,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_operation import (
    stage_firmware,
    verify_firmware,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import RedfishClient
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_reset import PowerRequest, Resetter

from lab.bmc.testing import running
from tests.unit.redfish_support import options

Json = dict[str, Any]
ODD = (None, "x", 7, [None], {"a": None}, float("inf"))
FIRMWARE = {
    "floors": {"BIOS": "99.0"},
    "images": [{"component": "BIOS", "version": "99.0", "uri": "http://a.example/b"}],
}


def _snapshot(client: RedfishClient) -> None:
    bios = read_bios(client)
    snapshot(bios.state, bios.system, "node1", "now")


def _inventory(client: RedfishClient) -> None:
    system = client.system()
    redfish_inventory.system_summary(client, system)
    redfish_inventory.memory_modules(client, system)
    redfish_inventory.pcie_devices(client, system)


def _stage(client: RedfishClient) -> None:
    logical = {"c_states": "disabled", "turbo": "enabled", "workload_profile": "custom"}
    stage_settings(client, Request(logical=logical, unlock=True, foreign_pending="clear"))


WORK: dict[str, Callable[[RedfishClient], Any]] = {
    "stage": _stage,
    "verify": lambda client: verify_settings(client, Request(logical={"c_states": "disabled"}, blocking_job="refuse")),
    "snapshot": _snapshot,
    "inventory": _inventory,
    "firmware": lambda client: stage_firmware(client, FirmwareRequest(**FIRMWARE, check_mode=True)),
    "firmware verified": lambda client: verify_firmware(client, FirmwareRequest(**FIRMWARE)),
    "power": lambda client: Resetter(client, PowerRequest(state="power_cycled", check_mode=True)).run(),
}


class Recorded(RedfishClient):
    """A client that answers reads from documents, and to which nothing can be written."""

    def __init__(self, root: Json, documents: dict[str, Json]) -> None:
        self.options = SimpleNamespace(base_url="https://bmc.example", timeout_seconds=1)  # type: ignore[assignment]
        self.root, self.documents = root, documents
        self._connector = SimpleNamespace(retry_after=lambda: None)

    def get_with_etag(self, uri: str) -> tuple[Json, str]:
        if uri not in self.documents:
            raise RedfishError(f"no {uri}", 404)
        return self.documents[uri], ""

    def post(self, uri: str, body: Json, etag: str = "") -> Any:
        raise RedfishError("refused", 400)

    patch = post  # type: ignore[assignment]


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each member; of the entries of an array, of the many attributes and of a registry's entries the first."""
    if isinstance(document, dict):
        for name in list(document)[: 3 if path[-1:] == ("Attributes",) else None]:
            yield (*path, name)
            yield from places(document[name], (*path, name))
    elif isinstance(document, list) and document:
        yield (*path, 0)
        yield from places(document[0], (*path, 0))


def with_odd(document: Json, path: tuple[Any, ...], value: Any) -> Json:
    changed = copy.copy(document)
    place: Any = changed
    for step in path[:-1]:
        place[step] = copy.copy(place[step])
        place = place[step]
    place[path[-1]] = value
    return changed


@pytest.fixture(scope="module", params=["ieit-nf8260g7-strict", "dell-r750"])
def recorded(request: pytest.FixtureRequest) -> tuple[Json, dict[str, Json], dict[str, set[str]]]:
    """What a machine answers to all the work here, and which work reads which document."""
    documents: dict[str, Json] = {}
    readers: dict[str, set[str]] = {}
    now = ""

    class Recording(RedfishClient):
        def get_with_etag(self, uri: str) -> tuple[Json, str]:
            document, etag = super().get_with_etag(uri)
            documents[uri] = document
            readers.setdefault(uri, set()).add(now)
            return document, etag

    with running(request.param) as bmc:
        # A job and a task that wait, so that there are some to read.
        assert bmc.inject("stale_pending", attributes={"TurboMode": "Disabled"} if "ieit" in request.param else {})
        with Recording(options(bmc)) as client:
            root = client.root
            for now, work in WORK.items():
                if now != "stage":
                    work(client)
                else:
                    stage_settings(client, Request(logical={"c_states": "disabled"}, unlock=True, check_mode=True))
    return root, documents, readers


def test_a_member_of_another_type_is_never_a_traceback(
    recorded: tuple[Json, dict[str, Json], dict[str, set[str]]],
) -> None:
    root, documents, readers = recorded
    seen: set[tuple[Any, ...]] = set()
    tried = 0
    for uri, document in [("", root), *documents.items()]:
        kind = str(document.get("@odata.type", uri))
        for path in places(document):
            # A hundred DIMMs have the same members.
            if (kind, *path) in seen:
                continue
            seen.add((kind, *path))
            for value in ODD:
                odd = with_odd(document, path, value)
                for name in WORK if not uri else readers[uri]:
                    client = Recorded(odd, documents) if not uri else Recorded(root, {**documents, uri: odd})
                    tried += 1
                    try:
                        WORK[name](client)
                    except (RedfishError, SettingError):
                        continue
                    except Exception as error:
                        raise AssertionError(f"{name}: {uri or 'the root'}: {path} = {value!r}: {error!r}") from error
    assert tried > 3000


def test_a_list_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Recorded):
        def get_with_etag(self, uri: str) -> tuple[Json, str]:
            return {"Members": [], "Members@odata.nextLink": f"{uri}1"}, ""

    monkeypatch.setattr(redfish_client, "_MOST_PAGES", 20)
    with pytest.raises(RedfishError, match="was expected to end the list /x, but it has more than 20 pages"):
        Endless({}, {}).members("/x")


class Module:
    """As much of an AnsibleModule as `redfish_module.run` uses."""

    def __init__(self, **params: Any) -> None:
        self.params = params

    def fail_json(self, msg: str) -> None:
        raise SystemExit(msg)


def test_what_nobody_thought_of_is_a_sentence_with_its_place() -> None:
    with running() as bmc:
        login = {"base_url": bmc.base_url, "username": bmc.username, "password": bmc.password, "ca_file": bmc.ca_file}
        module = Module(**login, validate_certs=True, timeout_seconds=10)
        with pytest.raises(SystemExit) as left:
            redfish_module.run(module, lambda client: client.root["NoSuchMember"])
        assert bmc.truth()["sessions"] == 0
    assert "answered with something that was not expected (KeyError in redfish_module.py, line" in str(left.value)
