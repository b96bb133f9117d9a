"""A host beside its like: median and spread of the fleet's figures, and how far one host is from them.

Pure functions of evidence records. A host is compared with the others of its hardware class and never with itself, so
that what it measured cannot move what it is held against. One pass makes a small summary of each group of comparable
figures, from which the median and spread of the others follow for any host without its having to read their figures.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .gate_kinds import CRITICAL, OK, SKIPPED, UNKNOWN, WARN, Verdict, numeric_problem, with_severity
from .gate_rules import DEFAULT_MINIMUM_HOSTS, LINK_CLASS, is_number, validate_rule
from .gates import Check, title_of
from .quantities import format_number, format_percent, format_value

# The median absolute deviation of a normal distribution times this is its standard deviation.
MAD_TO_SIGMA = 1.4826
_TOO_FEW = "needed_hosts"  # in the conditions of a check that is skipped because too few hosts are comparable
_MOST_NAMES = 1500  # characters of host names that a record keeps
_NUMBERED = re.compile(r"^(.*?)(\d+)(\D*)$", re.DOTALL)


@dataclass(frozen=True)
class Figure:
    """What one host measured, as its evidence has it."""

    host: str
    key: str
    value: float
    record: Mapping[str, Any] = field(repr=False, compare=False)


def group_key(record: Mapping[str, Any]) -> str:
    """Return what two records must share to be comparable, as a JSON text.

    Measurement, scope, stage, unit, limit and where it comes from, class of the link, and the hardware of the host.
    """
    conditions = record.get("conditions")
    link = conditions.get(LINK_CLASS) if isinstance(conditions, Mapping) else None
    limit = record.get("limit")
    parts = [str(record.get(name) or "") for name in ("name", "scope", "stage", "unit", "limit_source", "hardware")]
    parts += [f"{limit:.6g}" if is_number(limit) else "", str(link or "")]
    return json.dumps(parts, ensure_ascii=False)


def hardware_class(node: Any, pcie: Any) -> str:
    """Return what makes two hosts of one kind: processors, GPUs by their PCI ids, and whether they are virtual.

    From the survey's ``survey_node`` and ``survey_pcie``; empty where neither says anything. The number of GPUs is
    left out: a host that lost one is still compared with its like.
    """
    node, pcie = (thing if isinstance(thing, Mapping) else {} for thing in (node, pcie))
    cpu = node.get("cpu")
    parts = []
    if isinstance(cpu, Mapping) and cpu.get("model"):
        parts.append(f"{cpu.get('sockets') or '?'} x {' '.join(str(cpu['model']).split())}")
    functions = pcie.get("functions")
    gpus = {
        f"{function.get('vendor_id')}:{function.get('device_id')}"
        for function in (functions if isinstance(functions, (list, tuple)) else ())
        if isinstance(function, Mapping) and function.get("kind") == "gpu"
    }
    if gpus:
        parts.append(f"GPU {', '.join(sorted(gpus))}")
    if parts and node.get("virtualization") not in (None, "", "none"):
        parts.append(str(node["virtualization"]))
    return "; ".join(parts)


def figures(records: Iterable[Mapping[str, Any]], names: Iterable[str]) -> list[Figure]:
    """Return the newest figure of each measurement and scope in one host's records, in the order of the records.

    What is no number or could not be measured is no figure, and takes an older one away.
    """
    wanted = frozenset(names)
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:
        if record.get("kind") == "check" and record.get("name") in wanted:
            newest[str(record["name"]), str(record.get("scope"))] = record
    return [
        Figure(str(record.get("host")), group_key(record), float(record["value"]), record)
        for record in newest.values()
        if not why_no_figure(record)
    ]


def why_no_figure(record: Mapping[str, Any]) -> str:
    """Return why a record holds nothing to compare, or an empty text.

    A figure that was SKIPPED for want of a limit or of a floor is one all the same: the fleet may be all there is to hold
    it against. One that is UNKNOWN is not believed.
    """
    status, problem = record.get("status"), numeric_problem(record.get("value"), record)
    if status == UNKNOWN or (status == SKIPPED and problem):
        return f"this host's own figure is {status}: {record.get('reason', '')}"
    return problem


def summarise(members: Iterable[Figure], earlier: Iterable[Figure] = ()) -> dict[str, dict[str, Any]]:
    """Return a summary of each group of comparable figures by its key; ``earlier`` are those of former runs.

    ``count``, ``middle`` and, for each median that the others of a host may have, ``deviations``: the two or three
    numbers in the middle of the sorted figures and of their distances from that median. See `others`.
    """
    groups: dict[str, dict[str, Figure]] = {}
    old: dict[str, int] = {}
    for figure in members:
        groups.setdefault(figure.key, {})[figure.host] = figure
    for figure in earlier:
        known = groups.setdefault(figure.key, {})
        if figure.host not in known:
            known[figure.host] = figure
            old[figure.key] = old.get(figure.key, 0) + 1
    return {key: _summary(group, old.get(key, 0)) for key, group in groups.items()}


def _summary(group: Mapping[str, Figure], earlier: int) -> dict[str, Any]:
    ordered = sorted(figure.value for figure in group.values())
    middle = _middle(ordered)
    centres = sorted({_without(middle, value) for value in middle}) if len(ordered) > 1 else []
    deviations = [[centre, _middle(sorted(abs(value - centre) for value in ordered))] for centre in centres]
    return {
        "count": len(ordered),
        "earlier": earlier,
        "hosts": fold_names(group),
        "middle": middle,
        "deviations": deviations,
        "lowest": ordered[0],
        "highest": ordered[-1],
    }


def _middle(ordered: Sequence[float]) -> list[float]:
    """Return the two middle ones of an even number of figures, the three of an odd one."""
    half = len(ordered) // 2
    return list(ordered[max(half - 1, 0) : half + 1 + len(ordered) % 2])


def _without(middle: Sequence[float], value: float) -> float:
    """Return the median of sorted figures without one of them, from what `_middle` keeps of all.

    Without an element above position k, the k-th of the rest is the k-th of all; else it is the one after.
    """
    if len(middle) == 2:
        low, high = middle
        return low if value > low else high
    low, mid, high = middle
    return ((low if value > low else mid) + (mid if value > mid else high)) / 2


def others(summary: Mapping[str, Any], value: float) -> tuple[int, float, float]:
    """Return number, median and scaled median absolute deviation of a group without one figure that is in it.

    There must be at least two figures in the group.
    """
    centre = _without(summary["middle"], value)
    spread = next(_without(middle, abs(value - known)) for known, middle in summary["deviations"] if known == centre)
    return summary["count"] - 1, centre, MAD_TO_SIGMA * spread


def sound_rules(rules: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the rules that compare hosts with each other, without those that are malformed."""
    return {
        str(name): rule for name, rule in rules.items() if is_fleet_rule(rule) and not validate_rule(str(name), rule)
    }


