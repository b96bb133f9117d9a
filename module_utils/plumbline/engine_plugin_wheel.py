"""A plugin's directory as a wheel, on the controller: made by reading, so that nothing of it is run and no network is needed."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomllib

from .engine_plugins import PluginError, PluginWheel, record_digest

_LEFT_OUT = {"__pycache__", "tests", "test", "build", "dist"}
_COMPILED = (".so", ".pyd", ".c", ".cpp", ".pyx")
_EPOCH = (1980, 1, 1, 0, 0, 0)
# A plugin travels within the call of the module.
_LARGEST_BYTES = 20_000_000


def plugin_wheel(wanted: str | Mapping[str, Any], shipped: Path) -> PluginWheel:
    """Return the wheel of a plugin: a name below `shipped`, or a mapping with `path` (a directory, or a wheel with its `sha256`).

    Raises PluginError with one sentence where there is none or it is not the one that was meant.
    """
    asked = (
        {"path": shipped / wanted} if isinstance(wanted, str) and re.fullmatch(r"[A-Za-z0-9_-]+", wanted) else wanted
    )
    if not isinstance(asked, Mapping) or not asked.get("path") or set(asked) - {"path", "sha256"}:
        raise PluginError(
            f"engine_plugins: expected the name of a plugin that comes with Plumbline ({_names(shipped)}) or a mapping with path and, "
            f"for a wheel, sha256, found {wanted!r}: correct it"
        )
    path = Path(str(asked["path"])).expanduser()
    if path.is_dir():
        return pack(path)
    if not path.is_file():
        raise PluginError(
            f"engine_plugins: expected a plugin at {path} on the controller, found none: correct it; Plumbline comes with {_names(shipped)}"
        )
    if path.stat().st_size > _LARGEST_BYTES:
        raise PluginError(
            f"engine_plugins: expected the wheel {path} to have at most {_LARGEST_BYTES} bytes, found {path.stat().st_size}: put it into a "
            "lock of your own (tools/lock-engine, engine_lock_file)"
        )
    content = path.read_bytes()
    expected, found = str(asked.get("sha256") or "").lower(), hashlib.sha256(content).hexdigest()
    if expected != found:
        raise PluginError(
            f"engine_plugins: expected the wheel {path} with its sha256 {expected or '(none given)'}, found {found}: "
            "look where it comes from, then name the right one"
        )
    wheel = PluginWheel(path.name, content)
    wheel.record()
    return wheel


def pack(directory: Path) -> PluginWheel:
    """Make the wheel of a directory with pyproject.toml and packages. The same files give the same bytes."""
    project = _project(directory)
    name, version = str(project["name"]), str(project["version"])
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}"
    files = _package_files(directory)
    if not files:
        raise PluginError(
            f"Expected packages (directories with __init__.py) in the plugin {directory}, found none: add them"
        )
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = _metadata(project)
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: plumbline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = _entry_points(project)
    rows = [f"{path},{record_digest(content)},{len(content)}" for path, content in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in sorted(files.items()):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return PluginWheel(f"{stem}-py3-none-any.whl", buffer.getvalue())


def _project(directory: Path) -> dict[str, Any]:
    place = directory / "pyproject.toml"
    try:
        project = tomllib.loads(place.read_text(encoding="utf-8")).get("project", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PluginError(f"Expected the plugin's {place} to be readable, found {error}: correct it") from None
    for key in ("name", "version"):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", str(project.get(key, ""))):
            raise PluginError(
                f"Expected project.{key} in {place}, found {project.get(key)!r}: write it there (dynamic ones are not read)"
            )
    return dict(project)


def _package_files(directory: Path) -> dict[str, bytes]:
    files = {}
    for package in sorted(directory.iterdir()):
        if package.name in _LEFT_OUT or not (package / "__init__.py").is_file():
            continue
        for path in sorted(package.rglob("*")):
            if _LEFT_OUT & set(path.relative_to(directory).parts) or not path.is_file() or path.suffix == ".pyc":
                continue
            if path.suffix in _COMPILED:
                raise PluginError(
                    f"Expected the plugin {directory} to be pure Python, found {path.name}: build a wheel of it for a lock of your own "
                    "(engine_lock_file)"
                )
            files[path.relative_to(directory).as_posix()] = path.read_bytes()
    return files


def _metadata(project: Mapping[str, Any]) -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    if project.get("requires-python"):
        lines.append(f"Requires-Python: {project['requires-python']}")
    lines += [f"Requires-Dist: {requirement}" for requirement in project.get("dependencies", [])]
    return ("\n".join(lines) + "\n").encode()


def _entry_points(project: Mapping[str, Any]) -> bytes:
    lines = []
    for group, entries in sorted(project.get("entry-points", {}).items()):
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in sorted(entries.items())), ""]
    return "\n".join(lines).encode()


def _names(shipped: Path) -> str:
    found = sorted(path.parent.name for path in shipped.glob("*/pyproject.toml"))
    return ", ".join(found) or "none"
