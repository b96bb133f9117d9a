"""Run a Redfish module in the process that Ansible forked for the task, where it would run on this controller anyway.

A module started as a process of its own spends four fifths of its time on starting Python and importing sushy (docs/performance.md).
An action plugin imports both before Ansible forks, so a fleet pays for them once. The module itself stays as it is: it gets this file's
`HereModule` where it would make an `AnsibleModule`. A task for another host, or with become or async, starts the module as usual.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from typing import Any, ClassVar

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values

from .controller import plain

Json = dict[str, Any]
_HIDDEN = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"
_MODULES = "ansible_collections.plumbline.plumbline.plugins.modules"


class _Exit(SystemExit):
    """The module has its result; a SystemExit, as `exit_json` of an AnsibleModule raises."""

    def __init__(self, result: Json) -> None:
        super().__init__(0)
        self.result = result


class HereModule:
    """What the Redfish modules use of an AnsibleModule, for the options of one task."""

    options: ClassVar[Json] = {}
    in_check_mode: ClassVar[bool] = False

    def __init__(
        self,
        argument_spec: Json,
        mutually_exclusive: Any = None,
        required_one_of: Any = None,
        supports_check_mode: bool = False,
    ) -> None:
        """Validate the options as AnsibleModule does."""
        self.check_mode = self.in_check_mode
        self._warnings: list[str] = []
        self._secrets = {str(self.options.get(name) or "") for name, one in argument_spec.items() if one.get("no_log")}
        self._secrets.discard("")
        validator = ArgumentSpecValidator(
            argument_spec, mutually_exclusive=mutually_exclusive, required_one_of=required_one_of
        )
        checked = validator.validate(self.options)
        self.params: Json = checked.validated_parameters
        self._shown = {
            name: _HIDDEN if argument_spec.get(name, {}).get("no_log") and value else value
            for name, value in self.params.items()
        }
        if checked.error_messages:
            self.fail_json(msg="; ".join(checked.error_messages))
        if self.check_mode and not supports_check_mode:
            self.exit_json(skipped=True, msg="this module does not support check mode")

    def warn(self, warning: str) -> None:
        """Add a warning to the result."""
        self._warnings.append(warning)

    def exit_json(self, **result: Any) -> None:
        """Leave with a result."""
        found = {"changed": False, **result, "invocation": {"module_args": self._shown}}
        if self._warnings:
            found["warnings"] = self._warnings
        raise _Exit(remove_values(found, self._secrets))

    def fail_json(self, msg: str, **result: Any) -> None:
        """Leave with a failure."""
        self.exit_json(**result, failed=True, msg=msg)


def prepare(name: str) -> Any:
    """Import a module and sushy; call it where an action plugin is loaded, which is before Ansible forks.

    Returns:
        The module; None where something that it needs is not installed, which is said by the module itself then.
    """
    with contextlib.suppress(ImportError):
        from . import redfish_connector  # noqa: F401, PLC0415 - it imports sushy

        return importlib.import_module(f"{_MODULES}.{name}")
    return None


def run(module: Any, options: Json, check_mode: bool) -> Json:
    """Run an imported module with options, in this process, which must be one forked for the task."""
    here = type("HereModule", (HereModule,), {"options": options, "in_check_mode": check_mode})
    usual, module.AnsibleModule = module.AnsibleModule, here
    try:
        # What Python warns about (a certificate that is not to be checked) goes to a module's stderr, which nobody sees.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.main()
    except _Exit as done:
        return done.result
    finally:
        module.AnsibleModule = usual
    raise AssertionError("unreachable: a module leaves by exit_json or fail_json")


def execute(action: Any, module: Any, options: Json, task_vars: Any) -> Json:
    """Run the module of an action plugin: here where that is possible, else as Ansible always does."""
    task = action._task
    become = action._connection.become is not None or bool(task.become)
    if module is None or task.async_val or become or action._connection.transport != "local":
        result: Json = action._execute_module(module_args=options, task_vars=task_vars, wrap_async=bool(task.async_val))
        return result
    return run(module, options, bool(task.check_mode))


class RunsHere:
    """What an action plugin of a Redfish module is: `class ActionModule(RunsHere, ActionBase)` with its `MODULE`, from `prepare`."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = True
    MODULE: ClassVar[Any] = None
    _task: Any

    def run(self, tmp: str | None = None, task_vars: Json | None = None) -> Json:
        """Run the module with the task's options."""
        # That of ActionBase, which module_utils may not import.
        result: Json = super().run(tmp, task_vars)  # type: ignore[misc]
        result.update(execute(self, self.MODULE, self.options(), task_vars))
        return result

    def options(self) -> Json:
        """The options for the module."""
        options: Json = plain(self._task.args)
        return options
