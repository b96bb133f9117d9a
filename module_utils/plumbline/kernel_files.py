"""Where a kernel wish outlives a restart: the files that Plumbline owns, their rivals, and the record of what was before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kernel_knobs import Setting
from .kernel_wish import normalise_key, normalise_value
from .tree import Tree

SYSCTL = "/etc/sysctl.d/95-plumbline.conf"
TMPFILES = "/etc/tmpfiles.d/95-plumbline.conf"
LIMITS = "/etc/security/limits.d/95-plumbline.conf"
UNIT = "/etc/systemd/system/plumbline-kernel-settings.service"
UNIT_WANTED = "/etc/systemd/system/multi-user.target.wants/plumbline-kernel-settings.service"
STATE = "/var/lib/plumbline/kernel_settings.json"

_HEADER = "# Managed by Plumbline (role kernel): change the inventory, not this file.\n"
# systemd's order of precedence between directories; a name found earlier hides the same name found later.
_SYSCTL_DIRECTORIES = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)


@dataclass(frozen=True)
class FileWish:
    """A file as it should be: *content*, or the target of a symbolic link, or neither for no file."""

    path: str
    content: str | None = None
    link: str | None = None

    def is_right(self, tree: Tree) -> bool:
        """True when the machine has it so."""
        if self.link is not None:
            return tree.link(self.path) == self.link
        if self.content is None and tree.link(self.path) is not None:
            return False  # a link that points nowhere reads as no file
        return current(tree, self.path) == self.content


def current(tree: Tree, path: str) -> str | None:
    """A file's text as it is, `None` when there is none."""
    raw = tree.raw(path)
    return None if raw is None else raw.decode("utf-8", "replace")


def files_of(live: list[Setting], limits: dict[str, str]) -> list[FileWish]:
    """The files that keep these settings over a restart; what a machine skips is in none of them."""
    kept = [setting for setting in live if not setting.skipped]
    sysctls = [f"{setting.pattern} = {setting.wanted}\n" for setting in kept if setting.kind == "sysctl"]
    writes = [f"w {setting.pattern} - - - - {setting.wanted}\n" for setting in kept if setting.kind == "file"]
    limit_lines = [
        # The wildcard does not reach root.
        f"{who} - {name} {value}\n"
        for name, value in limits.items()
        for who in ("*", "root")
    ]
    return [
        FileWish(SYSCTL, _HEADER + "".join(sysctls) if sysctls else None),
        FileWish(TMPFILES, _HEADER + "".join(writes) if writes else None),
        FileWish(UNIT, _unit(bool(sysctls), bool(writes)) if sysctls or writes else None),
        FileWish(UNIT_WANTED, link=UNIT) if sysctls or writes else FileWish(UNIT_WANTED),
        FileWish(LIMITS, _HEADER + "".join(limit_lines) if limit_lines else None),
    ]


def _unit(sysctl: bool, tmpfiles: bool) -> str:
    """The unit that applies both files once more, late in the boot."""
    commands = ""
    if sysctl:
        commands += f"ExecStart=/usr/lib/systemd/systemd-sysctl {SYSCTL}\n"
    if tmpfiles:
        commands += f"ExecStart=/usr/bin/systemd-tmpfiles --create {TMPFILES}\n"
    return (
        _HEADER
        + "# systemd applies both files early in the boot, where the CPU frequency driver may not have loaded yet, and not at\n"
        "# all in a container whose systemd-sysctl is masked. Once more, when the drivers are there.\n"
        "[Unit]\n"
        "Description=Kernel settings of Plumbline\n"
        "After=systemd-sysctl.service systemd-modules-load.service systemd-tmpfiles-setup.service\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        "RemainAfterExit=yes\n" + commands + "\n[Install]\n"
        "WantedBy=multi-user.target\n"
    )


