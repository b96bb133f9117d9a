"""What a gate rule may say, and whether it says it: a malformed rule is refused before anything is touched."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

KINDS: Mapping[str, frozenset[str]] = {
    "fraction_of_limit": frozenset(
        {"warn", "fail", "when_unlimited", "believable", "floors", "class_by", "without_floor"}
    ),
    "minimum_by_class": frozenset({"floors", "class_by", "without_floor"}),
    "fleet_median": frozenset(
        {"of", "better", "warn", "fail", "warn_deviations", "fail_deviations", "minimum_hosts", "earlier_days"}
    ),
    "minimum": frozenset({"warn", "fail"}),
    "maximum": frozenset({"warn", "fail"}),
    "growth": frozenset({"fail"}),
    "equals": frozenset({"expected"}),
    "version_at_least": frozenset({"expected"}),
    "record": frozenset(),
}
"""Each kind of rule with the options that only it has."""

LINK_CLASS = "link_class"
"""The field of a measurement, or of its conditions, by which floors are told apart unless a rule says another."""

DEFAULT_MINIMUM_HOSTS = 5
"""How many other hosts a host is compared with at least: of fewer, one that is off moves the median."""
DEFAULT_EARLIER_DAYS = 30
"""How old the evidence of an earlier run may be that stands in for hosts of this one."""

COMMON_OPTIONS = frozenset({"kind", "unit", "severity", "repeat", "title", "cause", "next_command"})
_TEXTS = ("unit", "title", "cause", "next_command")
_BOUNDED = frozenset({"fraction_of_limit", "minimum", "maximum", "growth"})
_FEWEST_HOSTS = 2  # a median of one is that one


def validate_rules(rules: Any) -> list[str]:
    """Return a sentence for each thing that is wrong with a mapping of rules."""
    if not isinstance(rules, Mapping):
        return [f"gates_rules: a mapping of measurement names to rules was expected, {type(rules).__name__} was found"]
    problems = []
    for name, rule in rules.items():
        found = validate_rule(str(name), rule)
        # An amendment of a rule that is not there: its name is misspelt rather than its kind forgotten.
        unnamed = isinstance(rule, Mapping) and "kind" not in rule
        near = get_close_matches(str(name), [str(key) for key in rules if key != name], 1) if unnamed else []
        problems += [f"{problem}; did you mean the rule {near[0]}?" if near else problem for problem in found]
    for name, rule in rules.items():
        if not isinstance(rule, Mapping) or rule.get("kind") != "fleet_median" or not isinstance(rule.get("of"), str):
            continue
        of = rules.get(rule["of"])
        if rule["of"] in rules and not isinstance(of, Mapping):
            continue  # its own malformed rule is told above
        if not isinstance(of, Mapping) or of.get("kind") == "fleet_median":
            near = get_close_matches(rule["of"], [str(key) for key in rules if key != name], 1)
            hint = f": did you mean {near[0]}?" if near else ""
            problems.append(f"gate rule {name}: no measurement that a rule judges is called {rule['of']}{hint}")
    return problems


def validate_rule(name: str, rule: Any) -> list[str]:
    """Return a sentence for each thing that is wrong with one rule; an empty list when it is sound."""
    where = f"gate rule {name}"
    if not isinstance(rule, Mapping):
        return [f"{where}: a mapping was expected, '{rule}' was found"]
    kind = rule.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        found = "no kind" if kind is None else f"kind '{kind}'"
        return [f"{where}: {found} was found, one of {', '.join(sorted(KINDS))} was expected"]
    allowed = COMMON_OPTIONS | KINDS[kind]
    problems = []
    for option in rule:
        if option not in allowed:
            near = get_close_matches(str(option), allowed, 1)
            hint = f"did you mean {near[0]}?" if near else f"{kind} takes {', '.join(sorted(allowed))}"
            problems.append(f"{where}: option '{option}' is unknown: {hint}")
    problems += [
        f"{where}: {option} must be a text, '{rule[option]}' was found"
        for option in _TEXTS
        if option in rule and not isinstance(rule[option], str)
    ]
    if rule.get("severity", "critical") not in ("critical", "warn"):
        problems.append(f"{where}: severity must be critical or warn, '{rule['severity']}' was found")
    if kind in _BOUNDED:
        problems += _bounds(where, kind, rule)
    if kind == "minimum_by_class" or "floors" in rule:
        problems += _floors(where, kind, rule)
    if kind == "fleet_median":
        problems += _fleet(where, rule)
    if "repeat" in rule:
        problems += _repeat(where, rule["repeat"])
    return problems


def _bounds(where: str, kind: str, rule: Mapping[str, Any]) -> list[str]:
    if "fail" not in rule:
        return [f"{where}: the option fail is missing; it says from where on the check is CRITICAL"]
    problems = [
        problem
        for option in ("warn", "fail", "believable")
        if option in rule and (problem := _no_number(f"{where}: {option}", rule[option]))
    ]
    if problems:
        return problems
    fail, warn = rule["fail"], rule.get("warn", rule["fail"])
    if kind == "fraction_of_limit":
        problems += [
            f"{where}: {option} is a fraction of the limit and must lie above 0 and up to 1, {rule[option]} was found"
            for option in ("warn", "fail")
            if option in rule and not 0 < rule[option] <= 1
        ]
        if rule.get("believable", 1) < 1:
            problems.append(f"{where}: believable must be 1 or more, {rule['believable']} was found")
        if rule.get("when_unlimited", "unknown") not in ("unknown", "skip"):
            problems.append(f"{where}: when_unlimited must be unknown or skip, '{rule['when_unlimited']}' was found")
    if kind == "maximum" and warn > fail:
        problems.append(f"{where}: warn {warn} lies beyond fail {fail}; below a maximum, warn must not exceed fail")
    if kind != "maximum" and warn < fail:
        problems.append(f"{where}: warn {warn} lies beyond fail {fail}; above a minimum, warn must not be under fail")
    return problems


def _floors(where: str, kind: str, rule: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with floors by class: ``{"32 GT/s x16": {warn: .., fail: ..}}``."""
    floors = rule.get("floors")
    if not isinstance(floors, Mapping) or not floors:
        found = "nothing" if floors is None else f"'{floors}'"
        return [f"{where}: floors must map a class to {{warn: .., fail: ..}}, {found} was found"]
    problems, seen = [], set[str]()
    for key, floor in floors.items():
        name, at = class_name(key), f"{where}: floors, {key}"
        if name in seen:
            problems.append(f"{at}: the class is there twice")
        seen.add(name)
        if floor is None:  # a site takes one away
            continue
        if not isinstance(floor, Mapping) or not {"fail"} <= set(floor) <= {"fail", "warn"}:
            problems.append(f"{at}: {{warn: .., fail: ..}} was expected, '{floor}' was found")
            continue
        problems += _bounds(at, "minimum", floor)
    policies = ("unknown", "skip", "fraction") if kind == "fraction_of_limit" else ("unknown", "skip")
    if rule.get("without_floor", policies[0]) not in policies:
        problems.append(f"{where}: without_floor must be {' or '.join(policies)}, '{rule['without_floor']}' was found")
    if not isinstance(rule.get("class_by", LINK_CLASS), str):
        problems.append(f"{where}: class_by must name a field of the measurement, '{rule['class_by']}' was found")
    return problems


