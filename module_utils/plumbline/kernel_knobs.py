"""The files of /proc/sys and /sys behind a wish: what is there, what it allows, what may be written from here."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .kernel_pairs import partner_path
from .kernel_wish import KernelError, Wish, key_path, nearest, normalise_value
from .node import container_type
from .tree import Tree

# Inode of the first PID namespace (PROC_PID_INIT_INO in the kernel): any other means a container, whatever its marks say.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
# Belongs to no network namespace but the first one: where it can be seen, the network is the host's.
_ONLY_IN_THE_HOSTS_NETWORK = "/proc/sys/net/core/netdev_max_backlog"
_CPU = "/sys/devices/system/cpu"
_LISTING_MAX = 20000
_NUMBER = re.compile(r"^-?\d+$")
# A CPU mask is hexadecimal, in groups divided by commas.
_NUMBER_OR_MASK = re.compile(r"^-?(0x)?[0-9a-fA-F,]+$")


@dataclass(frozen=True)
class Knob:
    """One line of the table of what /sys offers."""

    pattern: str
    # "choice": the file shows all words with the present one in brackets; "word": a neighbour file lists them; "status": the
    # words are fixed; "number"
    kind: str
    absent: str
    # Name of the neighbour file, or the fixed words.
    choices_beside: str = ""


KNOBS: dict[str, Knob] = {
    "transparent_hugepage.enabled": Knob(
        "/sys/kernel/mm/transparent_hugepage/enabled", "choice", "the kernel was built without transparent huge pages"
    ),
    "transparent_hugepage.defrag": Knob(
        "/sys/kernel/mm/transparent_hugepage/defrag", "choice", "the kernel was built without transparent huge pages"
    ),
    "transparent_hugepage.shmem_enabled": Knob(
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "choice",
        "the kernel was built without transparent huge pages for shared memory",
    ),
    # Before the governor: another mode offers other governors.
    "cpu.intel_pstate": Knob(
        f"{_CPU}/intel_pstate/status", "status", "the driver intel_pstate is not there", "active passive off"
    ),
    "cpu.amd_pstate": Knob(
        f"{_CPU}/amd_pstate/status", "status", "the driver amd_pstate is not there", "active passive guided disable"
    ),
    "cpu.governor": Knob(
        f"{_CPU}/cpufreq/policy*/scaling_governor",
        "word",
        "the kernel controls no CPU frequency here (no cpufreq policy: a virtual machine, or the firmware keeps control)",
        "scaling_available_governors",
    ),
    "cpu.energy_performance_preference": Knob(
        f"{_CPU}/cpufreq/policy*/energy_performance_preference",
        "word",
        "the CPU frequency driver has no energy performance preference",
        "energy_performance_available_preferences",
    ),
    "cpu.resume_latency_us": Knob(
        f"{_CPU}/cpu[0-9]*/power/pm_qos_resume_latency_us",
        "number",
        "the kernel offers no per-CPU limit of the resume latency",
    ),
    "uncore.minimum_khz": Knob(
        f"{_CPU}/intel_uncore_frequency/package_*/min_freq_khz",
        "number",
        "the kernel offers no uncore frequency control (driver intel_uncore_frequency)",
    ),
    "uncore.maximum_khz": Knob(
        f"{_CPU}/intel_uncore_frequency/package_*/max_freq_khz",
        "number",
        "the kernel offers no uncore frequency control (driver intel_uncore_frequency)",
    ),
    "pcie_aspm_policy": Knob(
        "/sys/module/pcie_aspm/parameters/policy", "choice", "the kernel was built without PCIe ASPM"
    ),
}


@dataclass
class Setting:
    """One live setting: the files it lives in, what they hold and what they should."""

    name: str
    wanted: str
    # A sysctl, or a file pattern of /sys, as its persistence writes it.
    kind: str
    pattern: str
    paths: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    # The other one of a pair, which a write to this one clears.
    beside: dict[str, str] = field(default_factory=dict)
    skipped: str = ""

    @property
    def is_right(self) -> bool:
        """True when every file holds what is wanted."""
        return bool(self.paths) and all(self.before[path] == self.wanted for path in self.paths)


class Live:
    """Reads and writes the machine's live files; a test puts a kernel that refuses in its place."""

    def __init__(self, tree: Tree) -> None:
        """Take the tree whose files are the machine's."""
        self.tree = tree

    def read(self, path: str) -> str | None:
        """The present value of a file, `None` when it cannot be read."""
        text = self.tree.text(path)
        return None if text is None else present(text)

    def write(self, path: str, value: str) -> None:
        """Write a value as the kernel expects it: one write of one line. Raises OSError."""
        # Unbuffered, so that the kernel's refusal is this call's error.
        with open(self.tree.path(path), "wb", buffering=0) as stream:  # noqa: PTH123
            stream.write(value.encode() + b"\n")


