"""BIOS settings as a server keeps them: active values, pending values, and what a reset makes of the two.

Nothing that a client stages is active before a reset has passed. At the reset each pending value is judged once more,
because a profile that was staged with it may lock it by then; what does not take is reported in
`@Redfish.Settings` and, as on real machines, is gone from the pending values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .clock import now
from .messages import RedfishError, message, refuse
from .registry import AttributeRegistry
from .state import State

Json = dict[str, Any]


class Bios:
    """Active and pending attributes of one system."""

    def __init__(self, registry: AttributeRegistry, initial: Json, quirks: Json, state: State) -> None:
        """Take the state over; a new one starts from the defaults of the registry and `initial`."""
        self.registry = registry
        self.quirks = quirks
        self._state = state
        factory = {**registry.defaults(), **initial}
        self._factory = factory
        self._data: Json = state.section(
            "bios",
            {
                "active": dict(factory),
                "pending": {},
                "reset_to_defaults": False,
                "applied_at": None,
                "messages": [],
                "hidden": bool(quirks.get("empty_until_post", False)),
            },
        )
        # A newer registry may know attributes that the state file has not seen.
        for name, value in factory.items():
            self._data["active"].setdefault(name, value)

    @property
    def active(self) -> Json:
        """The values that the machine runs with."""
        return dict(self._data["active"])

    @property
    def pending(self) -> Json:
        """The values that wait for the next reset."""
        return dict(self._data["pending"])

    @property
    def reset_to_defaults_pending(self) -> bool:
        """Whether Bios.ResetBios waits for the next reset."""
        return bool(self._data["reset_to_defaults"])

    @property
    def applied_at(self) -> str | None:
        """When settings were last applied."""
        value = self._data["applied_at"]
        return str(value) if value else None

    @property
    def messages(self) -> list[Json]:
        """What came of the last application."""
        return list(self._data["messages"])

    @property
    def hidden(self) -> bool:
        """Whether the BMC knows no attributes before the host's next POST has told it."""
        return bool(self._data.get("hidden", False))

    def hide(self, hidden: bool) -> None:
        """Let the BMC forget the attributes, or learn them again."""
        self._data["hidden"] = hidden
        self._state.save()

    def _base(self) -> Json:
        return dict(self._factory) if self.reset_to_defaults_pending else self.active

    def stage(self, wanted: Mapping[str, Any], *, replace: bool = False) -> list[str]:
        """Validate `wanted` and make it pending; nothing is staged when anything is wrong. Return what changed.

        `replace` (a PUT) drops pending values that are not named.
        """
        limit = self.quirks.get("max_attributes")
        if limit is not None and len(wanted) > limit:
            raise refuse(400, "PropertyValueOutOfRange", f"of {len(wanted)} members", "Attributes", f"at most {limit}")
        active, pending = self.active, {} if replace else self.pending
        after = {**self._base(), **pending, **wanted}
        errors = []
        for name, value in wanted.items():
            where = f"/Attributes/{name}"
            if name not in active and name not in self.registry.entries:
                errors.append(message("PropertyUnknown", name, related=where))
                continue
            problem = self.registry.check(name, value, active.get(name))
            if problem is not None:
                errors.append(problem)
            elif value != after.get(name) or value != active.get(name):
                reason = self.registry.lock_reason(name, after)
                if reason:
                    errors.append(message("PropertyNotWritable", name, reason, related=where))
        if errors:
            raise RedfishError(400, *errors)
        before = self.pending
        pending.update(wanted)
        if self.quirks.get("drop_equal_pending", True):
            base = self._base()
            pending = {name: value for name, value in pending.items() if base.get(name) != value}
        self._data["pending"] = pending
        self._state.save()
        return sorted(name for name in {*before, *pending} if before.get(name) != pending.get(name))

    def plant(self, values: Mapping[str, Any]) -> None:
        """Put pending values there without any check (a fault: another tool's forgotten values)."""
        self._data["pending"].update(values)
        self._state.save()

    def clear(self) -> None:
        """Forget pending values and a pending reset to defaults."""
        self._data["pending"] = {}
        self._data["reset_to_defaults"] = False
        self._state.save()

    def reset_to_defaults(self) -> None:
        """Have the next reset restore the factory values; pending values are dropped, as the action promises."""
        self._data["pending"] = {}
        self._data["reset_to_defaults"] = True
        self._state.save()

    def apply(
        self,
        *,
        ignore: Iterable[str] = (),
        silently: bool = True,
        only: Iterable[str] | None = None,
        instead: Mapping[str, Any] | None = None,
    ) -> Json:
        """Do what POST does: make pending values active. Return the attributes that changed.

        `ignore` names settings that do not take (a fault); `silently` says whether the machine admits it. `only`
        limits the application to some pending values (machines where a job carries them); others stay pending.
        `instead` are values that the BIOS takes in place of the pending ones (a fault).
        """
        pending = self.pending
        if only is not None:
            chosen = set(only)
            pending = {name: value for name, value in pending.items() if name in chosen}
        if not pending and not self.reset_to_defaults_pending:
            return {}
        before = self.active
        base = self._base()
        ignored = set(ignore)
        merged = {**base, **{name: value for name, value in pending.items() if name not in ignored}}
        messages: list[Json] = []
        taken: Json = {}
        for name, value in pending.items():
            if name in ignored:
                if not silently:
                    messages.append(self._failed(name, "the BIOS did not accept it"))
                continue
            # A profile staged later may have locked it; a planted value may be nonsense.
            problem = self.registry.check(name, value, before.get(name)) if name in before else None
            reason = "the value is not valid" if problem else ""
            reason = reason or ("" if name in before else "there is no such attribute")
            reason = reason or (self.registry.lock_reason(name, merged) if base.get(name) != value else "")
            if reason:
                messages.append(self._failed(name, reason))
            else:
                taken[name] = (instead or {}).get(name, value)
        after = {**base, **taken}
        changed = [name for name in after if before.get(name) != after[name]]
        after.update(self.registry.consequences(changed, after))
        self._data["active"] = after
        self._data["pending"] = {name: value for name, value in self._data["pending"].items() if name not in pending}
        self._data["reset_to_defaults"] = False
        self._data["applied_at"] = now()
        self._data["messages"] = messages or [message("Success")]
        self._state.save()
        return {name: value for name, value in after.items() if before.get(name) != value}

    @staticmethod
    def _failed(name: str, reason: str) -> Json:
        return message("SettingsFailed", name, reason, related=f"/Attributes/{name}")

    def shaped(self, values: Mapping[str, Any]) -> Json:
        """Return `values` as the profile shows them: flat, nested under each attribute's menu, or not at all."""
        if self.hidden:
            return {}
        if self.quirks.get("shape", "flat") == "flat":
            return dict(values)
        nested: Json = {}
        for name, value in values.items():
            menu = str(self.registry.entries.get(name, {}).get("MenuPath", "./")).removeprefix("./")
            if menu:
                nested.setdefault(menu.split("/", 1)[0], {})[name] = value
            else:
                nested[name] = value
        return nested

    def attributes_of(self, body: Mapping[str, Any]) -> Json:
        """Take the attributes out of a PATCH body, which the profile wants wrapped, bare, or either way."""
        wrapper = self.quirks.get("patch_body", "wrapped")
        annotations = {key for key in body if "@" in key}
        members = {key: value for key, value in body.items() if key not in annotations}
        if "Attributes" in members and wrapper in ("wrapped", "either"):
            unknown = sorted(set(members) - {"Attributes"})
            if unknown:
                raise RedfishError(400, *(message("PropertyUnknown", name, related=f"/{name}") for name in unknown))
            attributes = members["Attributes"]
            if not isinstance(attributes, dict):
                raise refuse(400, "PropertyValueTypeError", attributes, "Attributes", "an object")
            return dict(attributes)
        if wrapper == "wrapped":
            unknown = sorted(members)
            if unknown:
                raise RedfishError(400, *(message("PropertyUnknown", name, related=f"/{name}") for name in unknown))
            if not annotations:
                raise refuse(400, "PropertyMissing", "Attributes", related="/Attributes")
            return {}
        return members
