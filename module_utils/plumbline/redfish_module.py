"""What the redfish_* modules share: connection options, and one way out for errors."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from .bios_registry import SettingError
from .redfish_client import RedfishClient
from .redfish_connection import ConnectionOptions, RedfishError

CONNECTION: dict[str, Any] = {
    "base_url": {"type": "str", "required": True},
    "username": {"type": "str", "required": True},
    "password": {"type": "str", "required": True, "no_log": True},
    "ca_file": {"type": "path"},
    "validate_certs": {"type": "bool", "default": True},
    "timeout_seconds": {"type": "float", "default": 30},
    "system_id": {"type": "str", "default": ""},
}


def options_of(parameters: dict[str, Any]) -> ConnectionOptions:
    """The connection options of a module's parameters."""
    return ConnectionOptions(
        base_url=str(parameters["base_url"]).rstrip("/"),
        username=parameters["username"],
        password=parameters["password"],
        ca_file=parameters["ca_file"] or None,
        validate_certs=parameters["validate_certs"],
        timeout_seconds=parameters["timeout_seconds"],
    )


def run(module: Any, work: Callable[[RedfishClient], dict[str, Any]]) -> None:
    """Log in, do the work, log out, and leave the module with its result or with one sentence.

    The module's exit comes after the log-out: `exit_json` raises, and a session must not be left open by it.
    """
    result: dict[str, Any] = {}
    problem = ""
    try:
        with RedfishClient(options_of(module.params)) as client:
            result = work(client)
    except (RedfishError, SettingError) as error:
        problem = str(error)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problem = _unforeseen(module.params["base_url"], error)
    if problem:
        module.fail_json(msg=problem)
    for warning in result.pop("warnings", []):
        module.warn(warning)
    module.exit_json(**result)


def _unforeseen(base_url: str, error: Exception) -> str:
    """The last net under the work: what nobody thought of is one sentence as well, with the place for a report of the fault."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "plumbline" in frame.filename] or frames
    place = f"{PurePath(ours[-1].filename).name}, line {ours[-1].lineno}" if ours else "an unknown place"
    return (
        f"The BMC at {base_url} answered with something that was not expected ({type(error).__name__} in {place}: {error}):"
        " look at what its resources hold, and report this sentence as a fault of Plumbline"
    )
