"""The fleet's figures from the evidence on the controller: every host of this run, and of former ones where it has few.

Each file is read once for the whole fleet, whatever its number of hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from .evidence import read
from .fleet import Figure, compared_names, figures, sound_rules, summarise
from .gate_rules import DEFAULT_EARLIER_DAYS, DEFAULT_MINIMUM_HOSTS

_RUN_ID = "%Y%m%dT%H%M%SZ"
# What one search for hosts of former runs may cost: about 10 s of reading.
MOST_EARLIER_FILES = 5000


@dataclass(frozen=True)
class Fleet:
    """What a pass over the evidence found."""

    groups: dict[str, dict[str, Any]]
    """Summaries of comparable figures; see `fleet.summarise`."""
    hosts: int
    """Hosts of this run whose evidence was read."""
    earlier_hosts: int
    """Hosts that figures of former runs stand in for."""
    files: int
    """Files that were read."""


def survey_fleet(directory: Path, rules: Mapping[str, Any], now: datetime | None = None) -> Fleet:
    """Read a run's folder, and as far as needed the newest former runs beside it, and summarise the fleet.

    Former runs stand in where a group has fewer other hosts than its rule needs: each host's newest figure that is no
    older than the rule's ``earlier_days``. Files that cannot be read are left out; the report names them.
    """
    wanted, names = sound_rules(rules), compared_names(rules)
    if not names:
        return Fleet({}, 0, 0, 0)
    paths = sorted(directory.glob("*.jsonl"))
    current = [figure for path in paths for figure in figures(read(path, names).records, names)]
    missing = _missing(current, wanted.values())
    now = now or datetime.now(timezone.utc)
    oldest = {
        name: now - timedelta(days=max(_days(rule) for rule in wanted.values() if rule["of"] == name)) for name in names
    }
    earlier, read_files = _earlier(directory, names, missing, {(f.host, f.key) for f in current}, oldest)
    return Fleet(
        summarise(current, earlier),
        len(paths),
        len({figure.host for figure in earlier}),
        len(paths) + read_files,
    )


def _days(rule: Mapping[str, Any]) -> float:
    return min(float(rule.get("earlier_days", DEFAULT_EARLIER_DAYS)), 36_500.0)


def _missing(current: Iterable[Figure], rules: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many hosts each group of this run lacks until it can be judged."""
    needed: dict[str, int] = {}
    for rule in rules:
        if _days(rule) > 0:
            name = str(rule["of"])
            needed[name] = max(needed.get(name, 0), int(rule.get("minimum_hosts", DEFAULT_MINIMUM_HOSTS)) + 1)
    counts: dict[str, int] = {}
    name_of: dict[str, str] = {}
    for figure in current:
        counts[figure.key] = counts.get(figure.key, 0) + 1
        name_of[figure.key] = str(figure.record["name"])
    lacking = {key: needed.get(name_of[key], 0) - count for key, count in counts.items()}
    return {key: number for key, number in lacking.items() if number > 0}


def _earlier(
    directory: Path,
    names: list[str],
    missing: dict[str, int],
    known: set[tuple[str, str]],
    oldest: Mapping[str, datetime],
) -> tuple[list[Figure], int]:
    """Return figures of former runs, newest run first, until no group lacks a host, and how many files were read."""
    found: list[Figure] = []
    files = 0
    for run in _former_runs(directory, min(oldest.values())):
        if not missing or files >= MOST_EARLIER_FILES:
            break
        for path in sorted(run.glob("*.jsonl")):
            files += 1
            for figure in figures(read(path, names).records, names):
                time = _time(figure.record.get("time"))
                fresh = time is not None and time >= oldest[str(figure.record["name"])]
                if fresh and figure.key in missing and (figure.host, figure.key) not in known:
                    known.add((figure.host, figure.key))
                    found.append(figure)
                    missing[figure.key] -= 1
        # A run counts as a whole, so that the order of its hosts decides nothing.
        missing = {key: number for key, number in missing.items() if number > 0}
    return found, files


def _former_runs(directory: Path, oldest: datetime) -> list[Path]:
    """Return the folders of other runs, the newest first; links, such as that to the latest run, are none."""
    dated = []
    try:
        siblings = [path for path in directory.parent.iterdir() if path != directory]
    except OSError:
        return []
    for path in siblings:
        try:
            if path.is_symlink() or not path.is_dir() or path.samefile(directory):
                continue
            began = _run_time(path)
        except OSError:
            continue
        # A run may take hours: a day's grace, the records' own times decide.
        if began >= oldest - timedelta(days=1):
            dated.append((began, path.name, path))
    return [path for _began, _name, path in sorted(dated, reverse=True)]


def _run_time(path: Path) -> datetime:
    try:
        return datetime.strptime(path.name, _RUN_ID).replace(tzinfo=timezone.utc)
    except ValueError:
        return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)


def _time(text: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
