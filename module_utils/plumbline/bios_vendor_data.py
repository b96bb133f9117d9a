"""How each vendor calls what Plumbline calls by one name: the checked form of `data/bios_vendors/*.yml` and of a site's files.

A mapping has

- `vendor`, and `manufacturers`: lower-case beginnings of `ComputerSystem.Manufacturer`,
- `logical`: name -> value -> candidates. A candidate is a mapping of attribute -> acceptable values, best first. The first
  candidate whose first attribute exists on the machine, with one of the values, is taken; its further attributes are set where
  they exist. `*` in a name stands for anything (`PciSlot*LinkSpeed` is one setting for all slots); a suffix that differs from
  board to board (Supermicro's `_3D22`) is left out,
- `requires`: groups of attributes and what must hold for them to be settable, for firmware whose registry does not say so.

The live registry decides: a name or a value that it does not list is never sent. Nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .bios_registry import SettingError, Value, listed, nearest

Json = dict[str, Any]
_KEYS = ("vendor", "manufacturers", "sources", "logical", "requires")


class VendorDataError(SettingError):
    """A vendor's mapping that cannot be used; the text is one sentence that names the place."""


def problems_of(data: Any, origin: str) -> list[str]:
    """One sentence for everything that is wrong with a mapping read from `origin`; empty where it is sound."""
    if not isinstance(data, Mapping):
        return [f"{origin}: expected a mapping with vendor and logical, found {_kind(data)}"]
    problems = []
    for key in data:
        if key not in _KEYS:
            close = nearest(str(key), _KEYS)
            hint = f'; did you mean "{close[0]}"?' if close else ""
            problems.append(f'{origin}: there is no key "{key}": expected {listed(_KEYS)}{hint}')
    vendor = data.get("vendor")
    if not isinstance(vendor, str) or not vendor.strip():
        problems.append(f"{origin}: vendor must be a name, found {vendor!r}")
    for key in ("manufacturers", "sources"):
        words = data.get(key, [])
        if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
            problems.append(f"{origin}: {key} must be a list of texts, found {words!r}")
        elif key == "manufacturers" and any(word != word.lower() for word in words):
            problems.append(f"{origin}: manufacturers are compared in lower case, found {listed(words)}")
    return (
        problems + _logical_problems(data.get("logical", {}), origin) + _requires_problems(data.get("requires"), origin)
    )


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"[:80]


def _logical_problems(logical: Any, origin: str) -> list[str]:
    if not isinstance(logical, Mapping):
        return [f"{origin}: logical must map names to values, found {_kind(logical)}"]
    problems = []
    for name, values in logical.items():
        where = f"{origin}: logical.{name}"
        if not isinstance(values, Mapping):
            problems.append(f"{where} must map values to candidates, found {_kind(values)}")
            continue
        for value, candidates in values.items():
            if not isinstance(value, str):
                problems.append(
                    f"{where} has the value {value!r}, since YAML reads on, off, yes, no and digits as something else than"
                    " texts: put it in quotes"
                )
            elif candidates is not None and not isinstance(candidates, list):
                problems.append(f"{where}.{value} must be a list of candidates (or null), found {_kind(candidates)}")
            else:
                for number, candidate in enumerate(candidates or [], 1):
                    problems += _candidate_problems(candidate, f"{where}.{value}, candidate {number}")
    return problems


def _candidate_problems(candidate: Any, where: str) -> list[str]:
    if not isinstance(candidate, Mapping) or not candidate:
        return [f"{where} must map attributes to lists of values, found {_kind(candidate)}"]
    problems = []
    for attribute, wanted in candidate.items():
        if not isinstance(attribute, str) or not attribute:
            problems.append(f"{where}: an attribute must be a text, found {attribute!r}: put it in quotes")
        elif not isinstance(wanted, list) or not wanted or not all(isinstance(v, (str, int, bool)) for v in wanted):
            problems.append(f"{where}: {attribute} needs a list of values, best first, found {_kind(wanted)}")
    return problems


