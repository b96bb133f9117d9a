"""One screen of what a machine is, what was measured and what is wrong with it: evidence in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .console import printable, wrapped
from .loose import count, mapping, mappings, texts, words
from .screen_checks import Wrong, figure, gigabytes, idle, not_measured, what_is_wrong
from .screen_hardware import Table, device_tables, facts, name_of, numa_table, shared

WIDEST, NARROWEST = 100, 80
"""Columns of the screen; a terminal between the two counts as it is."""

_MOST_WRONG = 8
_MOST_UNMEASURED = 8
_MOST_SHARED = 9
_LABEL = 11  # columns of a row's label with its gap
_GAP = "  "


@dataclass(frozen=True)
class Screen:
    """The parts of the screen, for a terminal, HTML and Markdown alike."""

    title: str
    facts: list[tuple[str, str]]
    tables: list[Table]
    shared: list[str]
    wrong: list[Wrong]
    unmeasured: list[tuple[str, str, str]]
    notes: list[str]


def screen(machine: Any, checks: Any, failures: Sequence[tuple[str, str]] = ()) -> Screen:
    """Return the screen of a machine from the content of its evidence record, its checks, and (task, message) of what failed."""
    machine, judged = mapping(machine), mappings(checks)
    numa = numa_table(machine, judged)
    wrong = [Wrong("FAILED", task, message) for task, message in failures]
    return Screen(
        title=name_of(machine) if machine else "nothing is known of the machine",
        facts=facts(machine, judged) if machine else [],
        tables=([numa] if numa else []) + device_tables(machine, judged, idle(judged)),
        shared=shared(machine),
        wrong=wrong + what_is_wrong(judged),
        unmeasured=not_measured(judged),
        notes=texts(machine.get("notes")),
    )


def lines(view: Screen, host: str, status: str = "", width: int = WIDEST) -> list[str]:
    """Return the screen as lines; only a command to copy may be longer than ``width``."""
    width = max(NARROWEST, min(width, WIDEST))
    text = wrapped(f"{host}: {view.title}" + (f"  [{status}]" if status else ""), width, "", "  ")
    for label, said in view.facts:
        text += wrapped(said, width, f"  {label:<{_LABEL}}", " " * (_LABEL + 2))
    for table in view.tables:
        text += _table(table, width)
    text += _in_columns(view.shared, "Shared", width)
    if view.wrong:
        text.append("What is wrong, worst first")
        for wrong in view.wrong[:_MOST_WRONG]:
            text += wrapped(f"{wrong.what}: {wrong.reason}", width, f"  {wrong.status:<9} ", " " * 12)
            text += wrapped(wrong.cause, width, "            cause: ", " " * 19) if wrong.cause else []
            text += [f"            next:  {printable(wrong.next_command)}"] if wrong.next_command else []
        if len(view.wrong) > _MOST_WRONG:
            text.append(f"  and {len(view.wrong) - _MOST_WRONG} more in the report")
    if view.unmeasured or view.notes:
        text.append("Not measured or not judged, and why")
        for what, reason, command in view.unmeasured[:_MOST_UNMEASURED]:
            text += wrapped(f"{what}: {reason}", width, "  ", "    ")
            text += [f"    next: {printable(command)}"] if command else []
        if len(view.unmeasured) > _MOST_UNMEASURED:
            text.append(f"  and {len(view.unmeasured) - _MOST_UNMEASURED} more in the report")
        for note in view.notes[:4]:
            text += wrapped(note, width, "  ", "    ")
    return text


def _in_columns(entries: Sequence[str], label: str, width: int) -> list[str]:
    """Lay entries out in as many columns as fit, in order from left to right."""
    entries = [printable(entry) for entry in entries]
    more = len(entries) - _MOST_SHARED
    if more > 0:
        entries = [*entries[:_MOST_SHARED], f"and {more} more"]
    size = max(map(len, entries), default=0)
    across = max(1, (width - _LABEL - 2 + len(_GAP)) // (size + len(_GAP)))
    text: list[str] = []
    for start in range(0, len(entries), across):
        row = _GAP.join(entry.ljust(size) for entry in entries[start : start + across]).rstrip()
        text += (
            wrapped(row, width, f"  {'' if start else label:<{_LABEL}}", " " * (_LABEL + 2))
            if across == 1
            else [f"  {'' if start else label:<{_LABEL}}{row}"]
        )
    return text


def one_line(machine: Any, checks: Iterable[Any] = ()) -> str:
    """Return the machine in one line, for a fleet."""
    machine, judged = mapping(machine), mappings(list(checks))
    cpu, memory = mapping(machine.get("cpu")), mapping(machine.get("memory"))
    parts = [name_of(machine), f"{count(cpu.get('sockets')) or '?'} x {words(cpu.get('model')) or 'CPU not known'}"]
    size = count(memory.get("installed_bytes")) or count(memory.get("visible_bytes"))
    parts.append(f"{size / 2**30:,.0f} GiB" if size else "memory not known")
    gpus: dict[str, int] = {}
    for device in mappings(machine.get("devices")):
        if device.get("kind") == "gpu":
            ids = ":".join(words(device.get(key)) or "?" for key in ("vendor_id", "device_id"))
            name = words(device.get("name")) or f"GPU {ids}"
            gpus[name] = gpus.get(name, 0) + 1
    parts += [f"{times} x {name}" for name, times in gpus.items()] or ["no GPU"]
    triad = gigabytes(figure(judged, "host_memory_bandwidth", "node"))
    return "; ".join([*parts, *([f"memory {triad} GB/s"] if triad else [])])


def _table(table: Table, width: int) -> list[str]:
    """Lay a table out; its last column is wrapped, all others are as wide as their widest cell."""
    cells = [[printable(cell) for cell in row] for row in (table.head, *table.rows)]
    sizes = [max(len(row[column]) for row in cells) for column in range(len(table.head))]
    indent = 2
    # The first column may give way: a long name breaks over lines rather than the table over the screen.
    spare = width - indent - sum(sizes) - len(_GAP) * (len(sizes) - 1)
    if spare < 0:
        last = len(sizes) - 1
        floor = max(12, len(cells[0][last]))
        taken = min(-spare, max(0, sizes[last] - floor))
        sizes[last] -= taken
        sizes[0] = max(12, sizes[0] - max(0, -spare - taken))
    text = wrapped(table.title, width, "  ", "    ") if table.title else []
    for row in cells:
        broken = [wrapped(cell, max(4, size)) or [""] for cell, size in zip(row, sizes)]
        for index in range(max(map(len, broken))):
            parts = []
            for column, (piece, size) in enumerate(zip(broken, sizes)):
                cell = piece[index] if index < len(piece) else ""
                parts.append(cell.rjust(size) if column in table.numbers else cell.ljust(size))
            text.append((" " * indent + _GAP.join(parts)).rstrip())
    return text