def sysctl_rivals(tree: Tree, wanted: dict[str, str]) -> dict[str, str]:
    """Key -> sentence, for keys that a file read after Plumbline's sets to another value: that one would win at boot."""
    own = SYSCTL.rpartition("/")[2]
    by_name: dict[str, str] = {}
    for directory in _SYSCTL_DIRECTORIES:
        for name in tree.names(directory):
            if name.endswith(".conf") and name > own:
                by_name.setdefault(name, f"{directory}/{name}")
    # `sysctl --system` reads this one last, whatever its link in sysctl.d is called.
    paths = [by_name[name] for name in sorted(by_name)] + ["/etc/sysctl.conf"]
    last: dict[str, tuple[str, str]] = {}
    for path in paths:
        for key, value in _assignments(tree.text(path) or ""):
            last[key] = (value, path)
    return {
        key: f"sysctl {key}: {path} sets it to {value!r} and is read after {SYSCTL}, so a restart would undo "
        f"{wanted[key]!r}: remove that line, or take {key} out of the wish"
        for key, (value, path) in last.items()
        if key in wanted and value != wanted[key]
    }


def _assignments(text: str) -> list[tuple[str, str]]:
    found = []
    for line in text.splitlines():
        bare = line.strip()
        key, is_assignment, value = bare.partition("=")
        # A pattern yields to an assignment of the very key, wherever that stands (sysctl.d(5)).
        if bare[:1] not in ("#", ";", "") and is_assignment and "*" not in key:
            found.append((normalise_key(key.strip().lstrip("-").strip()), normalise_value(value)))
    return found


def load_state(tree: Tree) -> tuple[dict[str, Any], str]:
    """The record of earlier runs and a warning when it cannot be used; empty when there is none."""
    text = tree.text(STATE)
    if text is None:
        return {}, ""
    try:
        state = json.loads(text)
        if not isinstance(state, dict):
            raise ValueError("no dictionary")
        live = state.get("live", {})
        if not isinstance(live, dict) or not all(
            isinstance(entry, dict)
            and all(isinstance(entry.get(key, {}), dict) for key in ("before", "beside"))
            and "before" in entry
            and isinstance(entry.get("set"), str)
            for entry in live.values()
        ):
            raise ValueError("values of another shape")
        if not isinstance(state.get("arguments", []), list) or not isinstance(state.get("leaving", []), list):
            raise ValueError("arguments of another shape")
        if not isinstance(state.get("parts", {}), dict):
            raise ValueError("parts of another shape")
    except ValueError as error:
        return {}, f"{STATE} cannot be used ({error}): what was set before Plumbline is not known any more"
    return state, ""


def dump_state(state: dict[str, Any]) -> str:
    """The record as a file."""
    return json.dumps(state, indent=1, sort_keys=True) + "\n"


class Transaction:
    """Writes live files and persistent ones, and puts back all of them when one is refused."""

    def __init__(self, tree: Tree) -> None:
        """Take the tree to write in."""
        self.tree = tree
        self._undo: list[tuple[str, str | None, str | None]] = []
        self._made: list[Path] = []

    def apply(self, wish: FileWish) -> None:
        """Make a file as wished, atomically; raises OSError."""
        path = wish.path
        self._undo.append((path, current(self.tree, path), self.tree.link(path)))
        self._put(path, wish.content, wish.link)

    def rollback(self) -> list[str]:
        """Put every file back as it was, last one first; returns what could not be put back."""
        faults = []
        for path, content, link in reversed(self._undo):
            try:
                self._put(path, None if link is not None else content, link)
            except OSError as error:
                faults.append(f"{path} could not be put back ({error.strerror})")
        for directory in reversed(self._made):
            if not any(directory.iterdir()):
                directory.rmdir()
        return faults

    def _put(self, path: str, content: str | None, link: str | None) -> None:
        target = Path(self.tree.path(path))
        if content is None and link is None:
            target.unlink(missing_ok=True)
            return
        missing = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._made += reversed(missing)
        temporary = target.with_name(f".{target.name}.plumbline")
        temporary.unlink(missing_ok=True)
        if link is not None:
            temporary.symlink_to(link)
        else:
            temporary.write_text(content or "", encoding="utf-8")
            temporary.chmod(0o644)
        temporary.replace(target)
