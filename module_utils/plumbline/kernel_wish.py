"""What a site wishes of a kernel: a dictionary from YAML, checked for shape before the machine is looked at."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any

# The wish's keys; a dictionary's known keys, or () for a plain value. `sysctl` takes any key.
OPTIONS: dict[str, tuple[str, ...]] = {
    "sysctl": (),
    "numa_balancing": (),
    "transparent_hugepage": ("enabled", "defrag", "shmem_enabled"),
    "cpu": ("intel_pstate", "amd_pstate", "governor", "energy_performance_preference", "resume_latency_us"),
    "uncore": ("minimum_khz", "maximum_khz"),
    "pcie_aspm_policy": (),
    "limits": ("nofile", "memlock"),
    "arguments": (),
    "minimum_version": (),
    "cgroup_version": (),
    "boot": ("release", "hold"),
    "hold_back": (),
    "slice": ("housekeeping_cpus", "housekeeping_cores_per_node", "numa_nodes", "memory_max", "confine_system"),
    "irqbalance": ("enabled", "banned_cpus"),
    "tuned": (),
}
# What is no live setting, but files and commands of its own (kernel_parts.py). Booleans are booleans there.
_FLAGS = ("boot.hold", "slice.confine_system", "irqbalance.enabled")
_CPU_LIST = re.compile(r"^\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*$")
_SHAPES: dict[str, tuple[re.Pattern[str], str]] = {
    "boot.release": (
        re.compile(r"^\d+\.\d+[A-Za-z0-9._+~-]*$"),
        "a kernel release as uname -r prints it, such as 6.1.0-27-amd64",
    ),
    "slice.housekeeping_cpus": (_CPU_LIST, "a list of CPUs such as 0-1,64-65, quoted"),
    "slice.housekeeping_cores_per_node": (re.compile(r"^\d{1,3}$"), "a number of cores"),
    "slice.numa_nodes": (re.compile(r"^all$|" + _CPU_LIST.pattern), "all, or a list of NUMA nodes such as 0-1, quoted"),
    "slice.memory_max": (
        re.compile(r"^(?:[1-9]\d*[KMGT]?|[1-9]\d?%|100%|infinity)$"),
        "a size such as 64G, a share such as 95%, or infinity",
    ),
    "irqbalance.banned_cpus": (re.compile(r"^slice$|" + _CPU_LIST.pattern), "slice, or a list of CPUs such as 2-31"),
    "tuned": (re.compile(r"^(?:refuse|profile)$"), "refuse or profile"),
}
# The beginning of a package's name.
_PACKAGE = re.compile(r"^[a-z0-9][a-z0-9+.-]+$")

_SYSCTL_KEY = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.:@/*+-]*$")
# What survives a shell assignment in double quotes and GRUB's own parser unchanged.
_ARGUMENT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(=[A-Za-z0-9_.,:/=@%+~-]*)?$")
# These belong to the boot loader's entry, not to a site's tuning.
_ARGUMENTS_OF_THE_ENTRY = ("BOOT_IMAGE", "root", "ro", "rw", "init", "initrd", "rdinit", "resume")
_VERSION = re.compile(r"^\d+(\.\d+){0,3}$")


class KernelError(ValueError):
    """One sentence for the user: what was expected, what was found, what to do."""


@dataclass
class Wish:
    """A wish whose shape is right; values are the strings that the kernel would print. An absent one is left alone."""

    # Key with dots -> (wanted, optional); an optional key that the kernel lacks is skipped, not refused.
    sysctl: dict[str, tuple[str, bool]] = field(default_factory=dict)
    # "transparent_hugepage.enabled", "cpu.governor", "pcie_aspm_policy"... -> wanted
    knobs: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    minimum_version: str = ""
    cgroup_version: str = ""
    # "boot.release", "slice.memory_max"... -> wanted; a flag is "yes" or "no"
    parts: dict[str, str] = field(default_factory=dict)
    # Beginnings of the names of packages that nobody upgrades unattended.
    hold_back: list[str] = field(default_factory=list)


def parse_wish(raw: dict[str, Any]) -> Wish:
    """The wish behind a dictionary from YAML; raises KernelError naming every fault in one sentence."""
    faults: list[str] = []
    wish = Wish()
    for name, value in raw.items():
        if name not in OPTIONS:
            faults.append(f"expected one of {', '.join(OPTIONS)}, found {name!r}{nearest(str(name), OPTIONS)}")
        elif value is not None:
            faults += _take(wish, name, value)
    if faults:
        raise KernelError("; ".join(faults))
    return wish


def normalise_key(key: str) -> str:
    """A sysctl key with dots between its parts, as sysctl.d(5) reads it: the first separator tells which it is.

    `net/ipv4/conf/eth0.100/rp_filter` and `net.ipv4.conf.eth0/100.rp_filter` are the same key.
    """
    first = re.search(r"[./]", key)
    if first and first.group() == "/":
        return key.translate(str.maketrans("./", "/."))
    return key


def key_path(key: str) -> str:
    """The file below /proc/sys of a key in dotted form."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def normalise_value(text: str) -> str:
    """A value as compared: the kernel separates several numbers by tabs, people by spaces."""
    return " ".join(text.split())


