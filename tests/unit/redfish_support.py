"""What the tests of the Redfish code share: a login at a running simulator."""

from __future__ import annotations

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import RedfishClient
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import ConnectionOptions

from lab.bmc.testing import RunningBmc


def options(bmc: RunningBmc, **changes: object) -> ConnectionOptions:
    """Connection options for a simulator; `changes` replace single ones."""
    values: dict[str, object] = {
        "base_url": bmc.base_url,
        "username": bmc.username,
        "password": bmc.password,
        "ca_file": bmc.ca_file,
        "timeout_seconds": 10,
    }
    return ConnectionOptions(**{**values, **changes})  # type: ignore[arg-type]


def login(bmc: RunningBmc, **changes: object) -> RedfishClient:
    """A client that is not logged in yet; use it in a `with` statement."""
    return RedfishClient(options(bmc, **changes))
