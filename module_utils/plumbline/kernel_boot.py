"""Which kernel boots next, by GRUB's own configuration or by boot loader entries, and which are installed."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .kernel_files import current
from .tree import Tree
from .version_compare import compare_versions

GRUB_CFG = "/boot/grub/grub.cfg"
ENTRIES = "/boot/loader/entries"
_BLS_ENVIRONMENTS = ("/boot/grub2/grubenv", "/boot/grub/grubenv")
_BLS_CONFIGURATIONS = ("/boot/grub2/grub.cfg", GRUB_CFG)
# Of the largest kernel that is there; an initramfs is written beside the one that it replaces.
_ROOM = 1.25
_ROOM_LEAST = 32 << 20
_TITLE = re.compile(r"""^(menuentry|submenu)\s+(?:'([^']*)'|"([^"]*)")""")
_ID = re.compile(r"""\$menuentry_id_option\s+'([^']*)'""")
_LINUX = re.compile(r"^\s*linux(?:16|efi)?\s+(\S+)")
_RELEASE = re.compile(r"vmlinu[xz]-(\S+)$")
# grub-mkconfig writes one such line for a single next boot, one for the default.
_DEFAULT = re.compile(r'^\s*set default="([^"]*)"', re.MULTILINE)


@dataclass
class Entry:
    """An entry of GRUB's menu, or a menu below it."""

    title: str
    name: str
    release: str = ""
    children: list[Entry] = field(default_factory=list)


def installed_kernels(tree: Tree) -> list[str]:
    """Releases with an image and modules, the newest first."""
    found = [
        release
        for release in tree.names("/lib/modules")
        if re.search(r"\d", release) and tree.exists(f"/boot/vmlinuz-{release}")
    ]
    return sorted(found, key=functools.cmp_to_key(compare_versions), reverse=True)


def room_fault(tree: Tree) -> str:
    """One sentence when /boot has no room for one more kernel with its initramfs; a package that runs out of it is left half done."""
    sizes = [
        sum(_size(tree, f"/boot/{name}") for name in (f"vmlinuz-{one}", f"initrd.img-{one}", f"initramfs-{one}.img"))
        for one in installed_kernels(tree)
    ]
    needed = max(int(max(sizes, default=0) * _ROOM), _ROOM_LEAST)
    try:
        found = os.statvfs(tree.path("/boot"))
    except OSError:
        return ""
    free = found.f_bavail * found.f_frsize
    if free >= needed:
        return ""
    return (
        f"boot: expected {needed >> 20} MiB free in /boot for a kernel and its initramfs, found {free >> 20} MiB: remove a kernel that is "
        "not needed any more (apt autoremove, dnf remove --oldinstallonly), or make /boot larger"
    )


def _size(tree: Tree, path: str) -> int:
    try:
        return Path(tree.path(path)).stat().st_size
    except OSError:
        return 0


def next_kernel(tree: Tree) -> str:
    """The kernel that boots next: the boot loader's default where it can be read, else the newest, else the running one."""
    running = tree.text("/proc/sys/kernel/osrelease") or ""
    kernels = installed_kernels(tree)
    found = _next_of_entries(tree) if uses_entries(tree) else _next_of_grub(tree)
    return found or (kernels[0] if kernels else running)


def uses_entries(tree: Tree) -> bool:
    """True where boot loader entries (BLS) are booted and grubby edits them."""
    entries = [name for name in tree.names(ENTRIES) if name.endswith(".conf")]
    return bool(entries) and (tree.exists("/usr/sbin/grubby") or tree.exists("/sbin/grubby"))


def grub_entry(tree: Tree, release: str) -> str:
    """What GRUB_DEFAULT must be to boot a kernel (`MENU>ENTRY`, by their ids); empty where grub.cfg has no such entry."""
    found = [
        path
        for path, entry in _walk(parse_menu(current(tree, GRUB_CFG) or ""), "")
        if entry.release == release and "recovery" not in entry.name + entry.title
    ]
    # The plain entry on top boots whatever is newest; the one that names a release stays with it.
    return next((path for path in found if release in path), next(iter(found), ""))


def parse_menu(text: str) -> list[Entry]:
    """The menu of a grub.cfg, as grub-mkconfig writes it."""
    top = Entry("", "")
    # What each open brace belongs to: an entry, or nothing that counts (a function).
    stack: list[Entry | None] = [top]
    for line in text.splitlines():
        bare = line.strip()
        match = _TITLE.match(bare)
        image = _LINUX.match(line)
        if match:
            title = match.group(2) or match.group(3) or ""
            named = _ID.search(bare)
            entry = Entry(title, named.group(1) if named else title)
            if stack[-1] is not None:
                stack[-1].children.append(entry)
            stack.append(entry)
        elif bare.endswith("{") and not bare.startswith("#"):
            stack.append(None)
        elif bare == "}" and len(stack) > 1:
            stack.pop()
        elif image and stack[-1] is not None:
            release = _RELEASE.search(image.group(1))
            stack[-1].release = release.group(1) if release else ""
    return top.children