def present(text: str) -> str:
    """The value that a file of /proc/sys or /sys tells: the word in brackets where it lists choices."""
    chosen = re.search(r"\[([^\]]+)\]", text)
    return chosen.group(1) if chosen else normalise_value(text)


def choices(text: str) -> list[str]:
    """All words of `always [madvise] never`; empty when the file lists none."""
    return text.replace("[", "").replace("]", "").split() if "[" in text else []


def container_evidence(tree: Tree) -> str:
    """Why this is taken for a container; empty on a machine of its own."""
    kind = container_type(tree)
    if kind:
        return f"container ({kind})"
    namespace = tree.link("/proc/self/ns/pid")
    if namespace and namespace != _FIRST_PID_NAMESPACE:
        return f"container (PID namespace {namespace})"
    return ""


def has_own_network(tree: Tree) -> bool:
    """True when a container has a network namespace of its own, whose sysctls are not the host's."""
    return tree.exists("/proc/sys/net") and not tree.exists(_ONLY_IN_THE_HOSTS_NETWORK)


def plan_live(tree: Tree, wish: Wish, container: str) -> list[Setting]:
    """The live settings of a wish, read and checked; raises KernelError before anything could have been written.

    *container* is the evidence for a container: then whatever belongs to the host is skipped and never written.
    """
    faults: list[str] = []
    settings: list[Setting] = []
    wishes: list[_Sysctl | _File] = [
        *(_Sysctl(tree, key, wanted, optional, container) for key, (wanted, optional) in wish.sysctl.items()),
        *(_File(tree, name, wish.knobs[name], container, wish.knobs) for name in KNOBS if name in wish.knobs),
    ]
    for one in wishes:
        try:
            settings.append(one.plan())
        except KernelError as error:
            faults.append(str(error))
    if faults:
        raise KernelError("; ".join(faults))
    return settings


@dataclass
class _Sysctl:
    """A key of /proc/sys."""

    tree: Tree
    key: str
    wanted: str
    optional: bool
    container: str

    def plan(self) -> Setting:
        """Check the key and read it; raises KernelError."""
        path = key_path(self.key)
        setting = Setting(name=self.key, wanted=self.wanted, kind="sysctl", pattern=self.key)
        setting.skipped = self._reason_to_skip(path)
        if setting.skipped:
            return setting
        if not self.tree.exists(path):
            raise KernelError(_unknown_key(self.tree, self.key))
        if Path(self.tree.path(path)).is_dir():
            some = ", ".join(self.tree.names(path)[:6])
            raise KernelError(f"sysctl {self.key}: expected a key, found a group of keys: name one of {some}")
        text = self.tree.text(path)
        if text is None:
            raise KernelError(f"sysctl {self.key}: cannot be read back, so it is no setting: take it out of the wish")
        if _is_read_only(self.tree, path):
            raise KernelError(
                f"sysctl {self.key}: expected a key that can be written, found it read only: take it out of the wish"
            )
        setting.paths = [path]
        setting.before = {path: normalise_value(text)}
        other = partner_path(path)
        if other and self.tree.exists(other):
            setting.beside = {other: normalise_value(self.tree.text(other) or "0")}
        if _all_match(_NUMBER, setting.before[path]) and not _all_match(_NUMBER_OR_MASK, self.wanted):
            raise KernelError(
                f"sysctl {self.key}: expected a number as in the present {setting.before[path]!r}, found {self.wanted!r}"
            )
        return setting

    def _reason_to_skip(self, path: str) -> str:
        is_there = self.tree.exists(path)
        is_net = self.key.startswith("net.")
        if self.container and is_net and not has_own_network(self.tree):
            return f"{self.container}: its network is the host's"
        if self.container and is_net and not is_there:
            return (
                f"{self.container}: its network namespace does not have this key (the host has it, or it is misspelt)"
            )
        # An unprivileged container has all of /proc/sys mounted read only, whatever the modes say.
        if (
            self.container
            and is_net
            and (_is_read_only(self.tree, path) or not os.access(self.tree.path(path), os.W_OK))
        ):
            return f"{self.container}: read only here, set it on the host"
        if not is_there and self.optional:
            return "the kernel does not have this key"
        # A key that even the host's kernel lacks is misspelt, and a container sees that too: not skipped.
        return f"{self.container}: this belongs to the host" if self.container and is_there and not is_net else ""


