"""How a run reads on a terminal: pure text, so that it is tested without Ansible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .quantities import format_value

SHOWN_HOSTS = 4
"""How many hosts a line names before it says how many more there are."""


def host_list(hosts: Iterable[str], shown: int = SHOWN_HOSTS) -> str:
    """Return ``node1, node2 and 198 more``."""
    names = sorted(hosts)
    if len(names) <= shown:
        return ", ".join(names)
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def plural(number: int, noun: str) -> str:
    """Return ``1 check`` or ``3 checks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def elapsed(seconds: float) -> str:
    """Return a duration as a clock reads it: ``4 s``, ``1 min 05 s``, ``2 h 03 min``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def check_line(check: Mapping[str, Any]) -> str:
    """Return what follows the status of a check on its line: what was judged, and the figure or the reason."""
    what = f"{check.get('title') or check.get('name')} ({check.get('scope')})"
    if check.get("status") != "OK" or not check.get("measured"):
        return printable(f"{what}: {check.get('reason', '')}")
    required = check.get("required")
    return printable(f"{what}: {check['measured']}" + (f"; required: {required}" if required else ""))


def check_details(check: Mapping[str, Any]) -> list[str]:
    """Return the lines below a check that did not pass: the probable cause and the next command."""
    if check.get("status") in ("OK", "SKIPPED"):
        return []
    lines = [f"cause: {printable(check['cause'])}"] if check.get("cause") else []
    return lines + ([f"next:  {printable(check['next_command'])}"] if check.get("next_command") else [])


def merge_checks(checks: Iterable[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """Return (status, line) for many hosts' checks of one gate: what passed is one line for all of them.

    A check that did not pass is not merged; the caller shows it with its host.
    """
    groups: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for host, check in checks:
        if check.get("status") in ("OK", "SKIPPED"):
            groups.setdefault((str(check["status"]), str(check.get("title") or check.get("name"))), []).append(
                (host, check)
            )
    lines = []
    for (status, title), members in groups.items():
        hosts = {host for host, _check in members}
        where = f"{title} on {plural(len(hosts), 'host')}"
        if status == "SKIPPED":
            reasons = sorted({str(check.get("reason", "")) for _host, check in members})
            detail = reasons[0] + (f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else "")
        else:
            detail = _range([check for _host, check in members])
        lines.append((status, f"{where}: {detail}" if detail else where))
    return lines


def _range(checks: Sequence[Mapping[str, Any]]) -> str:
    values = [check.get("value") for check in checks]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) == len(values) and numbers:
        unit = str(checks[0].get("unit") or "")
        low, high = format_value(min(numbers), unit), format_value(max(numbers), unit)
        return low if low == high else f"{low} to {high}"
    texts = sorted({str(check.get("measured", "")) for check in checks})
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def one_message(result: Mapping[str, Any]) -> str:
    """Return what a failed task has to say, as the person who wrote it meant it, with the tail of a command's output."""
    if result.get("censored"):
        return "its output is hidden, because it may hold a secret (no_log)"
    message = str(result.get("msg") or result.get("reason") or "").strip()
    # A command's own words tell more than "non-zero return code".
    said = str(result.get("stderr") or result.get("module_stderr") or result.get("stdout") or "").strip()
    if said and said not in message and (not message or "rc" in result):
        tail = "\n".join(said.splitlines()[-5:])
        message = f"{message}\n{tail}" if message else tail
    if not message and isinstance(result.get("results"), list):
        failed = [item for item in result["results"] if isinstance(item, Mapping) and item.get("failed")]
        message = one_message(failed[0]) if failed else ""
    return message or "it gave no reason"


def table(rows: Sequence[Sequence[str]], head: Sequence[str], widest: int = 60) -> list[str]:
    """Return rows as aligned lines below their head; a cell longer than ``widest`` characters is cut."""
    cells = [[_cut(cell, widest) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def printable(text: object) -> str:
    """Return text on one line without control characters: a model's answer must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(str(text).split()))


def _cut(text: str, widest: int) -> str:
    text = printable(text)
    return text if len(text) <= widest else text[: widest - 1] + "…"
