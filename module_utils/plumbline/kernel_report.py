"""Tells of a kernel wish: for each setting what became of it, and what would differ."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .kernel_files import LIMITS, SYSCTL, TMPFILES, current
from .kernel_knobs import Setting
from .kernel_parts import row
from .kernel_settings import Plan, RefusedError, words
from .kernel_wish import normalise_value


def report(plan: Plan, refused: RefusedError | None = None) -> list[dict[str, Any]]:
    """For each setting: name, state (ok, changed, skipped, failed), wanted, before, reason, restart_required."""
    rows = [_live_row(plan, setting) for setting in plan.live]
    rows += [
        row(name, "changed", ("", _told(before)), "no longer wished: given back to what it was before Plumbline")
        for name, before in plan.give_back.items()
    ]
    limits_now = _limit_values(current(plan.tree, LIMITS) or "")
    for name, value in plan.wish.limits.items():
        before = limits_now.get(name, "")
        state = "skipped" if plan.limits_skipped else "ok" if before == value else "changed"
        rows.append(
            row(f"limits.{name}", state, (value, before), plan.limits_skipped or "for sessions that begin later")
        )
    rows += _argument_rows(plan)
    culprits: dict[str, str] = {}
    for part in plan.parts:
        rows += part.rows
        culprits.update({str(told["name"]): part.name for told in part.rows})
    if refused:
        for told in rows:
            name = str(told["name"])
            if refused.culprit in (name, culprits.get(name)) or (
                refused.culprit == "arguments" and name.startswith("argument ")
            ):
                told.update(state="failed", reason=str(refused))
            elif told["state"] == "changed":
                told.update(state="skipped", reason=f"put back, because {refused.culprit} was refused")
    return rows


def differences(plan: Plan) -> list[dict[str, str]]:
    """Ansible diffs: one for the live settings, one for each file."""
    before, after = "", ""
    for setting in plan.live:
        if not setting.skipped and not setting.is_right:
            before += f"{setting.name} = {_told(setting.before)}\n"
            after += f"{setting.name} = {setting.wanted}\n"
    for name, values in plan.give_back.items():
        before += f"{name} = {plan.state['live'][name]['set']}\n"
        after += f"{name} = {_told(values)}\n"
    diffs = [{"before_header": "live", "after_header": "live", "before": before, "after": after}] if before else []
    for wish in plan.wrong_files:
        link = plan.tree.link(wish.path)
        diffs.append(
            {
                "before_header": wish.path,
                "after_header": wish.path,
                "before": f"-> {link}\n" if link is not None else current(plan.tree, wish.path) or "",
                "after": f"-> {wish.link}\n" if wish.link is not None else wish.content or "",
            }
        )
    commands = [" ".join(command.do) for part in plan.parts for command in part.commands]
    if commands:
        diffs.append(
            {"before_header": "commands", "after_header": "commands", "before": "", "after": "\n".join(commands) + "\n"}
        )
    if not plan.arguments.is_staged:
        old = words(plan.state, "arguments")
        diffs.append(
            {
                "before_header": f"kernel arguments ({plan.arguments.loader})",
                "after_header": f"kernel arguments ({plan.arguments.loader})",
                "before": "".join(f"{word}\n" for word in old),
                "after": "".join(f"{word}\n" for word in plan.wish.arguments),
            }
        )
    return diffs


def _limit_values(text: str) -> dict[str, str]:
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {fields[2]: fields[3] for fields in lines if len(fields) == 4}


def _live_row(plan: Plan, setting: Setting) -> dict[str, Any]:
    before = _told(setting.before)
    if setting.skipped:
        return row(setting.name, "skipped", (setting.wanted, before), setting.skipped)
    file = SYSCTL if setting.kind == "sysctl" else TMPFILES
    line = f"{setting.pattern} = {setting.wanted}" if setting.kind == "sysctl" else f"w {setting.pattern} "
    lines = (current(plan.tree, file) or "").splitlines()
    kept = any(found.startswith(line) and found.endswith(setting.wanted) for found in lines)
    if not setting.is_right:
        return row(setting.name, "changed", (setting.wanted, before), "", file)
    if not kept:
        return row(setting.name, "changed", (setting.wanted, before), f"was right, is now kept in {file}", file)
    return row(setting.name, "ok", (setting.wanted, before), "", file)


def _argument_rows(plan: Plan) -> list[dict[str, Any]]:
    arguments = plan.arguments
    previous = words(plan.state, "arguments")
    running = (plan.tree.text("/proc/cmdline") or "").split()
    staged_in_this_boot = not arguments.is_staged or plan.state.get("boot_id", plan.boot_id) == plan.boot_id
    rows = []
    for word in arguments.wanted:
        name = f"argument {word}"
        if arguments.skipped:
            rows.append(row(name, "skipped", (word, ""), arguments.skipped))
            continue
        is_running = word not in arguments.not_running
        state = "ok" if arguments.is_staged or word in previous else "changed"
        reason = ""
        if not is_running and not staged_in_this_boot:
            state = "failed"
            reason = (
                "staged before the last restart, yet the running kernel does not have it: the machine booted another "
                "entry (see GRUB_DEFAULT, grub2-editenv list, /proc/cmdline)"
            )
        elif not is_running:
            reason = "takes effect with the next restart"
        before = word if is_running else ""
        told = row(name, state, (word, before), reason, arguments.loader)
        told["restart_required"] = not is_running and staged_in_this_boot
        rows.append(told)
    leaving = [word for word in previous if word not in arguments.wanted]
    if plan.state.get("boot_id") == plan.boot_id:
        leaving += [word for word in words(plan.state, "leaving") if word not in arguments.wanted]
    for word in dict.fromkeys(leaving):
        told = row(f"argument {word}", "changed" if word in previous else "ok", ("", word), "no longer wished")
        told["restart_required"] = word in running
        if not arguments.skipped:
            rows.append(told)
    return rows


def _told(values: dict[str, str]) -> str:
    """One value for all files, or how often each occurs."""
    counted = Counter(values.values())
    if len(counted) <= 1:
        return next(iter(counted), "")
    return ", ".join(f"{normalise_value(value)} on {count}" for value, count in sorted(counted.items()))
