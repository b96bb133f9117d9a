"""How a run reads on a terminal: pure text, so that it is tested without Ansible."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .quantities import format_value

SHOWN_HOSTS = 4
"""How many hosts a line names before it says how many more there are."""

LOG_WIDTH = 120
"""Columns of a table where no terminal says how wide it is, as in a log."""

_GAP = "  "
_SHORT_CELL, _NARROWEST_CELL = 12, 6  # characters: what every column keeps, and on the narrowest terminal
# Words that stand alone in a sentence and hardly ever in a command.
_PROSE = re.compile(r"(^|\s)(a|an|and|in|it|its|of|or|that|the|then|this|to|with|your)(\s|$)", re.IGNORECASE)


def screen_width() -> int:
    """Return how many columns a table may take: those of the terminal (COLUMNS counts), or of a log."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else LOG_WIDTH


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
    bound = bound_text(check)
    word = "" if bound == RECORDED else "required: "
    return printable(f"{what}: {check['measured']}" + (f"; {word}{bound}" if bound else ""))


RECORDED = "recorded"
"""What stands in place of a bound where a figure is kept and not judged."""


def bound_text(check: Mapping[str, Any]) -> str:
    """Return what a check requires, where that tells more than what was measured."""
    if (check.get("rule") or {}).get("kind") == "record" and check.get("measured"):
        return RECORDED
    required = str(check.get("required") or "")
    return "" if required == check.get("measured") else required


def is_command(text: str) -> bool:
    """Return whether a next step can be run as it stands, or is a sentence for a person."""
    return bool(text) and (not text[0].isupper() or "=" in text.split(maxsplit=1)[0]) and not _PROSE.search(text)


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


def merge_scopes(checks: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (status, line) for one host's checks of a gate: those that passed and have a title in common are one line.

    A large machine has a hundred links; a check that did not pass is left out, for the caller shows it in full.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for check in checks:
        if check.get("status") in ("OK", "SKIPPED"):
            groups.setdefault((str(check["status"]), str(check.get("title") or check.get("name"))), []).append(check)
    lines = []
    for (status, title), members in groups.items():
        if len(members) == 1:
            lines.append((status, check_line(members[0])))
            continue
        detail = str(members[0].get("reason") or "") if status == "SKIPPED" else _range(members)
        alike = len({str(check.get("reason") or "") for check in members}) == 1
        detail = f"for example {detail}" if status == "SKIPPED" and not alike else detail
        lines.append((status, printable(f"{title}: {len(members)} checks" + (f", {detail}" if detail else ""))))
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


def table(
    rows: Sequence[Sequence[str]], head: Sequence[str], width: int = LOG_WIDTH, kept: Mapping[str, int] | None = None
) -> list[str]:
    """Return rows as aligned lines below their head, none longer than ``width``.

    A cell that is too long for that is cut after a word; ``kept`` says for a column how many characters are left whole
    as long as others can give way. The last cell of a row that says something may take what is left of the line.
    """
    cells = [[printable(cell) for cell in row] for row in (head, *rows)]
    lasts = [max((column for column, cell in enumerate(row) if cell), default=0) for row in cells]
    # What runs on to the end of the line asks for no wider column.
    final = len(head) - 1
    lengths = [
        [len(row[column]) for row, last in zip(cells, lasts) if column < last or column == final]
        for column in range(len(head))
    ]
    widths = [max(len(head[column]), *lengths[column], 0) for column in range(len(head))]
    floors = [(kept or {}).get(name, _SHORT_CELL) for name in head]
    _shrink(widths, lengths, floors, width - len(_GAP) * final)
    lines = []
    for row, last in zip(cells, lasts):
        parts = [_cut(cell, size).ljust(size) for cell, size in zip(row[:last], widths)]
        used = sum(len(part) + len(_GAP) for part in parts)
        lines.append(_GAP.join([*parts, _cut(row[last], max(_NARROWEST_CELL, width - used))]).rstrip())
    return lines


def _shrink(widths: list[int], lengths: Sequence[Sequence[int]], floors: Sequence[int], room: int) -> None:
    """Narrow columns until they fit, each time that whose next cut shortens the fewest cells; of several, the widest."""
    for least in (floors, [_NARROWEST_CELL] * len(widths)):
        while sum(widths) > room:
            columns = [column for column, width in enumerate(widths) if width > least[column]]
            if not columns:
                break
            cut = min(columns, key=lambda i: (sum(length >= widths[i] for length in lengths[i]), -widths[i]))
            widths[cut] -= 1


def wrapped(text: object, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return text in full, broken between words only; ``first`` and ``rest`` stand before its first and other lines."""
    lines: list[str] = []
    for line in str(text).splitlines() or [""]:
        lines += textwrap.wrap(
            printable(line),
            width,
            initial_indent=rest if lines else first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def printable(text: object) -> str:
    """Return text on one line without control characters: a model's answer must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(str(text).split()))


def _cut(text: str, widest: int) -> str:
    """Cut text after the last word that fits; a single long word, such as an address, within it."""
    if len(text) <= widest:
        return text
    kept = text[: widest - 1]
    # A cut that would lose more than half of the cell goes through the word instead.
    if text[widest - 1] != " " and (space := kept.rfind(" ")) >= widest / 2:
        kept = kept[:space]
    return kept.rstrip(" ,;:(") + "…"
