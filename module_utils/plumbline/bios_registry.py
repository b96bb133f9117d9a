"""BIOS attribute registry: names, values, bounds and dependencies of one machine, as Redfish describes them.

Pure functions over the JSON documents; nothing here talks to a BMC. A value has three forms that must not be confused:

- what a person writes (`Disabled`, `C0/C1 state`, `3200`, a YAML boolean by accident),
- the *canonical* form, by which values are compared (for an enumeration the registry's `ValueName`, as text),
- the *wire* form, which the BMC wants back: some (Supermicro) list numbers as `ValueName` but show the display text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .redfish_document import items, mapping

Value = Any  # str, int, bool or None, as JSON has it


class SettingError(ValueError):
    """A BIOS setting that cannot be: one sentence with what was expected, what was found and what to do."""


def nearest(word: str, known: Sequence[str], count: int = 1) -> list[str]:
    """The known words that look most like `word`; capitals do not count."""
    by_lower: dict[str, str] = {}
    for item in known:
        by_lower.setdefault(item.lower(), item)
    found = difflib.get_close_matches(word.lower(), list(by_lower), n=count, cutoff=0.6)
    return [by_lower[item] for item in found]


def quoted(value: Any, limit: int = 60) -> str:
    """A value from a person for a sentence, in quotes, cut where it is long; YAML's null is nothing."""
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else str(value)
    shown = text if text.isprintable() else repr(text)[1:-1]
    return f'"{shown[:limit]}…"' if len(shown) > limit else f'"{shown}"'


def listed(values: Sequence[Any], limit: int = 12) -> str:
    """Values for a sentence, cut where the list is long."""
    shown = ", ".join(str(value) for value in values[:limit])
    return shown + (f" and {len(values) - limit} more" if len(values) > limit else "")


@dataclass(frozen=True)
class Option:
    """One value of an enumeration: `name` is `ValueName`, `display` is `ValueDisplayName`, both as text."""

    name: str
    display: str
    raw: Value = None


