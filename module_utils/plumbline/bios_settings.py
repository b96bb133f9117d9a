"""From wanted BIOS settings to what must be staged: desired, applied and pending values compared, nothing written.

`plan` validates a whole request before anything is sent and refuses it as a whole: a machine that took half of a profile is
worse than one that took none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .bios_dependencies import Lock, bounded, implied, locks, unlocking
from .bios_registry import Registry, SettingError, Value, listed, nearest, quoted

# What to do with pending values that nobody asked for here.
KEEP, CLEAR, REFUSE = "keep", "clear", "refuse"


class RefusedSettingsError(SettingError):
    """Settings that cannot be staged; `problems` holds one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        """Join the problems to one sentence."""
        self.problems = problems
        head = "1 BIOS setting was" if len(problems) == 1 else f"{len(problems)} BIOS settings were"
        numbered = problems if len(problems) == 1 else [f"({i}) {text}" for i, text in enumerate(problems, 1)]
        super().__init__(f"{head} refused and nothing was written: {'; '.join(numbered)}")


@dataclass
class BiosState:
    """The BIOS of one machine: values it runs with, values staged for the next restart, and the registry."""

    applied: dict[str, Value]
    pending: dict[str, Value] = field(default_factory=dict)
    registry: Registry | None = None

    def __post_init__(self) -> None:
        """Keep as pending only what differs: many BMCs list all values in the settings object."""
        known = self.registry or Registry()
        self.pending = {
            name: value for name, value in self.pending.items() if not known.same(name, value, self.applied.get(name))
        }


@dataclass
class Change:
    """One attribute in its three states, as a person reads it; `pending` is None where nothing is staged."""

    attribute: str
    applied: Value
    pending: Value
    desired: Value


@dataclass
class Plan:
    """What a request comes to. `write` is what to send (wire form); empty where nothing needs to be done."""

    desired: dict[str, Value] = field(default_factory=dict)
    write: dict[str, Value] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    foreign: dict[str, Value] = field(default_factory=dict)
    unlocked: dict[str, Value] = field(default_factory=dict)
    # What is locked now and only freed by this very request, with the reason.
    freed: dict[str, str] = field(default_factory=dict)
    pending_after: dict[str, Value] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def restart_required(self) -> str:
        """`power_cycle` while anything waits for the next restart, else `none`."""
        return "power_cycle" if self.pending_after else "none"


def flatten(attributes: Mapping[str, Any]) -> dict[str, Value]:
    """Take the attributes out of the parents that some BMCs (IEIT) put them under; flat ones stay as they are."""
    flat: dict[str, Value] = {}
    for name, value in attributes.items():
        if isinstance(value, Mapping):
            flat.update(value)
        else:
            flat[name] = value
    return flat


def is_nested(attributes: Mapping[str, Any]) -> bool:
    """Whether the BMC shows its attributes under parents."""
    return any(isinstance(value, Mapping) for value in attributes.values())


def accept(state: BiosState, settings: Mapping[str, Any], require_registry: bool = True) -> dict[str, Value]:
    """Validate names and values, and return the canonical values by attribute.

    Raises:
        RefusedSettingsError: with every problem that was found.
    """
    problems: list[str] = []
    accepted: dict[str, Value] = {}
    for name, value in settings.items():
        try:
            known, canonical = _accept_one(state, str(name), value, require_registry)
        except SettingError as error:
            problems.append(str(error))
            continue
        accepted[known] = canonical
    if problems:
        raise RefusedSettingsError(problems)
    return accepted


def _accept_one(state: BiosState, name: str, value: Any, require_registry: bool) -> tuple[str, Value]:
    registry = state.registry or Registry()
    attribute = registry.attributes.get(name)
    known = sorted(set(state.applied) | set(registry.attributes))
    if name not in known and "." in name and name.split(".", 1)[1] in known:
        # IEIT's tools write Parent.Attribute.
        name = name.split(".", 1)[1]
        attribute = registry.attributes.get(name)
    if name not in known:
        close = nearest(name, known) or _by_display(registry, name)
        hint = f'did you mean "{close[0]}"?' if close else "list the names with the module redfish_info"
        raise SettingError(f"this BIOS has no attribute {quoted(name)} (it has {len(known)}): {hint}")
    if value is None or isinstance(value, (dict, list)):
        kind = "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
        raise SettingError(f"{name} needs a single value, found {kind}: write a text, a number, true or false")
    if name not in state.applied:
        raise SettingError(f"{name} is in the registry but this machine does not offer it: leave it out")
    if attribute is not None:
        return name, attribute.accept(value)
    if require_registry:
        what = f"the registry {registry.id}" if state.registry else "the BMC has no attribute registry and"
        raise SettingError(
            f"{name} exists, but {what} does not describe it, so that its value cannot be checked:"
            " leave it out, or set require_registry to false to have only its type checked"
        )
    live = state.applied[name]
    if isinstance(live, bool) != isinstance(value, bool) and live is not None:
        raise SettingError(f"{name} is now {live!r}: expected the same type, found {value!r}")
    if isinstance(live, int) and not isinstance(live, bool) and str(value).lstrip("-").isdigit():
        return name, int(value)
    if isinstance(live, int) and not isinstance(live, bool):
        raise SettingError(f"{name} is now the number {live}: expected a number, found {value!r}")
    return name, value


