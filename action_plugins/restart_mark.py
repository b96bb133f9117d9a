"""Mark a host that did not come back from its restart, and fail with all that is known (documentation in library/restart_mark.py)."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import host_marks
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain, without_secrets

_SHOWN_LINES = 5


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, options = self.validate_argument_spec(
            {
                "reason": {"type": "str", "required": True},
                "because": {"type": "str", "default": ""},
                "console": {"type": "dict", "default": {}},
            }
        )
        variables = task_vars or {}
        host, run, artifacts = (
            str(plain(self._templar.template(variables.get(name, ""))))
            for name in ("inventory_hostname", "plumbline_run_id", "plumbline_artifacts_dir")
        )
        if not artifacts:
            raise AnsibleActionFail(
                "The variable plumbline_artifacts_dir must be set before a host can be marked, nothing was found: "
                "import playbooks/tasks/facts.yml in the play, as every playbook of Plumbline does."
            )
        console = plain(options["console"])
        lines = [without_secrets(str(line), variables) for line in console.get("lines") or []]
        reason = str(plain(options["reason"])).strip().rstrip(".")
        mark = {
            "run": run,
            "reason": reason,
            "because": options["because"],
            "console": lines,
            "console_source": str(console.get("source") or ""),
            "boot_state": str(console.get("boot_state") or ""),
            "power_state": str(console.get("power_state") or ""),
        }
        try:
            path = host_marks.put(artifacts, host, **mark)
        except OSError as error:
            raise AnsibleActionFail(
                f"{reason}. The mark of {host} must be written below {artifacts}, but {error.strerror or error}: "
                "make plumbline_artifacts_dir a folder that you may write to."
            ) from None
        result.update(
            changed=False, failed=True, mark=str(path), console=lines, msg=_told(host, reason, mark, console, str(path))
        )
        return result


def _told(host: str, reason: str, mark: dict[str, Any], console: dict[str, Any], path: str) -> str:
    parts = [f"{reason}."]
    if mark["power_state"] or mark["boot_state"]:
        state = f"its power is {mark['power_state'] or 'unknown'}"
        parts.append(f"Its BMC says: {state}" + (f", boot state {mark['boot_state']}." if mark["boot_state"] else "."))
    if mark["console"]:
        shown = mark["console"][-_SHOWN_LINES:]
        parts.append(
            f"The last lines of its {mark['console_source']}:\n" + "\n".join(f"    {line}" for line in shown) + "\n"
        )
    else:
        parts.append(
            f"No console lines: {str(console.get('reason') or 'there is no BMC to ask (bmc_host)').rstrip('.')}."
        )
    parts.append(f"{host} is marked in {path} until it answers a survey; the other hosts go on.")
    return " ".join(parts)