def compared_names(rules: Mapping[str, Any]) -> list[str]:
    """Return the names of the measurements that sound rules compare."""
    return sorted({str(rule["of"]) for rule in sound_rules(rules).values()})


def judge_host(
    records: Sequence[Mapping[str, Any]], groups: Mapping[str, Any], rules: Mapping[str, Any]
) -> list[Check]:
    """Judge one host's newest figures by the rules of the kind ``fleet_median``.

    ``groups`` are those of `summarise`. Where there is nothing to compare, that is one SKIPPED check; a malformed rule is
    UNKNOWN.
    """
    sound = sound_rules(rules)
    checks = [
        Check(name, "host", UNKNOWN, f"its rule is malformed: {validate_rule(name, rule)[0]}", title_of(name, {}))
        for name, rule in rules.items()
        if is_fleet_rule(rule) and name not in sound
    ]
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:
        if record.get("kind") == "check":
            newest[str(record.get("name")), str(record.get("scope"))] = record
    # What does not apply here was not measured, and there is nothing to say of it.
    newest = {
        key: record for key, record in newest.items() if not (record.get("status") == SKIPPED and why_no_figure(record))
    }
    checks += [
        _judge(record, groups, name, rule)
        for name, rule in sound.items()
        for (of, _scope), record in newest.items()
        if of == rule["of"]
    ]
    if len(checks) > 1 and all(check.status == SKIPPED and _TOO_FEW in check.conditions for check in checks):
        return [_too_few(checks)]
    if checks:
        return checks
    names = ", ".join(compared_names(rules))
    reason = f"none of what the fleet's rules compare was measured here: {names}" if names else "no rule compares hosts"
    return [Check(name="fleet", scope="host", status=SKIPPED, reason=reason, title="beside the fleet")]


def _too_few(checks: Sequence[Check]) -> Check:
    """Return one check for many that are skipped because the fleet is small, as it is when a machine is looked at alone."""
    most = max(checks, key=lambda check: check.conditions["comparable_hosts"])
    told = sorted({check.title for check in checks})
    return Check(
        name="fleet",
        scope="host",
        status=SKIPPED,
        reason=most.reason,
        title="beside the fleet",
        conditions={**most.conditions, "checks": told},
    )


def is_fleet_rule(rule: Any) -> bool:
    """Return whether a rule compares hosts with each other."""
    return isinstance(rule, Mapping) and rule.get("kind") == "fleet_median"


def _judge(
    record: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]], name: str, rule: Mapping[str, Any]
) -> Check:
    unit = str(record.get("unit") or "")
    facts: dict[str, Any] = {}
    if problem := why_no_figure(record):
        verdict = Verdict(SKIPPED, problem)
    elif "unit" in rule and unit != rule["unit"]:
        verdict = Verdict(UNKNOWN, f"the rule is in {rule['unit']}, the measurement in {unit or 'no unit'}")
    else:
        group = groups.get(group_key(record))
        verdict, facts = _compare(float(record["value"]), unit, group if isinstance(group, Mapping) else None, rule)
    return Check(
        name=name,
        scope=str(record.get("scope")),
        status=verdict.status,
        reason=verdict.reason,
        title=title_of(name, rule),
        measured=verdict.measured,
        required=verdict.required,
        value=record.get("value"),
        unit=unit,
        statistic=str(record.get("statistic") or ""),
        threshold=verdict.threshold,
        spread=verdict.spread,
        conditions=facts,
        rule=dict(rule),
        cause=str(rule.get("cause") or ""),
        next_command=str(rule.get("next_command") or ""),
    )