def _by_display(registry: Registry, text: str) -> list[str]:
    """The attribute whose display name was written instead of its name."""
    return [a.name for a in registry.attributes.values() if a.display.lower() == text.lower()][:1]


def plan(
    state: BiosState,
    settings: Mapping[str, Any],
    *,
    unlock: bool = False,
    foreign_pending: str = KEEP,
    require_registry: bool = True,
) -> Plan:
    """Compare desired, applied and pending, and say what must be staged.

    Args:
        state: the machine.
        settings: attribute to wanted value, in any form that the registry knows.
        unlock: change the attribute that locks a wanted one in the same request, where a single change does it.
        foreign_pending: what becomes of pending values of other attributes (`keep`, `clear` or `refuse`).
        require_registry: refuse attributes that the registry does not describe.

    Raises:
        RefusedSettingsError: nothing of the request may be written.
    """
    registry = state.registry or Registry()
    desired = accept(state, settings, require_registry)
    result = Plan()
    foreign = {name: value for name, value in state.pending.items() if name not in desired}
    if unlock:
        result.unlocked = _unlock(state, desired, foreign if foreign_pending == KEEP else {})
        desired = {**desired, **result.unlocked}
        foreign = {name: value for name, value in foreign.items() if name not in desired}
    result.desired = desired

    # A staged profile brings staged companions with it; those are not somebody else's.
    companions = _companions(state, desired)
    foreign = {n: v for n, v in foreign.items() if n not in companions or not registry.same(n, v, companions[n])}
    kept = foreign if foreign_pending == KEEP else {}
    problems = (
        _out_of_bounds(state, desired, kept) + _locked(state, desired, kept) + _contradicted(state, desired, kept)
    )
    if foreign_pending == REFUSE and foreign:
        shown = listed([f"{name} = {value}" for name, value in sorted(foreign.items())])
        problems.append(
            f"{len(foreign)} pending values that were not asked for would become active with the next restart ({shown}):"
            ' ask for them, or set foreign_pending to "clear" or "keep"'
        )
    if problems:
        raise RefusedSettingsError(problems)

    for name, value in desired.items():
        live = state.applied.get(name)
        effective = state.pending.get(name, live)
        if not registry.same(name, effective, value):
            attribute = registry.attributes.get(name)
            result.write[name] = attribute.wire(value, live) if attribute else value
            result.changes.append(Change(name, live, state.pending.get(name), value))
            if _needs_setting(state, name, value):
                found = locks(registry, state.applied, name)
                if found:
                    result.freed[name] = found[0].text().removeprefix("locked while ")
    if foreign_pending == CLEAR:
        for name in sorted(set(foreign) & set(state.applied)):
            result.write[name] = state.applied[name]
            result.cleared.append(name)
            result.changes.append(Change(name, state.applied[name], foreign[name], state.applied[name]))
        # An update of the BIOS may have taken the attribute away: then there is no value to go back to.
        foreign = {name: value for name, value in foreign.items() if name not in state.applied}
    if foreign:
        result.foreign = foreign
        shown = listed([f"{name} = {value}" for name, value in sorted(foreign.items())])
        result.warnings.append(
            f"{len(foreign)} pending values that were not asked for cannot be taken back, since this BIOS does not show what"
            f" applies now ({shown}): the next restart may drop them"
            if foreign_pending == CLEAR
            else f"{len(foreign)} pending values that were not asked for become active with the next restart: {shown}"
        )
    after = {**state.pending, **result.write}
    result.pending_after = {
        name: value for name, value in after.items() if not registry.same(name, value, state.applied.get(name))
    }
    return result


def _final(state: BiosState, desired: Mapping[str, Value], kept: Mapping[str, Value]) -> dict[str, Value]:
    return {**state.applied, **kept, **desired}


