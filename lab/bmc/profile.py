"""Profiles: what a simulated server is, as data. See docs/bmc-simulator.md for every key."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .profile_check import problems
from .registry import AttributeRegistry, build_registry, complete

Json = dict[str, Any]
DATA = Path(__file__).parent / "data" / "profiles"


class ProfileError(Exception):
    """A profile cannot be used; the text is one sentence for a person."""


@dataclass
class Profile:
    """One kind of server."""

    name: str
    data: Json
    registry: AttributeRegistry
    initial: Json = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a top-level value."""
        return self.data.get(key, default)

    @property
    def quirks(self) -> Json:
        """How this firmware deviates from the standard form."""
        return dict(self.data.get("quirks", {}))


def available() -> list[str]:
    """Return the names of the profiles that come with the simulator."""
    return sorted(path.stem for path in DATA.glob("*.json") if not path.stem.startswith("_"))


def _read(path: Path, what: str) -> Json:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"The {what} {path} cannot be read: {error.strerror}; correct the path.") from error
    except ValueError as error:
        raise ProfileError(f"The {what} {path} is not JSON ({error}); correct it.") from error
    if not isinstance(data, dict):
        raise ProfileError(f"The {what} {path} holds no JSON object; correct it.")
    return data


def _merge(base: Json, over: Json) -> Json:
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _load_data(name_or_path: str, seen: tuple[str, ...] = ()) -> tuple[str, Json, Path]:
    path = Path(name_or_path)
    if path.suffix != ".json":
        path = DATA / f"{name_or_path}.json"
        if not path.exists():
            raise ProfileError(
                f"There is no profile {name_or_path!r}; choose one of {', '.join(available())}, "
                "or give the path of a profile file that ends in .json."
            )
    data = _read(path, "profile")
    parent = data.pop("extends", None)
    if parent is not None:
        if parent in seen:
            raise ProfileError(f"The profile {path} extends itself through {parent}; remove the loop.")
        if not isinstance(parent, str):
            raise ProfileError(f"The profile {path}: extends must name a profile, found {parent!r}; correct it.")
        # A file is meant beside the one that names it; names without a folder may be the simulator's own.
        beside = str(path.parent / parent) if parent.endswith(".json") else parent
        data = _merge(_load_data(beside, (*seen, parent))[1], data)
    return path.stem, data, path


def load(name_or_path: str, overrides: Json | None = None) -> Profile:
    """Return a profile by name or file; `overrides` are merged over it.

    A profile is read-only. The ones that come with the simulator are read once: a fleet of 200 shares them.
    """
    if not overrides and name_or_path in available():
        return _load_shared(name_or_path)
    return _load(name_or_path, overrides)


@cache
def _load_shared(name: str) -> Profile:
    return _load(name, None)


def _load(name_or_path: str, overrides: Json | None) -> Profile:
    name, data, path = _load_data(name_or_path)
    if overrides:
        data = _merge(data, overrides)
    wrong = problems(data)
    if wrong:
        raise ProfileError(f"The profile {path} cannot be used: {'; '.join(wrong)}; correct it.")
    bios = data["bios"]
    initial: Json = dict(bios.get("initial", {}))
    if "captured" in bios:
        captured = _read(path.parent / bios["captured"], "captured Bios resource of a profile")
        initial = {**captured.get("Attributes", {}), **initial}
    try:
        if "registry_file" in bios:
            document = _read(path.parent / bios["registry_file"], "attribute registry of a profile")
            document = {"RegistryVersion": "1.0.0", "Language": "en", "OwningEntity": "unknown", **document}
            if bios.get("complete", False):
                complete(document, bios.get("attributes", []), initial)
            registry = AttributeRegistry(document)
        else:
            numbered, items = bool(bios.get("numbered", False)), bios["attributes"]
            defaults = not bios.get("omit_defaults", False)
            document = build_registry(bios["registry"], items, numbered=numbered, defaults=defaults)
            initial = {**{item["name"]: item["default"] for item in items if "default" in item}, **initial}
            registry = AttributeRegistry(document, live="ValueDisplayName" if numbered else "ValueName")
    except (KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"The attribute registry of the profile {path} lacks {error}; correct it.") from error
    return Profile(name, data, registry, initial)
