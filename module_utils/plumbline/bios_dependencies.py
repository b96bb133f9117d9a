"""What the registry's `Dependencies` make of a set of BIOS values: what is locked, what is set along with others.

A *state* maps every attribute to the value it will have. The functions answer for that state, so that a request is judged
by what the machine will be after it, not by what it is now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .bios_registry import Attribute, Condition, Dependency, Registry, Value

# Properties of an attribute that a dependency may narrow, with the field that holds each.
_BOUNDS = {
    "LowerBound": "lower",
    "UpperBound": "upper",
    "ScalarIncrement": "step",
    "MinLength": "min_length",
    "MaxLength": "max_length",
}


@dataclass(frozen=True)
class Lock:
    """Why an attribute cannot be set: `dependency` is None where the registry says so without a condition."""

    prop: str
    dependency: Dependency | None

    def text(self) -> str:
        """The reason for a sentence."""
        if self.dependency is not None:
            return f"locked while {self.dependency.text()}"
        return {
            "ReadOnly": "read-only in the registry",
            "GrayOut": "marked inactive (GrayOut) in the registry",
            "Hidden": "hidden in the registry, as what a machine's hardware does not offer is",
        }[self.prop]


def _property(registry: Registry, state: Mapping[str, Value], condition: Condition) -> tuple[bool, Value]:
    """The property a condition looks at, and whether it is known at all."""
    if condition.prop == "CurrentValue":
        return condition.attribute in state, state.get(condition.attribute)
    attribute = registry.attributes.get(condition.attribute)
    if attribute is None:
        return False, None
    static = {"ReadOnly": attribute.read_only, "GrayOut": attribute.gray_out, "Hidden": attribute.hidden}
    return condition.prop in static, static.get(condition.prop)


def _holds(registry: Registry, state: Mapping[str, Value], condition: Condition) -> bool:
    known, value = _property(registry, state, condition)
    if not known:
        # An attribute that this machine lacks fulfils nothing, not even "is not X".
        return False
    if condition.operator in ("EQU", "NEQ"):
        if condition.prop == "CurrentValue":
            same = registry.same(condition.attribute, value, condition.value)
        else:
            same = str(value).lower() == str(condition.value).lower()
        return same == (condition.operator == "EQU")
    try:
        number, bound = float(value), float(condition.value)
    except (TypeError, ValueError):
        return False
    return {
        "GTR": number > bound,
        "GEQ": number >= bound,
        "LSS": number < bound,
        "LEQ": number <= bound,
    }.get(condition.operator, False)


def fires(registry: Registry, state: Mapping[str, Value], dependency: Dependency) -> bool:
    """Whether all conditions of a dependency hold; terms are joined from left to right."""
    result = False
    for index, condition in enumerate(dependency.conditions):
        holds = _holds(registry, state, condition)
        if index == 0:
            result = holds
        elif condition.term == "OR":
            result = result or holds
        else:
            result = result and holds
    return result


def locks(registry: Registry, state: Mapping[str, Value], name: str) -> list[Lock]:
    """All reasons why attribute `name` cannot be set in this state; empty where it can."""
    attribute = registry.attributes.get(name)
    found: dict[str, list[Lock]] = {
        "ReadOnly": [Lock("ReadOnly", None)] if attribute and attribute.read_only else [],
        "GrayOut": [Lock("GrayOut", None)] if attribute and attribute.gray_out else [],
        "Hidden": [Lock("Hidden", None)] if attribute and attribute.hidden else [],
    }
    for dependency in registry.dependencies:
        if dependency.target == name and dependency.prop in found and fires(registry, state, dependency):
            if str(dependency.value).lower() == "true":
                found[dependency.prop].append(Lock(dependency.prop, dependency))
            else:
                found[dependency.prop] = []
    return found["ReadOnly"] + found["GrayOut"] + found["Hidden"]


def bounded(registry: Registry, state: Mapping[str, Value], name: str) -> tuple[Attribute, list[Dependency]]:
    """An attribute with the bounds that firing dependencies give it in this state, and those dependencies."""
    attribute = registry.attributes[name]
    changes: dict[str, int] = {}
    reasons = []
    for dependency in registry.dependencies:
        field = _BOUNDS.get(dependency.prop)
        if field and dependency.target == name and fires(registry, state, dependency):
            try:
                changes[field] = int(dependency.value)
            except (TypeError, ValueError, OverflowError):
                continue
            reasons.append(dependency)
    return replace(attribute, **changes), reasons  # type: ignore[arg-type]


def unlocking(registry: Registry, state: Mapping[str, Value], name: str) -> list[tuple[str, Value]]:
    """Single changes (attribute, value) after which `name` can be set; where none frees it, those that ease its locks.

    Only attributes that a lock looks at are tried, each with every value that the registry gives it. A value called custom
    comes first.
    """
    before = locks(registry, state, name)
    freeing: list[tuple[str, Value]] = []
    easing: list[tuple[str, Value]] = []
    for trigger in _triggers(before, name):
        attribute = registry.attributes.get(trigger)
        if attribute is None or attribute.read_only:
            continue
        names: list[Value] = [option.name for option in attribute.options]
        for value in [True, False] if attribute.type == "Boolean" else names:
            if registry.same(trigger, value, state.get(trigger)):
                continue
            after = len(locks(registry, {**state, trigger: value}, name))
            if after == 0:
                freeing.append((trigger, value))
            elif after < len(before):
                easing.append((trigger, value))
    # "Custom" hands all knobs over and implies nothing else; a named profile would set other attributes along with it.
    return sorted(freeing or easing, key=lambda pair: 0 if "custom" in registry.shown(*pair).lower() else 1)


def _triggers(found: list[Lock], name: str) -> list[str]:
    conditions = [c for lock in found if lock.dependency is not None for c in lock.dependency.conditions]
    return list(dict.fromkeys(c.attribute for c in conditions if c.attribute != name))


def implied(registry: Registry, state: Mapping[str, Value]) -> dict[str, list[tuple[Value, Dependency]]]:
    """The values that firing dependencies give to other attributes in this state, each with its reason."""
    found: dict[str, list[tuple[Value, Dependency]]] = {}
    for dependency in registry.dependencies:
        if dependency.prop == "CurrentValue" and fires(registry, state, dependency):
            found.setdefault(dependency.target, []).append((dependency.value, dependency))
    return found