def _needs_setting(state: BiosState, name: str, value: Value) -> bool:
    """Whether the attribute must change at all: a lock does not matter for a value that is already there."""
    registry = state.registry or Registry()
    return not registry.same(name, state.applied.get(name), value)


def _out_of_bounds(state: BiosState, desired: Mapping[str, Value], kept: Mapping[str, Value]) -> list[str]:
    """Numbers and texts that the bounds of the resulting state do not allow: dependencies may narrow them."""
    registry = state.registry
    if registry is None:
        return []
    final = _final(state, desired, kept)
    problems = []
    for name, value in desired.items():
        if name not in registry.attributes or not _needs_setting(state, name, value):
            continue
        narrowed, reasons = bounded(registry, final, name)
        if reasons:
            try:
                narrowed.accept(value)
            except SettingError as error:
                problems.append(f"{error} (while {' and '.join(d.text() for d in reasons)})")
    return problems


def _locked(state: BiosState, desired: Mapping[str, Value], kept: Mapping[str, Value]) -> list[str]:
    registry = state.registry
    if registry is None:
        return []
    final = _final(state, desired, kept)
    # One profile locks many attributes: said once for all of them.
    names: dict[tuple[str, str], list[str]] = {}
    for name, value in desired.items():
        if _needs_setting(state, name, value):
            found = locks(registry, final, name)
            if found:
                names.setdefault(_lock_sentence(registry, final, name, found), []).append(name)
    return [f"{listed(locked)} cannot be set: {why}: {remedy}" for (why, remedy), locked in names.items()]


def _lock_sentence(registry: Registry, final: Mapping[str, Value], name: str, found: Iterable[Lock]) -> tuple[str, str]:
    """Why an attribute is locked, and what to do about it."""
    reasons = " and ".join(dict.fromkeys(lock.text() for lock in found))
    ways = unlocking(registry, final, name)
    if not ways:
        return reasons, "leave it out, since no single setting of the registry unlocks it"
    attribute, unlocked = ways[0]
    # "2" says nothing to a person; with its display text it does.
    meaning = registry.shown(attribute, unlocked).removeprefix(str(unlocked)) if str(unlocked).isdigit() else ""
    remedy = f'set {attribute} to "{unlocked}"{meaning} in the same request, or set unlock to true to have it done'
    if len(ways) > 1:
        remedy += f" (or {listed([f'{a} = {v}' for a, v in ways[1:]], 3)})"
    return reasons, remedy


def _contradicted(state: BiosState, desired: Mapping[str, Value], kept: Mapping[str, Value]) -> list[str]:
    """Wanted values that a profile, changed in the same request, would overwrite."""
    registry = state.registry
    if registry is None:
        return []
    changing = {name for name, value in {**kept, **desired}.items() if _needs_setting(state, name, value)}
    problems = []
    for name, sources in implied(registry, _final(state, desired, kept)).items():
        if name not in desired:
            continue
        for value, dependency in sources:
            triggers = {condition.attribute for condition in dependency.conditions}
            if triggers & changing and not registry.same(name, value, desired[name]):
                problems.append(
                    f"{name} = {desired[name]} contradicts {dependency.text()}, which sets it to {value}:"
                    f" leave one of the two out, or ask for {name} = {value}"
                )
    return problems


def _companions(state: BiosState, desired: Mapping[str, Value]) -> dict[str, Value]:
    """The values that the wanted changes give to other attributes."""
    registry = state.registry or Registry()
    changing = {name for name, value in desired.items() if _needs_setting(state, name, value)}
    return {
        name: value
        for name, sources in implied(registry, {**state.applied, **desired}).items()
        for value, dependency in sources
        if any(condition.attribute in changing for condition in dependency.conditions)
    }


def _unlock(state: BiosState, desired: Mapping[str, Value], kept: Mapping[str, Value]) -> dict[str, Value]:
    """The changes that free locked attributes; never one of an attribute that was itself asked for."""
    registry = state.registry
    added: dict[str, Value] = {}
    if registry is None:
        return added
    for name, value in desired.items():
        if not _needs_setting(state, name, value):
            continue
        # A lock may have several causes; each round removes one.
        for _round in range(4):
            final = _final(state, {**desired, **added}, kept)
            ways = [(a, v) for a, v in unlocking(registry, final, name) if a not in desired and a not in added]
            ways = [(a, v) for a, v in ways if not locks(registry, final, a)]
            if not ways:
                break
            added[ways[0][0]] = ways[0][1]
    return added