def environment(tree: Tree, path: str) -> dict[str, str]:
    """A GRUB environment block."""
    lines = (current(tree, path) or "").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def _walk(entries: list[Entry], prefix: str) -> list[tuple[str, Entry]]:
    found = []
    for entry in entries:
        path = f"{prefix}>{entry.name}" if prefix else entry.name
        found.append((path, entry))
        found += _walk(entry.children, path)
    return found


def _next_of_grub(tree: Tree) -> str:
    text = current(tree, GRUB_CFG) or ""
    menu = parse_menu(text)
    env = environment(tree, "/boot/grub/grubenv")
    defaults = [value for value in _DEFAULT.findall(text) if value != "${next_entry}"]
    wanted = env.get("next_entry") or (defaults[-1] if defaults else "0")
    if wanted == "${saved_entry}":
        wanted = env.get("saved_entry") or "0"
    entry = _resolve(menu, wanted)
    # GRUB boots the first entry where it does not find the wanted one.
    if entry is None and menu:
        entry = menu[0]
    while entry is not None and entry.children:
        entry = entry.children[0]
    return entry.release if entry else ""


def _resolve(menu: list[Entry], path: str) -> Entry | None:
    """The entry of `2`, `1>2`, `title`, `submenu-id>entry-id`."""
    entry: Entry | None = None
    for part in path.split(">"):
        if part.isdigit():
            entry = menu[int(part)] if int(part) < len(menu) else None
        else:
            entry = next((one for one in menu if part in (one.name, one.title)), None)
        if entry is None:
            return None
        menu = entry.children
    return entry


def _next_of_entries(tree: Tree) -> str:
    """The default that grub.cfg names, mostly `${saved_entry}` as grubby leaves it; else the first entry, as GRUB sorts them."""
    env: dict[str, str] = {}
    for path in reversed(_BLS_ENVIRONMENTS):
        env.update(environment(tree, path))
    defaults = [value for value in _DEFAULT.findall(_bls_cfg(tree)) if value != "${next_entry}"]
    wanted = defaults[-1] if defaults else "${saved_entry}"
    if wanted == "${saved_entry}":
        wanted = env.get("saved_entry", "")
    wanted = env.get("next_entry") or wanted
    entries = sorted_entries(tree)
    if wanted in entries:
        return entry_release(tree, f"{wanted}.conf")
    # GRUB boots the first entry where it does not find the wanted one.
    place = int(wanted) if wanted.isdigit() and int(wanted) < len(entries) else 0
    return entry_release(tree, f"{entries[place]}.conf") if entries else ""


def _bls_cfg(tree: Tree) -> str:
    return next((text for path in _BLS_CONFIGURATIONS for text in [current(tree, path)] if text), "")


def sorted_entries(tree: Tree) -> list[str]:
    """The entries' names in the order of GRUB's menu: as those of packages, by name (the machine's id), version and release.

    So an entry that another machine's id begins, left behind by an image, may stand before all of this machine's.
    """
    names = [name[: -len(".conf")] for name in tree.names(ENTRIES) if name.endswith(".conf")]
    return sorted(names, key=functools.cmp_to_key(_compare_entries), reverse=True)


def _compare_entries(left: str, right: str) -> int:
    for one, other in zip(_parts_of_entry(left), _parts_of_entry(right)):
        if one != other:
            # What holds no digit is older than a version (a rescue entry), as letters are for RPM.
            has_digits = [bool(re.search(r"\d", part)) for part in (one, other)]
            found = compare_versions(one, other) if all(has_digits) else has_digits[0] - has_digits[1]
            if found:
                return found
    return (left > right) - (left < right)


def _parts_of_entry(name: str) -> tuple[str, str, str]:
    head, _, release = name.rpartition("-")
    identity, _, version = head.rpartition("-")
    return identity, version, release


def entry_release(tree: Tree, name: str) -> str:
    """The kernel of a boot loader entry."""
    for line in (tree.text(f"{ENTRIES}/{name}") or "").splitlines():
        keyword, _, rest = line.strip().partition(" ")
        match = _RELEASE.search(rest.strip()) if keyword == "linux" else None
        if match:
            return match.group(1)
    return ""
