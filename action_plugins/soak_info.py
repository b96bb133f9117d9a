"""Ask how far a soak is; a node that does not answer for a while is no failure (the documentation is in library/soak_info.py)."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.console import elapsed

DEFAULT_UNREACHABLE_SECONDS = 900.0


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    # One action serves all attempts of a task with `until`, so it knows since when the node is silent.
    _silent_since: float | None = None

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            answer = self._execute_module(task_vars=task_vars)
        except AnsibleConnectionFailure as error:
            now = time.monotonic()
            self._silent_since = now if self._silent_since is None else self._silent_since
            silent = now - self._silent_since
            patience = float(self._task.args.get("unreachable_seconds") or DEFAULT_UNREACHABLE_SECONDS)
            if silent >= patience:
                raise
            # A kept SSH connection hangs on what is gone.
            with contextlib.suppress(Exception):
                self._connection.reset()
            reason = " ".join(str(error).split())[:200]
            result.update(
                changed=False,
                state="running",
                progress=f"no answer from the node for {elapsed(silent)}, the soak goes on there ({reason})",
            )
            return result
        self._silent_since = None
        result.update(answer)
        return result
