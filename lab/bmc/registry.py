"""A BIOS attribute registry (DSP0266 AttributeRegistry): validation of values, and evaluation of its Dependencies.

A registry comes as the vendor publishes it, or from a compact table in a profile (`build_registry`), which turns
"needs PowerProfile=CUSTOM" into the standard `Dependencies` that lock an attribute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .messages import message

Json = dict[str, Any]
_MAX_CHAIN = 8  # a change may set an attribute that sets another; vendors' chains are two or three long


def entry_of(item: Json, *, numbered: bool = False) -> Json:
    """Return a registry's attribute entry for a compact item.

    `numbered`: the firmware lists numbers as ValueName, while the live value is the display text (Supermicro); the
    item's `values` then map the text to its number.
    """
    kind = item.get("type") or ("Enumeration" if "values" in item else "String")
    entry: Json = {
        "AttributeName": item["name"],
        "DisplayName": item.get("display", item["name"]),
        "HelpText": item.get("help", item.get("display", item["name"])),
        "MenuPath": item.get("menu", "./" + item["parent"] if item.get("parent") else "./"),
        "Type": kind,
        "ReadOnly": bool(item.get("read_only", False)),
        "Hidden": bool(item.get("hidden", False)),
        "GrayOut": False,
        "ResetRequired": True,
        "WriteOnly": kind == "Password",
    }
    if "default" in item:
        entry["DefaultValue"] = item["default"]
    if kind == "Enumeration":
        values = item["values"]
        pairs = values.items() if isinstance(values, dict) else ((value, value) for value in values)
        names = ("ValueDisplayName", "ValueName") if numbered else ("ValueName", "ValueDisplayName")
        entry["Value"] = [dict(zip(names, pair)) for pair in pairs]
    for short, long in (
        ("minimum", "LowerBound"),
        ("maximum", "UpperBound"),
        ("step", "ScalarIncrement"),
        ("max_length", "MaxLength"),
        ("pattern", "ValueExpression"),
    ):
        if short in item:
            entry[long] = item[short]
    return entry


def _locks(name: str, needs: Mapping[str, Any]) -> Iterable[Json]:
    for gate, wanted in needs.items():
        for target in ("ReadOnly", "GrayOut"):
            yield {
                "DependencyFor": name,
                "Type": "Map",
                "Dependency": {
                    "MapFrom": [
                        {
                            "MapFromAttribute": gate,
                            "MapFromProperty": "CurrentValue",
                            "MapFromCondition": "NEQ",
                            "MapFromValue": wanted,
                        }
                    ],
                    "MapToAttribute": name,
                    "MapToProperty": target,
                    "MapToValue": True,
                },
            }


def _sets(name: str, effects: Mapping[str, Mapping[str, Any]]) -> Iterable[Json]:
    for value, targets in effects.items():
        for target, becomes in targets.items():
            yield {
                "DependencyFor": name,
                "Type": "Map",
                "Dependency": {
                    "MapFrom": [
                        {
                            "MapFromAttribute": name,
                            "MapFromProperty": "CurrentValue",
                            "MapFromCondition": "EQU",
                            "MapFromValue": value,
                        }
                    ],
                    "MapToAttribute": target,
                    "MapToProperty": "CurrentValue",
                    "MapToValue": becomes,
                },
            }


def build_registry(header: Json, items: list[Json], *, numbered: bool = False, defaults: bool = True) -> Json:
    """Return a registry in DMTF's form from compact items.

    An item has `name`, `values` (list, or value to display name), `default`, and optionally `display`, `parent`,
    `type`, `minimum`, `maximum`, `read_only`, `needs` (attribute: value it must have, else this one is locked) and
    `sets` (own value: {attribute: value it forces}). Without `defaults` the entries name no DefaultValue (Dell).
    """
    dependencies: list[Json] = []
    for item in items:
        dependencies += _locks(item["name"], item.get("needs", {}))
        dependencies += _sets(item["name"], item.get("sets", {}))
    entries = [entry_of(item, numbered=numbered) for item in items]
    if not defaults:
        for entry in entries:
            entry.pop("DefaultValue", None)
    menus = sorted({item["parent"] for item in items if item.get("parent")})
    return {
        "@odata.type": "#AttributeRegistry.v1_3_6.AttributeRegistry",
        "Language": "en",
        **header,
        "RegistryEntries": {
            "Attributes": entries,
            "Dependencies": dependencies,
            "Menus": [
                {"MenuName": menu, "DisplayName": menu, "MenuPath": f"./{menu}", "ReadOnly": False} for menu in menus
            ],
        },
    }


def complete(document: Json, extra: list[Json], values: Mapping[str, Any]) -> None:
    """Add entries to a registry that a capture was cut to: the compact items in `extra`, then one for every further
    attribute in `values`, with the values that the Dependencies mention."""
    body = document["RegistryEntries"]
    known = {entry["AttributeName"] for entry in body["Attributes"]}
    for item in extra:
        if item["name"] not in known:
            body["Attributes"].append(entry_of(item))
            known.add(item["name"])
    mentioned: dict[str, set[str]] = {}
    for one in body.get("Dependencies", []):
        dependency = one["Dependency"]
        if dependency["MapToProperty"] == "CurrentValue":
            mentioned.setdefault(dependency["MapToAttribute"], set()).add(str(dependency["MapToValue"]))
        for term in dependency["MapFrom"]:
            mentioned.setdefault(term["MapFromAttribute"], set()).add(str(term["MapFromValue"]))
    for name in sorted(set(values) - known):
        value = values[name]
        guess: Json = {"name": name}
        if isinstance(value, bool):
            guess["type"] = "Boolean"
        elif isinstance(value, int):
            guess["type"] = "Integer"
        elif value in ("Enabled", "Disabled") or name in mentioned:
            common = ["Enabled", "Disabled"] if value in ("Enabled", "Disabled") else []
            guess["values"] = list(dict.fromkeys([*common, value, *sorted(mentioned.get(name, set()))]))
        body["Attributes"].append(entry_of(guess))


def _compare(condition: str, left: Any, right: Any) -> bool:
    if condition == "EQU":
        return bool(left == right)
    if condition == "NEQ":
        return bool(left != right)
    try:
        order = {"GTR": left > right, "GEQ": left >= right, "LSS": left < right, "LEQ": left <= right}
    except TypeError:
        return False
    return bool(order.get(condition, False))


class AttributeRegistry:
    """Answers questions about one registry document."""

    def __init__(self, document: Json, *, live: str = "ValueName") -> None:
        """Index a registry; `live` names the member of a Value entry that attributes are read and written with."""
        self.document = document
        self.live = live
        entries = document["RegistryEntries"]
        self.entries: dict[str, Json] = {entry["AttributeName"]: entry for entry in entries["Attributes"]}
        self.dependencies: list[Json] = [
            item["Dependency"] for item in entries.get("Dependencies", []) if item.get("Type", "Map") == "Map"
        ]

    def defaults(self) -> Json:
        """Return the default value of every attribute that has one."""
        return {name: entry["DefaultValue"] for name, entry in self.entries.items() if "DefaultValue" in entry}

    def _holds(self, dependency: Json, values: Mapping[str, Any]) -> bool:
        result = False
        for index, term in enumerate(dependency["MapFrom"]):
            name, prop = term["MapFromAttribute"], term.get("MapFromProperty", "CurrentValue")
            left = values.get(name) if prop == "CurrentValue" else self.entries.get(name, {}).get(prop)
            met = name in values and _compare(term["MapFromCondition"], left, term["MapFromValue"])
            if index == 0:
                result = met
            elif term.get("MapTerms", "AND") == "OR":
                result = result or met
            else:
                result = result and met
        return result

    def _active(self, prop: str, values: Mapping[str, Any]) -> Iterable[Json]:
        for dependency in self.dependencies:
            if dependency["MapToProperty"] == prop and self._holds(dependency, values):
                yield dependency

    def lock_reason(self, name: str, values: Mapping[str, Any]) -> str:
        """Say why `name` may not be written while the attributes have `values`; empty when it may be."""
        entry = self.entries.get(name, {})
        locked, reason = False, ""
        for dependency in self._active("ReadOnly", values):
            if dependency["MapToAttribute"] != name:
                continue
            locked = bool(dependency["MapToValue"])
            terms = [
                f"{term['MapFromAttribute']} is {values.get(term['MapFromAttribute'])!s}"
                + (f", must be {term['MapFromValue']!s}" if term["MapFromCondition"] == "NEQ" else "")
                for term in dependency["MapFrom"]
            ]
            reason = "locked because " + " and ".join(terms) if locked else ""
            if locked:
                return reason
        if entry.get("ReadOnly") and not any(
            dependency["MapToAttribute"] == name and dependency["MapToValue"] is False
            for dependency in self._active("ReadOnly", values)
        ):
            return "the registry says ReadOnly"
        if entry.get("Immutable"):
            return "the registry says Immutable"
        return reason

    def consequences(self, changed: Iterable[str], values: Mapping[str, Any]) -> Json:
        """Return the values that Dependencies force after `changed` attributes took `values` (not yet merged)."""
        forced: Json = {}
        work = dict(values)
        wave = set(changed)
        for _ in range(_MAX_CHAIN):
            following: set[str] = set()
            for dependency in self._active("CurrentValue", work):
                target = dependency["MapToAttribute"]
                sources = {term["MapFromAttribute"] for term in dependency["MapFrom"]}
                if target in work and sources & wave and work[target] != dependency["MapToValue"]:
                    work[target] = forced[target] = dependency["MapToValue"]
                    following.add(target)
            if not following:
                break
            wave = following
        return forced

    def check(self, name: str, value: Any, current: Any) -> Json | None:
        """Return a message when `value` is not allowed for `name`, else None. `current` gives the type if unlisted."""
        entry = self.entries.get(name)
        where = f"/Attributes/{name}"
        if entry is None:
            if current is not None and type(value) is not type(current):
                return message("PropertyValueTypeError", value, name, type(current).__name__, related=where)
            return None
        checks = {
            "Enumeration": self._check_enumeration,
            "Integer": self._check_integer,
            "Boolean": self._check_boolean,
        }
        return checks.get(entry.get("Type", "String"), self._check_string)(entry, value, where)

    @staticmethod
    def _check_boolean(entry: Json, value: Any, where: str) -> Json | None:
        if not isinstance(value, bool):
            return message("PropertyValueTypeError", value, entry["AttributeName"], "a boolean", related=where)
        return None

    def _check_enumeration(self, entry: Json, value: Any, where: str) -> Json | None:
        allowed = [item.get(self.live, item["ValueName"]) for item in entry.get("Value", [])]
        name = entry["AttributeName"]
        if not isinstance(value, str) and not any(type(value) is type(item) for item in allowed):
            return message("PropertyValueTypeError", value, name, "a string", related=where)
        if value not in allowed:
            return message("PropertyValueNotInList", value, name, ", ".join(map(str, allowed)), related=where)
        return None

    @staticmethod
    def _check_integer(entry: Json, value: Any, where: str) -> Json | None:
        name = entry["AttributeName"]
        if isinstance(value, bool) or not isinstance(value, int):
            return message("PropertyValueTypeError", value, name, "an integer", related=where)
        low, high, step = entry.get("LowerBound"), entry.get("UpperBound"), entry.get("ScalarIncrement") or 0
        if (low is not None and value < low) or (high is not None and value > high):
            return message("PropertyValueOutOfRange", value, name, f"allowed are {low} to {high}", related=where)
        if step > 0 and (value - (low or 0)) % step:
            return message("PropertyValueOutOfRange", value, name, f"steps of {step} from {low or 0}", related=where)
        return None

    @staticmethod
    def _check_string(entry: Json, value: Any, where: str) -> Json | None:
        name = entry["AttributeName"]
        if not isinstance(value, str):
            return message("PropertyValueTypeError", value, name, "a string", related=where)
        low, high = entry.get("MinLength") or 0, entry.get("MaxLength")
        if len(value) < low or (high is not None and len(value) > high):
            return message("PropertyValueOutOfRange", value, name, f"length {low} to {high}", related=where)
        pattern = entry.get("ValueExpression")
        if pattern and not re.fullmatch(pattern, value):
            return message("PropertyValueFormatError", value, name, f"must match {pattern}", related=where)
        return None