@dataclass
class _File:
    """A row of the table of /sys."""

    tree: Tree
    name: str
    wanted: str
    container: str
    knobs: dict[str, str]

    def plan(self) -> Setting:
        """Check the value against what the files allow and read them; raises KernelError."""
        knob = KNOBS[self.name]
        setting = Setting(name=self.name, wanted=self.wanted, kind="file", pattern=knob.pattern)
        paths = _expand(self.tree, knob.pattern)
        if self.container:
            setting.skipped = f"{self.container}: this belongs to the host"
        elif not paths:
            setting.skipped = knob.absent
        if knob.kind == "number" and not self.wanted.isdigit():
            raise KernelError(f"{self.name}: expected a whole number, found {self.wanted!r}")
        for path in paths:
            text = self.tree.text(path)
            if text is None and not setting.skipped:
                raise KernelError(f"{self.name}: {path} cannot be read: run with root's rights")
            allowed = self._allowed(path, text or "")
            if allowed and self.wanted not in allowed:
                raise KernelError(
                    f"{self.name}: expected one of {', '.join(allowed)}, found {self.wanted!r}"
                    f"{nearest(self.wanted, allowed)}"
                )
            if not setting.skipped:
                setting.paths.append(path)
                setting.before[path] = present(text or "")
        return setting

    def _allowed(self, path: str, text: str) -> list[str]:
        knob = KNOBS[self.name]
        if knob.kind == "status":
            return knob.choices_beside.split()
        if knob.kind == "word" and self._mode_will_change():
            # The governors and preferences of a mode are known when it is there; reading back tells.
            return []
        if knob.kind == "word":
            return (self.tree.text(f"{path.rpartition('/')[0]}/{knob.choices_beside}") or "").split()
        return choices(text) if knob.kind == "choice" else []

    def _mode_will_change(self) -> bool:
        modes = ("cpu.intel_pstate", "cpu.amd_pstate")
        return any(
            mode in self.knobs and self.tree.text(KNOBS[mode].pattern) not in (None, self.knobs[mode]) for mode in modes
        )


def _unknown_key(tree: Tree, key: str) -> str:
    return f"sysctl {key}: the kernel {tree.text('/proc/sys/kernel/osrelease') or ''} has no such key" + (
        nearest(key, known_keys(tree, key)) or ": correct it or take it out of the wish"
    )


def known_keys(tree: Tree, key: str) -> list[str]:
    """Keys that the kernel has, for a hint: those of the same first part, else all."""
    top = key.partition(".")[0]
    base = f"/proc/sys/{top}" if tree.exists(f"/proc/sys/{top}") else "/proc/sys"
    found: list[str] = []
    for directory, _, files in os.walk(tree.path(base)):
        relative = directory[len(tree.path("/proc/sys")) :].lstrip("/")
        # Each network interface repeats the same keys.
        if "/conf/" in relative + "/" and not relative.endswith(("all", "default")):
            continue
        found += [f"{relative}/{name}".lstrip("/").translate(str.maketrans("./", "/.")) for name in files]
        if len(found) > _LISTING_MAX:
            break
    return found


def _is_read_only(tree: Tree, path: str) -> bool:
    """True when the mode has no write bit: root passes os.access() there, and is refused by the kernel afterwards."""
    try:
        return not Path(tree.path(path)).stat().st_mode & 0o222
    except OSError:
        return True


def _all_match(pattern: re.Pattern[str], text: str) -> bool:
    return bool(text) and all(pattern.match(word) for word in text.split())


def _expand(tree: Tree, pattern: str) -> list[str]:
    """Files that match, as the machine names them, in the order of their numbers."""
    prefix = len(tree.root) - 1
    found = [path[prefix:] for path in glob.glob(tree.path(pattern))]  # noqa: PTH207 (an absolute pattern)
    return sorted(found, key=lambda path: [int(part) if part.isdigit() else 0 for part in re.split(r"(\d+)", path)])