@dataclass(frozen=True)
class Attribute:
    """One attribute of the registry; bounds are None where the registry gives none."""

    name: str
    type: str
    display: str = ""
    read_only: bool = False
    gray_out: bool = False
    hidden: bool = False
    options: tuple[Option, ...] = ()
    lower: int | None = None
    upper: int | None = None
    step: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str = ""
    reset_required: bool = True

    def option(self, value: Value) -> Option | None:
        """Find the enumeration's value that `value` means: by name first, then by display text."""
        text = value if isinstance(value, str) else str(value)
        for candidate in self.options:
            if candidate.name == text:
                return candidate
        for candidate in self.options:
            if candidate.display == text:
                return candidate
        return None

    def canonical(self, value: Value) -> Value:
        """The comparable form of a value that the machine reported; unknown values stay as they are."""
        if self.type == "Enumeration" and not isinstance(value, bool):
            found = self.option(value)
            return found.name if found else value
        if self.type == "Integer" and isinstance(value, str) and re.fullmatch(r"-?\d+", value):
            return int(value)
        return value

    def shown(self, value: Value) -> str:
        """A value for a person: the name, with the display text behind it where that says more."""
        found = self.option(value) if self.type == "Enumeration" and not isinstance(value, bool) else None
        if found and found.display and found.display != found.name:
            return f"{found.name} ({found.display})"
        return str(value)

    def accept(self, value: Value) -> Value:
        """Check a wanted value and give its canonical form.

        Raises:
            SettingError: the value is none of those the registry allows; the sentence names the nearest one.
        """
        checks = {
            "Enumeration": self._accept_enumeration,
            "Boolean": self._accept_boolean,
            "Integer": self._accept_integer,
            "String": self._accept_string,
        }
        check = checks.get(self.type)
        if check is None:
            raise SettingError(
                f"{self.name} is of type {self.type}, which cannot be read back and is not set here: set it by the vendor's own tool"
            )
        return check(value)

    def wire(self, canonical: Value, live: Value) -> Value:
        """The form to send: the one in which the machine shows this attribute itself (`live`)."""
        if self.type != "Enumeration":
            return canonical
        found = self.option(canonical)
        if found is None:
            return canonical
        shown = self.option(live) if live is not None and not isinstance(live, bool) else None
        if shown is not None and shown.name != str(live) and shown.display == str(live) and found.display:
            return found.display
        if isinstance(live, int) and not isinstance(live, bool) and isinstance(found.raw, int):
            return found.raw
        return found.name

    def _accept_enumeration(self, value: Value) -> Value:
        names = [option.name for option in self.options]
        if isinstance(value, bool):
            raise SettingError(
                f"{self.name} got the boolean {str(value).lower()}, since YAML reads on, off, yes and no as booleans:"
                f" write one of these in quotes: {listed(names)}"
            )
        found = self.option(value)
        if found is not None:
            return found.name
        texts = names + [option.display for option in self.options if option.display]
        close = nearest(str(value), texts)
        hint = f'; did you mean "{close[0]}"?' if close else ""
        raise SettingError(f"{self.name} has no value {quoted(value)}: expected one of {listed(names)}{hint}")

    def _accept_boolean(self, value: Value) -> Value:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise SettingError(f"{self.name} is a boolean: expected true or false, found {quoted(value)}")

    def _accept_integer(self, value: Value) -> Value:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value)):
            raise SettingError(f"{self.name} is an integer: expected {self._bounds()}, found {quoted(value)}")
        number = int(value)
        too_low = self.lower is not None and number < self.lower
        too_high = self.upper is not None and number > self.upper
        off_step = bool(self.step) and (number - (self.lower or 0)) % (self.step or 1) != 0
        if too_low or too_high or off_step:
            raise SettingError(f"{self.name} is out of bounds: expected {self._bounds()}, found {number}")
        return number

    def _bounds(self) -> str:
        low = "any" if self.lower is None else str(self.lower)
        high = "any" if self.upper is None else str(self.upper)
        return f"a whole number from {low} to {high}" + (f" in steps of {self.step}" if self.step else "")

    def _accept_string(self, value: Value) -> Value:
        if isinstance(value, bool):
            raise SettingError(
                f"{self.name} is a text but got the boolean {str(value).lower()}: put the value in quotes"
            )
        text = str(value)
        if not text.isprintable():
            raise SettingError(
                f"{self.name} holds a line break or another character that cannot be printed ({quoted(text)}): take it out"
            )
        if self.min_length is not None and len(text) < self.min_length:
            raise SettingError(
                f"{self.name} is too short: expected at least {self.min_length} characters, found {len(text)}"
            )
        if self.max_length is not None and len(text) > self.max_length:
            raise SettingError(
                f"{self.name} is too long: expected at most {self.max_length} characters, found {len(text)}"
            )
        if self.pattern and not _matches(self.pattern, text):
            raise SettingError(f"{self.name} does not take {quoted(text)}: expected a text that matches {self.pattern}")
        return text


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        # Vendors write other dialects; a pattern that Python cannot read is the BMC's to check.
        return True


@dataclass(frozen=True)
class Condition:
    """One term of a dependency: the attribute's property compared with a value; `term` joins it to the terms before it."""

    attribute: str
    prop: str
    operator: str
    value: Value
    term: str = "AND"

    def text(self) -> str:
        """The condition for a sentence."""
        words = {"EQU": "=", "NEQ": "is not", "GTR": ">", "GEQ": ">=", "LSS": "<", "LEQ": "<="}
        return f"{self.attribute} {words.get(self.operator, self.operator)} {self.value}"