def _fleet(where: str, rule: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a comparison within the fleet."""
    if not isinstance(rule.get("of"), str) or not rule["of"]:
        return [f"{where}: the option of is missing; it names the measurement whose figures are compared"]
    if rule.get("better") not in ("higher", "lower"):
        found = "nothing" if "better" not in rule else f"'{rule['better']}'"
        return [f"{where}: better must be higher or lower, {found} was found"]
    if "fail" not in rule:
        return [f"{where}: the option fail is missing; it says at which fraction of the fleet's median CRITICAL begins"]
    numbers = ("warn", "fail", "warn_deviations", "fail_deviations", "earlier_days")
    problems = [
        problem for option in numbers if option in rule and (problem := _no_number(f"{where}: {option}", rule[option]))
    ]
    if "minimum_hosts" in rule and not (_is_count(rule["minimum_hosts"]) and rule["minimum_hosts"] >= _FEWEST_HOSTS):
        problems.append(
            f"{where}: minimum_hosts must be a whole number of {_FEWEST_HOSTS} or more, '{rule['minimum_hosts']}' was found"
        )
    if "repeat" in rule:
        problems.append(f"{where}: a comparison within the fleet takes no repeat; the measurement's own rule does")
    if problems:
        return problems
    higher, fail = rule["better"] == "higher", rule["fail"]
    warn = rule.get("warn", fail)
    if not (0 < fail <= 1 if higher else fail >= 1):
        span = "above 0 and up to 1" if higher else "1 or more"
        problems.append(f"{where}: {rule['better']} is better, so fail must be {span} of the median, {fail} was found")
    elif warn < fail if higher else warn > fail:
        problems.append(f"{where}: warn {warn} lies beyond fail {fail}")
    deviations, early = rule.get("fail_deviations"), rule.get("warn_deviations", 0)
    if min(deviations or 0, early, rule.get("earlier_days", 0)) < 0:
        problems.append(f"{where}: warn_deviations, fail_deviations and earlier_days must not be below zero")
    elif early and deviations is None:
        problems.append(f"{where}: warn_deviations needs fail_deviations beside it")
    elif deviations is not None and early > deviations:
        problems.append(f"{where}: warn_deviations {early} lies beyond fail_deviations {deviations}")
    return problems


def class_name(name: Any) -> str:
    """Return a class in one form: ``32.0 GT/s  x16`` and ``32 gt/s x16`` are the same link."""
    return re.sub(r"(\d+)\.0+(?=\D|$)", r"\1", " ".join(str(name).split())).replace("gt/s", "GT/s")


def _no_number(what: str, value: Any) -> str:
    if is_number(value):
        return ""
    hint = ""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE]\d+", value):
        hint = ": YAML takes a figure for a text unless it has a point and a sign, as in 1.5e+9"
    return f"{what} must be a finite number, '{value}' was found{hint}"


def _repeat(where: str, repeat: Any) -> list[str]:
    if not isinstance(repeat, Mapping) or set(repeat) != {"of", "pass"}:
        return [f"{where}: repeat must be written as {{of: 5, pass: 3}}, '{repeat}' was found"]
    wanted, needed = repeat["of"], repeat["pass"]
    if not (_is_count(wanted) and _is_count(needed)) or needed > wanted:
        return [f"{where}: of repeat, pass must lie between 1 and of; pass {needed} of {wanted} was found"]
    return []


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number (a boolean is none)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what a float holds
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