def nearest(word: str, known: Any) -> str:
    """A hint ` (did you mean X?)` or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def _take(wish: Wish, name: str, value: Any) -> list[str]:
    """Put one option into the wish; returns the faults."""
    if name == "sysctl":
        return _take_sysctl(wish, value)
    if name == "arguments":
        return _take_arguments(wish, value)
    if name == "hold_back":
        return _take_hold_back(wish, value)
    if OPTIONS[name]:
        return _take_group(wish, name, value)
    text, faults = _scalar(name, value)
    if faults:
        return faults
    if name == "numa_balancing":
        # Not every kernel is built with it.
        wish.sysctl["kernel.numa_balancing"] = (text, True)
    elif name == "minimum_version":
        if not _VERSION.match(text):
            faults = [f"minimum_version: expected a version such as 5.15, found {text!r}"]
        wish.minimum_version = text
    elif name == "cgroup_version":
        if text not in ("1", "2"):
            faults = [f"cgroup_version: expected 1 or 2, found {text!r}"]
        wish.cgroup_version = text
    elif name in _SHAPES:
        faults = _take_part(wish, name, text)
    else:
        wish.knobs[name] = text
    return faults


def _take_sysctl(wish: Wish, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [f"sysctl: expected a dictionary of keys and values, found {_kind(value)}"]
    faults: list[str] = []
    for raw_key, raw_value in value.items():
        if raw_value is None:
            continue
        written = str(raw_key)
        optional = written.startswith("-")
        key = normalise_key(written.lstrip("-"))
        if not _SYSCTL_KEY.match(key) or ".." in key or "//" in key or "*" in key:
            faults.append(f"sysctl: expected a key such as vm.swappiness, found {written!r}")
            continue
        if key in wish.sysctl:
            faults.append(f"sysctl: {key} is given twice")
            continue
        text, fault = _scalar(f"sysctl {key}", raw_value)
        faults += fault
        if not fault:
            wish.sysctl[key] = (text, optional)
    return faults


def _take_group(wish: Wish, name: str, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [f"{name}: expected a dictionary with {', '.join(OPTIONS[name])}, found {_kind(value)}"]
    faults: list[str] = []
    for key, raw in value.items():
        if key not in OPTIONS[name]:
            faults.append(
                f"{name}: expected one of {', '.join(OPTIONS[name])}, found {key!r}{nearest(str(key), OPTIONS[name])}"
            )
            continue
        if raw is None:
            continue
        if f"{name}.{key}" in _FLAGS:
            if isinstance(raw, bool):
                wish.parts[f"{name}.{key}"] = "yes" if raw else "no"
            else:
                faults.append(f"{name}.{key}: expected true or false, found {raw!r}")
            continue
        text, fault = _scalar(f"{name}.{key}", raw)
        faults += fault
        if fault:
            continue
        if name == "limits":
            if not (text.isdigit() and int(text) > 0) and not (key == "memlock" and text == "unlimited"):
                expected = "a positive number of KiB or unlimited" if key == "memlock" else "a positive number of files"
                faults.append(f"limits.{key}: expected {expected}, found {text!r}")
            wish.limits[key] = text
        elif f"{name}.{key}" in _SHAPES:
            faults += _take_part(wish, f"{name}.{key}", text)
        else:
            wish.knobs[f"{name}.{key}"] = text
    return faults


def _take_part(wish: Wish, name: str, text: str) -> list[str]:
    shape, expected = _SHAPES[name]
    wish.parts[name] = text
    # A range that runs backwards names no CPU at all.
    backwards = [part for part in re.findall(r"(\d+)-(\d+)", text) if int(part[0]) > int(part[1])]
    is_list = name in ("slice.housekeeping_cpus", "slice.numa_nodes", "irqbalance.banned_cpus")
    if shape.match(text) and not (is_list and backwards):
        return []
    return [f"{name}: expected {expected}, found {text!r}"]


def _take_hold_back(wish: Wish, value: Any) -> list[str]:
    if not isinstance(value, list):
        return [f"hold_back: expected a list of beginnings of package names, found {_kind(value)}"]
    wish.hold_back = [str(word) for word in value]
    return [
        f"hold_back: expected the beginning of a package's name such as linux-image, found {word!r}"
        for word in value
        if not isinstance(word, str) or not _PACKAGE.match(word)
    ] + [
        f"hold_back: {word} is given twice"
        for word in sorted({w for w in wish.hold_back if wish.hold_back.count(w) > 1})
    ]


def _take_arguments(wish: Wish, value: Any) -> list[str]:
    if not isinstance(value, list):
        return [f"arguments: expected a list of kernel arguments, found {_kind(value)}"]
    faults: list[str] = []
    for raw in value:
        if not isinstance(raw, str) or not _ARGUMENT.match(raw):
            faults.append(
                f"arguments: expected words such as iommu=pt (letters, digits and . , : / = @ % + ~ _ -), found {raw!r}"
            )
        elif raw.partition("=")[0] in _ARGUMENTS_OF_THE_ENTRY:
            faults.append(
                f"arguments: {raw!r} belongs to the boot loader's own entry and is not set here: take it out of the list"
            )
        elif raw in wish.arguments:
            faults.append(f"arguments: {raw!r} is given twice: keep one")
        else:
            wish.arguments.append(raw)
    return faults


def _scalar(name: str, value: Any) -> tuple[str, list[str]]:
    """A value as text, or the fault: a boolean is what YAML makes of an unquoted on, off, yes or no."""
    if isinstance(value, bool):
        return "", [
            f"{name}: expected a number or a word, found the YAML boolean {str(value).lower()} "
            f"(on, off, yes and no are booleans unless quoted): write {int(value)}, or quote the word"
        ]
    if isinstance(value, float):
        return "", [f"{name}: expected a number or a word, found the fraction {value}: quote it (5.10 unquoted is 5.1)"]
    if not isinstance(value, (str, int)):
        return "", [f"{name}: expected a number or a word, found {_kind(value)}"]
    text = normalise_value(str(value))
    if not text or not text.isprintable():
        return "", [f"{name}: expected a number or a word, found {value!r}"]
    return text, []


def _kind(value: Any) -> str:
    names: dict[type, str] = {dict: "a dictionary", list: "a list", str: "the word"}
    return f"{names.get(type(value), type(value).__name__)} {value!r}"