def _requires_problems(requires: Any, origin: str) -> list[str]:
    if requires is None:
        return []
    if not isinstance(requires, list):
        return [f"{origin}: requires must be a list of groups with needs and attributes, found {_kind(requires)}"]
    problems = []
    for number, group in enumerate(requires, 1):
        needs = group.get("needs") if isinstance(group, Mapping) else None
        attributes = group.get("attributes") if isinstance(group, Mapping) else None
        sound = isinstance(needs, Mapping) and needs and isinstance(attributes, list) and attributes
        if not sound or set(group) != {"needs", "attributes"} or not all(isinstance(a, str) for a in attributes or []):
            problems.append(
                f"{origin}: requires, group {number}, must have needs (attribute: value) and attributes (a list of names),"
                f" found {_kind(group)}"
            )
    return problems


def checked(data: Any, origin: str) -> Json:
    """Return a mapping with every key present.

    Raises:
        VendorDataError: it is malformed; nothing of it is used.
    """
    problems = problems_of(data, origin)
    if problems:
        raise VendorDataError(f"A vendor's BIOS mapping cannot be used: {'; '.join(problems)}")
    return {
        "vendor": data["vendor"],
        "manufacturers": list(data.get("manufacturers") or []),
        "logical": {name: dict(values) for name, values in (data.get("logical") or {}).items()},
        "requires": list(data.get("requires") or []),
    }


def strange_words(mapping: Json, known: Sequence[Json], origin: str) -> list[str]:
    """One sentence for each logical name or value of a site's mapping that no shipped one has: nobody could ask for it."""
    problems = []
    names = sorted({name for one in known for name in one["logical"]})
    for name, values in mapping["logical"].items():
        if name not in names:
            close = nearest(name, names)
            hint = f'did you mean "{close[0]}"?' if close else f"expected one of {listed(names, 20)}"
            problems.append(f'{origin}: there is no logical BIOS setting "{name}": {hint}')
            continue
        words = sorted({value for one in known for value in one["logical"].get(name, {})})
        problems += [
            f'{origin}: logical.{name} has no value "{value}": expected one of {listed(words)}'
            for value in values
            if value not in words
        ]
    return problems


def merged(mappings: Iterable[Json], origins: Sequence[str] = ()) -> list[Json]:
    """Lay later mappings over earlier ones of the same vendor; a new vendor is added.

    A later mapping's candidates for one value of a logical setting replace the earlier ones (null takes the value away), its
    manufacturers are added, and its `requires` replace those of the same attributes.

    Raises:
        VendorDataError: a mapping of a new vendor names no manufacturers, so that no machine would ever match.
    """
    result: list[Json] = []
    for position, mapping in enumerate(mappings):
        found = next((one for one in result if one["vendor"].lower() == mapping["vendor"].lower()), None)
        if found is None:
            if not mapping["manufacturers"]:
                origin = origins[position] if position < len(origins) else "a mapping"
                known = listed([one["vendor"] for one in result])
                raise VendorDataError(
                    f"A vendor's BIOS mapping cannot be used: {origin}: the vendor {mapping['vendor']} is new (known are"
                    f" {known or 'none'}), so it needs manufacturers, the beginnings of ComputerSystem.Manufacturer"
                )
            found = {"vendor": mapping["vendor"], "manufacturers": [], "logical": {}, "requires": []}
            result.append(found)
        _lay_over(found, mapping)
    return result


def _lay_over(base: Json, over: Json) -> None:
    base["manufacturers"] = list(dict.fromkeys(base["manufacturers"] + over["manufacturers"]))
    for name, values in over["logical"].items():
        known = base["logical"].setdefault(name, {})
        for value, candidates in values.items():
            if candidates is None:
                known.pop(value, None)
            else:
                known[value] = candidates
    again = {attribute for group in over["requires"] for attribute in group["attributes"]}
    kept = [{**g, "attributes": [a for a in g["attributes"] if a not in again]} for g in base["requires"]]
    base["requires"] = [group for group in kept if group["attributes"]] + over["requires"]


def requirements(mapping: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    """What each attribute of a mapping needs to be settable: attribute -> {attribute: value}."""
    found: dict[str, dict[str, Value]] = {}
    for group in mapping["requires"]:
        for attribute in group["attributes"]:
            found.setdefault(attribute, {}).update(group["needs"])
    return found
