"""Where resources live. Vendors differ in ids and in the spelling of segments; clients must follow the links."""

from __future__ import annotations

from typing import Any

from .profile import Profile

ROOT = "/redfish/v1"


class Paths:
    """The URIs of one profile."""

    def __init__(self, profile: Profile) -> None:
        """Derive the URIs from ids, segments and quirks of the profile."""
        ids = {"system": "1", "chassis": "1", "manager": "1", **profile.get("ids", {})}
        names = {
            "Systems": "Systems",
            "Bios": "Bios",
            "Settings": "Settings",
            "Chassis": "Chassis",
            "Managers": "Managers",
            **profile.get("segments", {}),
        }
        self.ids = ids
        self.slash = bool(profile.quirks.get("trailing_slash", False))
        self.systems = f"{ROOT}/{names['Systems']}"
        self.system = f"{self.systems}/{ids['system']}"
        self.bios = f"{self.system}/{names['Bios']}"
        self.settings = f"{self.bios}/{names['Settings']}"
        uris = profile.get("uris", {})
        self.bios = uris.get("bios", self.bios)
        self.settings = uris.get("settings", self.settings)
        self.chassis_all = f"{ROOT}/{names['Chassis']}"
        self.chassis = f"{self.chassis_all}/{ids['chassis']}"
        self.managers = f"{ROOT}/{names['Managers']}"
        self.manager = f"{self.managers}/{ids['manager']}"
        self.registries = f"{ROOT}/Registries"
        self.sessions = f"{ROOT}/SessionService/Sessions"
        self.update = f"{ROOT}/UpdateService"
        self.firmware = f"{self.update}/FirmwareInventory"
        self.tasks = f"{ROOT}/TaskService/Tasks"

    def outgoing(self, value: Any) -> Any:
        """Return a body with its links written as the firmware writes them."""
        if not self.slash:
            return value
        if isinstance(value, dict):
            return {key: self._uri(one) if key == "@odata.id" else self.outgoing(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.outgoing(one) for one in value]
        return value

    @staticmethod
    def _uri(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(ROOT) and "#" not in value and not value.endswith("/"):
            return value + "/"
        return value


def key(path: str) -> str:
    """Return the form under which a path is looked up: no trailing slash, no case (iLO answers to both spellings)."""
    return path.rstrip("/").lower() or "/"
