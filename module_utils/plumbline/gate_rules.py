"""What a gate rule may say, and whether it says it: a malformed rule is refused before anything is touched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

KINDS: Mapping[str, frozenset[str]] = {
    "fraction_of_limit": frozenset({"warn", "fail", "when_unlimited", "believable"}),
    "minimum": frozenset({"warn", "fail"}),
    "maximum": frozenset({"warn", "fail"}),
    "equals": frozenset({"expected"}),
    "version_at_least": frozenset({"expected"}),
    "record": frozenset(),
}
"""Each kind of rule with the options that only it has."""

COMMON_OPTIONS = frozenset({"kind", "unit", "severity", "repeat", "title", "cause", "next_command"})
_TEXTS = ("unit", "title", "cause", "next_command")
_BOUNDED = frozenset({"fraction_of_limit", "minimum", "maximum"})


def validate_rules(rules: Any) -> list[str]:
    """Return a sentence for each thing that is wrong with a mapping of rules."""
    if not isinstance(rules, Mapping):
        return [f"gates_rules: a mapping of measurement names to rules was expected, {type(rules).__name__} was found"]
    return [problem for name, rule in rules.items() for problem in validate_rule(str(name), rule)]


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
    if "repeat" in rule:
        problems += _repeat(where, rule["repeat"])
    return problems


def _bounds(where: str, kind: str, rule: Mapping[str, Any]) -> list[str]:
    if "fail" not in rule:
        return [f"{where}: the option fail is missing; it says from where on the check is CRITICAL"]
    problems = [
        f"{where}: {option} must be a finite number, '{rule[option]}' was found"
        for option in ("warn", "fail", "believable")
        if option in rule and not is_number(rule[option])
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
