"""What the gate looks at after the kernel stage: each setting and part beside the wish, the version, the cgroup layout."""

from __future__ import annotations

from typing import Any

from .kernel_files import SYSCTL
from .kernel_report import report
from .kernel_settings import Plan
from .node import cgroup_version


def measurements(plan: Plan) -> list[dict[str, Any]]:
    """Measurements `kernel_setting`, `session_limit`, `kernel_version` and `cgroup_version` of a machine as it is now."""
    of_parts = {told["name"] for part in plan.parts for told in part.rows}
    found = [
        _of_setting(plan, told)
        for told in report(plan)
        if told["wanted"] and not told["name"].startswith("limits.") and told["name"] not in of_parts
    ]
    found += [one for part in plan.parts for one in part.measurements]
    return found + _of_version(plan) + _of_cgroups(plan)


def _of_setting(plan: Plan, row: dict[str, Any]) -> dict[str, Any]:
    measured = {
        "name": "kernel_setting",
        "scope": row["name"],
        "expected": row["wanted"],
        "unit": "",
        "statistic": "read once",
    }
    if row["state"] == "skipped":
        return {**measured, "skipped": row["reason"]}
    if row["name"].startswith("argument "):
        cause = row["reason"]
        if row["restart_required"]:
            cause = "staged, but the machine has not restarted since"
        if not plan.arguments.is_staged:
            cause = "not staged in the boot loader: the kernel stage has not run, or somebody changed it since"
        return {
            **measured,
            "value": row["before"] or "absent",
            "cause": cause,
            "next_command": "cat /proc/cmdline",
        }
    key = row["name"]
    is_sysctl = row["persisted_in"] == SYSCTL
    return {
        **measured,
        "value": row["before"],
        "cause": "something else set it after Plumbline did (tuned, another file or service), or the stage has not run",
        "next_command": f"grep -rn {key} /etc/sysctl.d /run/sysctl.d /usr/lib/sysctl.d /etc/sysctl.conf"
        if is_sysctl
        else "systemctl status plumbline-kernel-settings.service tuned.service",
    }


def _of_version(plan: Plan) -> list[dict[str, Any]]:
    if not plan.wish.minimum_version:
        return []
    measured = {
        "name": "kernel_version",
        "scope": "kernel",
        "expected": plan.wish.minimum_version,
        "unit": "",
        "statistic": "read once",
    }
    release = plan.tree.text("/proc/sys/kernel/osrelease")
    if plan.container:
        return [{**measured, "skipped": f"{plan.container}: the kernel {release} is the host's"}]
    if not release:
        return [{**measured, "error": "/proc/sys/kernel/osrelease cannot be read"}]
    return [
        {
            **measured,
            "value": release,
            "cause": "the machine booted an older kernel than is installed, or the distribution's kernel is too old",
            "next_command": "ls -t /boot/vmlinuz-*; uname -r",
        }
    ]


def _of_cgroups(plan: Plan) -> list[dict[str, Any]]:
    if not plan.wish.cgroup_version:
        return []
    measured = {
        "name": "cgroup_version",
        "scope": "/sys/fs/cgroup",
        "expected": plan.wish.cgroup_version,
        "unit": "",
        "statistic": "read once",
    }
    version = cgroup_version(plan.tree)
    if plan.container:
        return [{**measured, "skipped": f"{plan.container}: the cgroup layout ({version}) is the host's"}]
    if version is None:
        return [{**measured, "error": "nothing is mounted at /sys/fs/cgroup"}]
    return [
        {
            **measured,
            "value": str(version),
            "cause": "the machine was booted with the legacy layout: add systemd.unified_cgroup_hierarchy=1 to kernel_arguments",
            "next_command": "grep cgroup /proc/mounts; cat /proc/cmdline",
        }
    ]
