"""Check a host's variables against what the roles declare, before anything is touched.

The roles' ``meta/argument_specs.yml`` say which variables exist and of which type; ``meta/variables.yml`` says so for
those that belong to no role. A variable that carries a role's prefix and that no spec declares is a misspelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from .variable_types import looks_secret, value_problems

# Above this likeness (difflib's ratio) a name without a known prefix is taken for a misspelt one: sevring_port.
_MISSPELT_PREFIX = 0.9
COMMON = "meta/variables.yml"
"""Where the variables of no role are declared."""


class UndefinedYetError(Exception):
    """A variable rests on another one that is not defined, maybe not yet; ``missing`` names that one where it is known."""

    def __init__(self, missing: str = "") -> None:
        """Keep the name of what is not defined."""
        super().__init__(missing)
        self.missing = missing


class UnresolvableError(Exception):
    """A value's template is broken; the text says how."""


@dataclass(frozen=True)
class Catalogue:
    """Every variable that a host may set."""

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    facts: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()

    def prefix(self, name: str) -> str:
        """Return the longest known prefix of a name, or an empty text."""
        return max((prefix for prefix in self.prefixes if name.startswith(prefix)), key=len, default="")


@lru_cache(maxsize=4)
def load_catalogue(root: Path) -> Catalogue:
    """Read every spec under a checkout or an installed collection. An unreadable spec is a problem, no crash."""
    options: dict[str, Mapping[str, Any]] = {}
    prefixes: dict[str, str] = {}
    problems: list[str] = []
    for path in sorted(root.glob("roles/*/meta/argument_specs.y*ml")):
        role = path.parents[1].name
        spec = _read(path, root, problems)
        declared = _dig(spec, "argument_specs", "main", "options")
        if declared is None:
            problems.append(f"{path.relative_to(root)}: the entry argument_specs.main.options is missing")
            continue
        prefixes[f"{role}_"] = f"roles/{role}/defaults/main.yml"
        for name, option in declared.items():
            if isinstance(option, Mapping) and (name not in options or str(name).startswith(f"{role}_")):
                options[str(name)] = option
    common = _read(root / "meta" / "variables.yml", root, problems)
    for prefix in common.get("prefixes") or ():
        prefixes[str(prefix)] = COMMON
    options.update(common.get("options") or {})
    for name, bounds in (common.get("bounds") or {}).items():
        if name in options:
            options[name] = {**options[name], **bounds}
        else:
            problems.append(f"meta/variables.yml: bounds are given for {name}, which no specification declares")
    return Catalogue(options, prefixes, frozenset(common.get("facts") or ()), tuple(problems))


def check_variables(
    catalogue: Catalogue,
    names: Iterable[str],
    resolve: Callable[[str], Any],
    *,
    where: Callable[[str], str] = lambda name: "",
    is_secret: Callable[[str], bool] = lambda name: False,
    required_prefix: str = "",
) -> list[str]:
    """Return a sentence for each variable of a host that is unknown, of a wrong type, or missing.

    ``resolve`` returns a variable's final value, or raises UndefinedYetError or UnresolvableError; ``where`` says
    where it is set. What is required is so for the variables with ``required_prefix``: whoever runs one stage alone
    need not set what only another one needs.
    """
    names = set(names)
    problems: list[str] = list(catalogue.problems)

    def needed_secret(name: str, option: Mapping[str, Any]) -> bool:
        """A secret comes from a vault and from no stage, so what it rests on must be there; but for another stage's."""
        concerned = name.startswith(required_prefix) or catalogue.prefixes.get(catalogue.prefix(name)) == COMMON
        return concerned and (bool(option.get("no_log")) or looks_secret(name))

    for name in sorted(names):
        option = catalogue.options.get(name)
        if option is None:
            if problem := _unknown(catalogue, name):
                problems.append(f"{_at(name, where)} {problem}")
            continue
        if name in catalogue.facts:
            continue
        try:
            value = resolve(name)
        except UndefinedYetError as error:
            if needed_secret(name, option) and _is_never_set(catalogue, error.missing):
                problems.append(
                    f"{_at(name, where)}: a value was expected, but it rests on {error.missing}, which is not defined: define that in "
                    "the inventory's vault file, or correct its name"
                )
            continue
        except UnresolvableError as error:
            problems.append(f"{_at(name, where)}: a value or a sound template was expected, {error}")
            continue
        secret = bool(option.get("no_log")) or is_secret(name) or looks_secret(name)
        for suffix, problem in value_problems(option, value, secret):
            joint = " " if problem.startswith("is unknown") else ": "
            problems.append(_at(name, where, suffix) + joint + problem)
    problems += [
        f"{name}: a value is required, none was found: set it in inventories/<site>/group_vars/nodes/"
        for name, option in sorted(catalogue.options.items())
        if option.get("required")
        and name.startswith(required_prefix)
        and name not in names
        and name not in catalogue.facts
    ]
    return problems


def _is_never_set(catalogue: Catalogue, name: str) -> bool:
    """Return whether nothing in a run will define a name: it is no fact of a stage, no variable of a role, none of Ansible's."""
    return (
        bool(name)
        and name not in catalogue.facts
        and not name.startswith(("_", "ansible_"))
        and not catalogue.prefix(name)
    )


def _unknown(catalogue: Catalogue, name: str) -> str:
    if name in catalogue.facts or name.startswith(("_", "ansible_")):
        return ""
    prefix = catalogue.prefix(name)
    if prefix:
        # Compared without the prefix, which would make any two of a role's variables look alike.
        rests = [known[len(prefix) :] for known in catalogue.options if known.startswith(prefix)]
        near = get_close_matches(name[len(prefix) :], rests, 1)
        hint = (
            f"did you mean {prefix}{near[0]}?" if near else f"{catalogue.prefixes[prefix]} lists those that there are"
        )
        return f"is unknown: {hint}"
    near = get_close_matches(name, catalogue.options, 1, _MISSPELT_PREFIX)
    return f"is unknown: did you mean {near[0]}?" if near else ""


def _at(name: str, where: Callable[[str], str], suffix: str = "") -> str:
    place = where(name)
    return f"{name}{suffix} ({place})" if place else f"{name}{suffix}"


def _read(path: Path, root: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader, in C
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        detail = " ".join(str(error).split())
        problems.append(f"{path.relative_to(root)}: a YAML mapping was expected, it cannot be read: {detail}")
        return {}
    return content if isinstance(content, Mapping) else {}


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _dig(tree: Any, *keys: str) -> Mapping[str, Any] | None:
    for key in keys:
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree if isinstance(tree, Mapping) else {}
