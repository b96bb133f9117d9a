"""A module's documentation as Ansible reads it: with the fragments that it names."""

from __future__ import annotations

import importlib
from typing import Any

import yaml

_FRAGMENTS = "ansible_collections.plumbline.plumbline.plugins.doc_fragments"


def attributes(documentation: dict[str, Any]) -> dict[str, Any]:
    """What the module says of check mode and diff mode, itself or by a fragment."""
    found: dict[str, Any] = {}
    for name in documentation.get("extends_documentation_fragment", []):
        fragment = importlib.import_module(f"{_FRAGMENTS}.{name.rpartition('.')[2]}").ModuleDocFragment
        found.update(yaml.safe_load(fragment.DOCUMENTATION).get("attributes", {}))
    return {**found, **documentation.get("attributes", {})}
