"""Give `redfish_bios` what lies in files on the controller (the documentation is in library/redfish_bios.py)."""

from __future__ import annotations

import contextlib
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_here
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_files import read_document
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import read_golden
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import SettingError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_vendor_files import load_mappings

# Read while the strategy loads this plugin, before it forks: the workers of all hosts inherit the mappings.
with contextlib.suppress(SettingError):  # said by each task
    load_mappings()
_FROM_FILES = ("golden", "vendor_mappings")


class ActionModule(redfish_here.RunsHere, ActionBase):
    MODULE = redfish_here.prepare("redfish_bios")

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            result = super().run(tmp, task_vars)
        except SettingError as error:
            return {"failed": True, "changed": False, "msg": str(error)}
        # What came from files is long and of no interest in each result.
        shown = (result.get("invocation") or {}).get("module_args") or {}
        for name in _FROM_FILES:
            shown.pop(name, None)
        return result

    def options(self) -> dict[str, Any]:
        options = super().options()
        return {**options, **_content(options)}


def _content(options: dict[str, Any]) -> dict[str, Any]:
    """The content of the files that the options name. What is no list or text is left to the module to refuse."""
    files, given = options.get("vendor_files") or [], options.get("vendor_mappings") or []
    names = [files] if isinstance(files, str) else files
    found: dict[str, Any] = {}
    if isinstance(names, list) and isinstance(given, list):
        found["vendor_mappings"] = [*load_mappings([str(name) for name in names]), *given]
    golden = options.get("golden_file")
    if isinstance(golden, str) and golden:
        document = read_document(golden)
        read_golden(document, golden)
        found["golden"] = document
    return found