def _compare(
    value: float, unit: str, group: Mapping[str, Any] | None, rule: Mapping[str, Any]
) -> tuple[Verdict, dict[str, Any]]:
    needed = int(rule.get("minimum_hosts", DEFAULT_MINIMUM_HOSTS))
    number = max(int(group["count"]) - 1, 0) if group else 0
    if group is None or number < needed:
        hosts = "1 comparable host" if number == 1 else f"{number} comparable hosts"
        facts = {"comparable_hosts": number, _TOO_FEW: needed, "hosts": group["hosts"] if group else ""}
        return Verdict(SKIPPED, f"{hosts}, {needed} are needed"), facts
    number, median, spread = others(group, value)
    facts = {
        "median": median,
        "scaled_median_absolute_deviation": spread,
        "comparable_hosts": number,
        "of_earlier_runs": group["earlier"],
        "hosts": group["hosts"],
        "lowest": group["lowest"],
        "highest": group["highest"],
    }
    if median <= 0 or not math.isfinite(median + spread):
        return Verdict(UNKNOWN, f"the median of {number} comparable hosts is {format_value(median, unit)}"), facts
    fraction, away = value / median, abs(value - median) / spread if spread > 0 else None
    facts.update(fraction_of_median=fraction, scaled_deviations=away)
    return with_severity(_verdict(value, unit, number, (median, spread), rule), rule), facts


def _verdict(value: float, unit: str, number: int, like: tuple[float, float], rule: Mapping[str, Any]) -> Verdict:
    """Judge by fraction and deviations: a miss is one of both, so that neither noise nor a close fleet raises it."""
    median, spread = like
    higher = rule["better"] == "higher"
    fail = _bound(rule, "fail", median, spread)
    # Without a bound of its own a WARN begins where CRITICAL does.
    warn = _bound({"warn": rule["fail"], **rule}, "warn", median, spread)
    word = "at least" if higher else "at most"
    figure = f"{format_value(value, unit)} is {format_percent(value / median)} of the fleet's median"
    figure += f" {format_value(median, unit)} ({number} comparable hosts, spread {format_percent(spread / median)}"
    if spread > 0:
        figure += f", {format_number(abs(value - median) / spread)} scaled deviations away"
    required = f"{word} {format_value(fail, unit)}, {format_percent(fail / median)} of the fleet's median"
    facts: dict[str, Any] = {
        "required": required,
        "measured": f"{format_value(value, unit)}, {format_percent(value / median)} of the fleet's median",
        "threshold": fail,
        "spread": spread / median,
    }
    if value < fail if higher else value > fail:
        return Verdict(CRITICAL, f"{figure}), {word} {format_percent(fail / median)} is required", **facts)
    if value < warn if higher else value > warn:
        return Verdict(WARN, f"{figure}), {word} {format_percent(warn / median)} is wanted", **facts)
    if higher and warn <= 0:
        # No figure lies below such a bound: an OK would be that of a check which cannot fail.
        facts.update(required="", threshold=None)
        return Verdict(SKIPPED, f"{figure}): the hosts differ too much for any to count as slow", **facts)
    return Verdict(OK, f"{figure})", **facts)


def _bound(rule: Mapping[str, Any], level: str, median: float, spread: float) -> float:
    """Return from where on a figure is a miss: the farther of the fraction and the deviations that are asked for."""
    fraction, away = median * float(rule[level]), float(rule.get(f"{level}_deviations", 0)) * spread
    if rule["better"] == "higher":
        return max(min(fraction, median - away), 0.0) if f"{level}_deviations" in rule else fraction
    return max(fraction, median + away)


def fold_names(names: Iterable[str]) -> str:
    """Return names of hosts in few words: ``node[1-40], node42, storage1``."""
    runs: dict[tuple[str, str, int], list[int]] = {}
    plain = []
    for name in names:
        match = _NUMBERED.match(name.partition(".")[0] if not name[:1].isdigit() else name)
        if not match or len(match[2]) > 15:
            plain.append(name)
            continue
        # A name with leading zeros has numbers of one width; 007 and 7 are two hosts.
        width = len(match[2]) if match[2].startswith("0") else 0
        rest = match[3] + (name[match.end() :] if match.end() < len(name) else "")
        runs.setdefault((match[1], rest, width), []).append(int(match[2]))
    folded = []
    for (before, after, width), numbers in runs.items():
        for first, last in _ranges(sorted(numbers)):
            low, high = f"{first:0{width}d}", f"{last:0{width}d}"
            folded.append(f"{before}{low}{after}" if first == last else f"{before}[{low}-{high}]{after}")
    told = sorted([*plain, *folded])
    text = ", ".join(told)
    if len(text) <= _MOST_NAMES:
        return text
    kept = text[:_MOST_NAMES].rpartition(", ")[0]
    return f"{kept}, and {len(told) - kept.count(', ') - 1} more"


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
