"""Wait until a node is back from a restart, and prove that it has restarted (the documentation is in library/await_restart.py)."""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import ssh_host_key

display = Display()
# What Ansible adds to a module's own result.
_NOT_FACTS = {
    "ansible_facts",
    "changed",
    "deprecations",
    "failed",
    "invocation",
    "module_stderr",
    "module_stdout",
    "rc",
    "stderr",
    "stderr_lines",
    "stdout",
    "stdout_lines",
    "warnings",
}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, options = self.validate_argument_spec(
            {
                "boot_identity": {"type": "str", "required": True},
                "timeout_seconds": {"type": "int", "default": 1200},
                "poll_seconds": {"type": "float", "default": 5.0},
                "next_command": {"type": "str", "default": ""},
                "host_key_fingerprints": {"type": "list", "elements": "str", "default": []},
                "host_key_patience_seconds": {"type": "float", "default": 120.0},
            }
        )
        allowed = [str(item) for item in options["host_key_fingerprints"]]
        for item in allowed:
            if not ssh_host_key.FINGERPRINT.match(item):
                result.update(failed=True, msg=_no_fingerprint(item))
                return result
        if self._task.check_mode:
            # Nothing was restarted, so there is nothing to wait for; the task says so instead of pretending.
            result.update(
                skipped=True, changed=False, msg="nothing was restarted in check mode, so nothing is waited for"
            )
            return result
        variables = task_vars or {}
        host = str(variables.get("inventory_hostname", "the node"))
        started = time.monotonic()
        last_seen, reason = "", "no answer yet"
        # Another system may answer for a while (one that unlocks disks has a key of its own), so not every other key is the last word.
        changed_since: float | None = None
        while True:
            facts, reason, changed = self._look(variables)
            waited = time.monotonic() - started
            if changed is None:
                changed_since = None
            else:
                reason = (
                    ssh_host_key.take_over(changed, allowed, _run, self._address())
                    if allowed
                    else ssh_host_key.told(changed)
                )
                if not reason:
                    result["host_key"] = changed.fingerprint
                    display.warning(f"{host} has a new SSH host key {changed.fingerprint}, which the inventory names.")
                    continue
                changed_since = waited if changed_since is None else changed_since
            if facts:
                last_seen = str(facts.get("boot_identity", ""))
                if last_seen != options["boot_identity"]:
                    result.update(changed=False, node=facts, elapsed_seconds=round(waited, 1))
                    return result
                reason = "it answers, but still runs the boot from before the restart"
            refused = changed_since is not None and waited - changed_since >= options["host_key_patience_seconds"]
            if refused or waited + options["poll_seconds"] > options["timeout_seconds"]:
                result.update(
                    failed=True,
                    elapsed_seconds=round(waited, 1),
                    last_boot_identity=last_seen,
                    msg=_refused(host, reason)
                    if changed
                    else _late(host, options["timeout_seconds"], reason, options["next_command"]),
                )
                return result
            time.sleep(options["poll_seconds"])

    def _address(self) -> tuple[str, str]:
        """Where the connection goes, as host and port; empty where it does not say."""
        try:
            return str(self._connection.get_option("host") or ""), str(self._connection.get_option("port") or "")
        except (AttributeError, KeyError):
            return "", ""

    def _look(self, variables: dict[str, Any]) -> tuple[dict[str, Any], str, ssh_host_key.ChangedKey | None]:
        """Ask the node once: its facts, or the reason why there are none, and whether it is its host key."""
        # A kept SSH connection hangs on a machine that is gone, and a new boot deserves a new one.
        with contextlib.suppress(Exception):
            self._connection.reset()
        try:
            answer = self._execute_module(
                module_name="plumbline.plumbline.node_info", module_args={}, task_vars=dict(variables)
            )
        except AnsibleError as error:
            return {}, _first_line(error), ssh_host_key.changed_key(str(error))
        except Exception as error:
            # Connection plugins raise what their libraries raise; for waiting, all of it means "not yet".
            display.vvv(f"await_restart: {error!r}")
            return {}, _first_line(error), None
        finally:
            # The node's temporary folder is gone with its old boot.
            self._connection._shell.tmpdir = None
        if answer.get("failed") or answer.get("unreachable") or "boot_identity" not in answer:
            said = str(answer.get("msg") or answer.get("module_stderr") or "the node did not answer")
            return {}, _first_line(said), ssh_host_key.changed_key(said)
        facts = {key: value for key, value in answer.items() if key not in _NOT_FACTS and not key.startswith("_")}
        return facts, "", None


def _first_line(text: Any) -> str:
    lines = str(text).strip().splitlines()
    return lines[0][:200] if lines else "no reason given"


def _late(host: str, seconds: int, reason: str, next_command: str) -> str:
    remedy = f"; next: {next_command}" if next_command else ""
    return (
        f"{host} was expected to be back with a new boot within {seconds} s of its restart, found: {reason};"
        f" look at its console (through the BMC where it has one) and run again once it answers{remedy}"
    )


def _refused(host: str, reason: str) -> str:
    return f"{host} was expected to be back from its restart as the machine that it was, found: {reason}"


def _no_fingerprint(item: str) -> str:
    return (
        f"restart_host_key_fingerprints: expected fingerprints as ssh-keygen -lf prints them (SHA256: and 43 characters), found "
        f"{item[:80]}: correct it in the inventory"
    )


def _run(command: list[str]) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr
