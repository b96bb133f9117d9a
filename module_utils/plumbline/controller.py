"""What the plugins on the controller share; the thin edge between Ansible's values and plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gate_rules import validate_rules
from .slo import rules_of_slo, validate_slo
from .variable_types import looks_secret

_SHORTEST_SECRET = 4  # characters; a shorter one would blot out half the message


def plain(value: Any) -> Any:  # noqa: PLR0911 - one line a type reads best
    """Return a deep copy in plain Python types.

    ansible-core 2.19 hands out tagged strings and lazily templated containers, subclasses of the plain types that C
    code (JSON) reads past. Iterating resolves them; the copy carries no tags.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def effective_rules(rules: Any, overrides: Any, slo: Any, task_rules: Any) -> dict[str, Any]:
    """Return the rules that count: the SLO's, then ``gates_rules``, then a site's overrides, then the task's own.

    An override changes single options of a rule and keeps the others, and single classes of ``floors`` likewise. What
    is malformed is left as it is: the judge makes UNKNOWN of it, and ``preflight`` has refused it long before.
    """
    merged: dict[str, Any] = {}
    if isinstance(slo, Mapping) and not validate_slo(slo):
        merged.update(rules_of_slo(slo))
    if isinstance(rules, Mapping):
        merged.update(rules)
    for layer in (overrides, task_rules):
        if not isinstance(layer, Mapping):
            continue
        for name, rule in layer.items():
            base = merged.get(name)
            if isinstance(base, Mapping) and isinstance(rule, Mapping) and rule.get("kind") in (None, base.get("kind")):
                merged[name] = {**base, **rule}
                if isinstance(base.get("floors"), Mapping) and isinstance(rule.get("floors"), Mapping):
                    merged[name]["floors"] = {**base["floors"], **rule["floors"]}
            else:  # another kind of rule has other options: a replacement, not an amendment
                merged[name] = rule
    return merged


def gate_problems(rules: Any, overrides: Any, slo: Any) -> list[str]:
    """Return a sentence for everything that is wrong with the gates' variables of one host."""
    problems = validate_slo(slo) if slo is not None else []
    if not isinstance(overrides, Mapping):
        problems.append(f"gates_rules_overrides: a mapping was expected, {type(overrides).__name__} was found")
        overrides = {}
    if not isinstance(rules, Mapping):
        return problems + validate_rules(rules)
    if slo is not None and not problems:
        problems += [
            f"gate rule {name}: this check follows from gates_slo; change it there, or in gates_rules_overrides"
            for name in rules_of_slo(slo)
            if name in rules
        ]
    return problems + validate_rules(effective_rules(rules, overrides, slo, {}))


def variables_of(play: Any, host: str, task: Any = None) -> dict[str, Any]:
    """Return a host's variables within a play, for a callback; nothing where they cannot be read.

    The failure that is being told must not be hidden by another one.
    """
    manager = play.get_variable_manager()
    try:
        return dict(manager.get_vars(play=play, host=manager._inventory.get_host(host), task=task))
    except Exception:
        return {}


def without_secrets(text: str, variables: Mapping[str, Any]) -> str:
    """Blot out the values of a host's secrets, known by their names.

    Ansible hides what a module declares as a secret; what a command prints it cannot know.
    """
    for name, value in variables.items():
        if not looks_secret(str(name)) or isinstance(value, (Mapping, list, tuple)):
            continue
        try:
            secret = str(plain(value))
        except Exception:  # noqa: S112 - a vault that was not opened: its value is nowhere in the text either
            continue
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "********")
    return text
