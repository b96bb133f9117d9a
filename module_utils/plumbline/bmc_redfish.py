"""Sensors and event log of a machine over Redfish, in the form of `bmc_ipmi_run.observe`."""

from __future__ import annotations

from typing import Any

from .bmc_redfish_log import read_log
from .bmc_redfish_sensors import chassis_of, read_sensors
from .redfish_client import RedfishClient
from .redfish_connection import RedfishError
from .redfish_document import text

Json = dict[str, Any]


def observe(client: RedfishClient, system_id: str, log_entries_maximum: int) -> Json:
    """Sensors and log of one system. A part that the BMC refuses leaves its reason in `sensors_error` or `log_error`, and the other stands.

    Raises:
        RedfishError: the BMC cannot be reached, or has no such system.
    """
    system = client.system(system_id)
    chassis = chassis_of(client, system)
    found: Json = {"sensors": [], "sensors_error": "", "power_state": text(system, "PowerState").lower() or "on"}
    try:
        found["sensors"] = read_sensors(client, chassis)
    except RedfishError as error:
        found["sensors_error"] = str(error)
    if not found["sensors"] and not found["sensors_error"]:
        found["sensors_error"] = "the BMC lists no sensor (Thermal, Power, Sensors and their subsystems of its chassis)"
    try:
        found.update(read_log(client, system, chassis, log_entries_maximum))
    except RedfishError as error:
        service = {"name": "", "entries": None, "used_fraction": None, "time": None, "uri": ""}
        found.update(log=[], log_service=service, log_error=str(error), notes=[])
    return found