@dataclass(frozen=True)
class Dependency:
    """While the conditions hold, property `prop` of attribute `target` has the value `value`."""

    conditions: tuple[Condition, ...]
    target: str
    prop: str
    value: Value

    def text(self) -> str:
        """The conditions for a sentence."""
        return " ".join((f"{c.term.lower()} " if i else "") + c.text() for i, c in enumerate(self.conditions))


@dataclass
class Registry:
    """The attributes and dependencies of one BIOS. `undescribed` names attributes the machine has but the registry does not list."""

    id: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    dependencies: list[Dependency] = field(default_factory=list)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Registry:
        """Read an `AttributeRegistry` document; entries without a name are left out."""
        entries = mapping(document, "RegistryEntries")
        attributes: dict[str, Attribute] = {}
        for entry in items(entries, "Attributes"):
            name = entry.get("AttributeName")
            if isinstance(name, str) and name:
                attributes[name] = _attribute(entry)
        dependencies = []
        for entry in items(entries, "Dependencies"):
            dependency = _dependency(mapping(entry, "Dependency"))
            if dependency is not None and entry.get("Type", "Map") == "Map":
                dependencies.append(dependency)
        return cls(str(document.get("Id") or ""), attributes, dependencies)

    def canonical(self, name: str, value: Value) -> Value:
        """The comparable form of a value of attribute `name`."""
        attribute = self.attributes.get(name)
        return attribute.canonical(value) if attribute else value

    def same(self, name: str, left: Value, right: Value) -> bool:
        """Whether two values of an attribute mean the same; true and 1 do not."""
        ours, theirs = self.canonical(name, left), self.canonical(name, right)
        if isinstance(ours, bool) != isinstance(theirs, bool):
            return False
        return bool(ours == theirs) or (not isinstance(ours, bool) and str(ours) == str(theirs))

    def shown(self, name: str, value: Value) -> str:
        """A value for a person."""
        attribute = self.attributes.get(name)
        return attribute.shown(value) if attribute else str(value)


def _attribute(entry: Mapping[str, Any]) -> Attribute:
    options = tuple(
        Option(str(item.get("ValueName")), str(item.get("ValueDisplayName") or ""), item.get("ValueName"))
        for item in items(entry, "Value")
        if item.get("ValueName") is not None
    )
    kind = entry.get("Type") or ("Enumeration" if options else "String")
    return Attribute(
        name=entry["AttributeName"],
        type=str(kind),
        display=str(entry.get("DisplayName") or ""),
        read_only=bool(entry.get("ReadOnly")) or bool(entry.get("Immutable")),
        gray_out=bool(entry.get("GrayOut")),
        hidden=bool(entry.get("Hidden")),
        options=options,
        lower=_number(entry.get("LowerBound")),
        upper=_number(entry.get("UpperBound")),
        step=_number(entry.get("ScalarIncrement")) or None,
        min_length=_number(entry.get("MinLength")),
        # Some registries say 0 where they mean that there is no limit.
        max_length=_number(entry.get("MaxLength")) or None,
        pattern=str(entry.get("ValueExpression") or ""),
        reset_required=entry.get("ResetRequired") is not False,
    )


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _dependency(entry: Mapping[str, Any]) -> Dependency | None:
    target, prop = entry.get("MapToAttribute"), entry.get("MapToProperty")
    terms = items(entry, "MapFrom")
    if not target or not prop or not terms:
        return None
    conditions = []
    for index, term in enumerate(terms):
        # The joining word stands on the later term (HPE) or on the earlier one; AND where neither says.
        word = term.get("MapTerms") or (terms[index - 1].get("MapTerms") if index else None) or "AND"
        conditions.append(
            Condition(
                str(term.get("MapFromAttribute") or ""),
                str(term.get("MapFromProperty") or "CurrentValue"),
                str(term.get("MapFromCondition") or "EQU").upper(),
                term.get("MapFromValue"),
                str(word).upper(),
            )
        )
    return Dependency(tuple(conditions), str(target), str(prop), entry.get("MapToValue"))
