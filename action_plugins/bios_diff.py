"""Compare BIOS attributes of machines on the controller (the documentation is in library/bios_diff.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_compare import (
    Comparison,
    compare,
    majority,
    report,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_files import (
    read_document,
    write_document,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import (
    Golden,
    GoldenFileError,
    read_golden,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, found = self.validate_argument_spec(
            {
                "directory": {"type": "path", "required": True},
                "hosts": {"type": "list", "elements": "str", "required": True},
                "golden_file": {"type": "path"},
                "ignore": {"type": "list", "elements": "str", "default": []},
                "dest": {"type": "path"},
                "fail": {"type": "bool", "default": False},
            }
        )
        options = plain(found)
        result["changed"] = False
        try:
            comparison = _compared(options)
            if options["dest"]:
                write_document(options["dest"], comparison.as_json())
        except GoldenFileError as error:
            result.update(failed=True, msg=str(error))
            return result
        result.update(comparison.as_json(), lines=report(comparison))
        failures = [*comparison.differing, *comparison.missing]
        if options["fail"] and failures:
            result.update(failed=True, msg="\n".join([*result["lines"], _verdict(comparison)]))
        return result


def _compared(options: dict[str, Any]) -> Comparison:
    machines: dict[str, Golden] = {}
    missing: dict[str, str] = {}
    for host in options["hosts"]:
        path = Path(options["directory"]).expanduser() / f"{host}.json"
        if path.exists():
            machines[host] = read_golden(read_document(str(path)), str(path))
        else:
            missing[host] = "its BIOS attributes could not be read in this run"
    golden = options["golden_file"]
    if not machines or (len(machines) == 1 and not golden):
        raise GoldenFileError(
            f"A comparison needs two machines, or one and a golden file, found {len(machines)} with BIOS attributes"
            f" of {len(options['hosts'])}: widen --limit, set bios_diff_golden_file, or see to their BMCs"
        )
    undecided: list[str] = []
    if golden:
        reference = read_golden(read_document(golden), golden)
    elif len(machines) == 2:
        first = next(host for host in options["hosts"] if host in machines)
        kept = machines.pop(first)
        reference = Golden(kept.attributes, origin=first, display_names=kept.display_names, read_only=kept.read_only)
    else:
        reference, undecided = majority(machines)
    comparison = compare(machines, reference, options["ignore"], undecided)
    comparison.missing = missing
    return comparison


def _verdict(comparison: Comparison) -> str:
    parts = []
    if comparison.differing:
        number = len(comparison.differing)
        parts.append(f"{number} machine{' differs' if number == 1 else 's differ'} from {comparison.reference}")
    if comparison.missing:
        parts.append(f"{len(comparison.missing)} could not be compared")
    return (
        f"Expected the same BIOS settings everywhere, found: {' and '.join(parts)}. Put the golden file on them with"
        " playbooks/bios_restore.yml, or name what may differ in bios_diff_ignore."
    )
