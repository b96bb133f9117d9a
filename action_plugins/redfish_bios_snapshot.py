"""Keep what `redfish_bios_snapshot` reads in a file on the controller (the documentation is in library/redfish_bios_snapshot.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_files import (
    as_text,
    read_document,
    write_document,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import (
    GoldenFileError,
    read_golden,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(self._execute_module(module_args=dict(self._task.args), task_vars=task_vars))
        dest = plain(self._task.args.get("dest"))
        if result.get("failed") or not isinstance(dest, str) or not dest:
            return result
        try:
            result.update(_keep(dest, plain(result.pop("snapshot")), write=not self._task.check_mode))
        except GoldenFileError as error:
            result.update(failed=True, changed=False, msg=str(error))
        return result


def _keep(dest: str, document: dict[str, Any], write: bool) -> dict[str, Any]:
    before: dict[str, Any] = {}
    if Path(dest).expanduser().exists():
        try:
            before = read_document(dest)
            read_golden(before, dest)
        except GoldenFileError as error:
            raise GoldenFileError(
                f"Expected {dest} to be missing or an earlier backup, which it would replace, found another or a broken file"
                f" ({error}): move it away and run again"
            ) from None
    changed = {**before, "taken_at": ""} != {**document, "taken_at": ""}
    if changed and write:
        write_document(dest, document)
    shown = {
        "before_header": dest,
        "after_header": dest,
        "before": as_text(before) if before else "",
        "after": as_text(document),
    }
    return {"changed": changed, "dest": dest, **({"diff": shown} if changed else {})}
