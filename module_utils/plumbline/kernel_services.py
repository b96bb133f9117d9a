"""What the services irqbalance and tuned are told, so that neither undoes what the wish sets."""

from __future__ import annotations

import re

from .kernel_files import FileWish
from .kernel_parts import Command, Context, Part, measured, row
from .kernel_slice import divide
from .kernel_wish import KernelError, normalise_value
from .tree import Tree, format_cpu_list, parse_cpu_list

_UNITS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system")
_IRQBALANCE = "irqbalance.service"
IRQBALANCE_DROP_IN = "/etc/systemd/system/irqbalance.service.d/95-plumbline.conf"
IRQBALANCE_MASK = "/etc/systemd/system/irqbalance.service"
_HEADER = "# Managed by Plumbline (role kernel): change the inventory, not this file.\n"
# The unit reads one of these after its own settings, so what they set wins.
_ENVIRONMENT_FILES = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance")
_BANNED = re.compile(r"^\s*(IRQBALANCE_BANNED_CPU(?:S|LIST))\s*=\s*\S", re.MULTILINE)

TUNED_PROFILE = "/etc/tuned/plumbline/tuned.conf"
TUNED_ACTIVE = "/etc/tuned/active_profile"
_TUNED_ENABLED = "/etc/systemd/system/multi-user.target.wants/tuned.service"
_TUNED_DIRECTORIES = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
_INCLUDES_MAX = 8
# tuned's option -> ours
_TUNED_NAMES = {
    ("vm", "transparent_hugepages"): "transparent_hugepage.enabled",
    ("vm", "transparent_hugepage"): "transparent_hugepage.enabled",
    ("vm", "transparent_hugepage.defrag"): "transparent_hugepage.defrag",
    ("cpu", "governor"): "cpu.governor",
    ("cpu", "energy_performance_preference"): "cpu.energy_performance_preference",
}


def plan_irqbalance(context: Context) -> Part:
    """The part `irqbalance`: off, or on and kept away from some CPUs."""
    part = Part("irqbalance")
    tree, wanted = context.tree, context.wanted("irqbalance")
    has_mask = tree.link(IRQBALANCE_MASK) == "/dev/null"
    is_installed = any(tree.exists(f"{directory}/{_IRQBALANCE}") for directory in _UNITS)
    reason = ""
    if context.container:
        reason = f"{context.container}: interrupts belong to the host"
    elif wanted and not is_installed:
        reason = "irqbalance is not installed: the kernel and the drivers place interrupts"
    if reason and wanted:
        if wanted.get("enabled") == "yes" and not context.container:
            raise KernelError(
                "irqbalance.enabled: expected irqbalance to be installed, found no unit irqbalance.service: install it, or "
                "take enabled out of kernel_irqbalance"
            )
        part.rows = [row("irqbalance", "skipped", (_told(wanted), ""), reason)]
        part.measurements = [measured("irqbalance", _told(wanted), skipped=reason)]
    if reason:
        return part
    off = wanted.get("enabled") == "no"
    banned = _banned(context, wanted)
    # Only a mask of our own is taken away.
    owns_mask = bool(context.known("irqbalance").get("masked"))
    part.files = [FileWish(IRQBALANCE_DROP_IN, _drop_in(banned) if banned and not off else None)]
    if off:
        part.files.append(FileWish(IRQBALANCE_MASK, link="/dev/null"))
        part.record = {"masked": True} if owns_mask or not has_mask else {}
    elif owns_mask and has_mask:
        part.files.append(FileWish(IRQBALANCE_MASK))
    elif has_mask and wanted:
        raise KernelError(
            f"irqbalance: expected to tell it about CPUs, found it masked ({IRQBALANCE_MASK} leads to /dev/null): unmask it, or "
            "wish enabled: false"
        )
    wrong = [wish for wish in part.files if not wish.is_right(tree)]
    if wrong:
        act = "stop" if off else "restart"
        part.commands = [
            Command(["systemctl", "daemon-reload"], ["systemctl", "daemon-reload"]),
            Command(["systemctl", act, _IRQBALANCE], ["systemctl", "start" if off else "try-restart", _IRQBALANCE]),
        ]
    if wanted:
        told = "off" if off else f"on, not on CPUs {banned}" if banned else "on"
        part.rows = [row("irqbalance", "changed" if wrong else "ok", (told, ""), "", part.files[-1].path)]
        part.measurements = [_irqbalance_now(context, told, bool(wrong), off)]
    elif wrong:
        part.rows = [row("irqbalance", "changed", ("", "as Plumbline set it"), "no longer wished", wrong[0].path)]
    return part


def _told(wanted: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in wanted.items())


def _banned(context: Context, wanted: dict[str, str]) -> str:
    """The CPUs that get no interrupts, as a list; empty for none."""
    asked = wanted.get("banned_cpus", "")
    if not asked:
        return ""
    for path in _ENVIRONMENT_FILES:
        match = _BANNED.search(context.tree.text(path) or "")
        if match:
            raise KernelError(
                f"irqbalance.banned_cpus: {path} sets {match.group(1)}, which would win over {IRQBALANCE_DROP_IN}: remove that "
                "line, or take banned_cpus out of kernel_irqbalance"
            )
    if asked == "slice":
        cpus = divide(context.tree, context.wanted("slice")).cpus
        if not cpus:
            raise KernelError(
                "irqbalance.banned_cpus: expected a slice that leaves CPUs to the interrupts, found none in the wish: set "
                "kernel_housekeeping_cpus or kernel_housekeeping_cores_per_node, or name the CPUs"
            )
        return format_cpu_list(cpus)
    cpus = parse_cpu_list(asked)
    online = parse_cpu_list(context.tree.text("/sys/devices/system/cpu/online"))
    strange = [cpu for cpu in cpus if online and cpu not in online]
    if strange or (online and set(online) <= set(cpus)):
        raise KernelError(
            f"irqbalance.banned_cpus: expected some of the CPUs {format_cpu_list(online)} and not all of them, found {asked!r}: "
            "correct kernel_irqbalance"
        )
    return format_cpu_list(cpus)


def _drop_in(banned: str) -> str:
    mask = sum(1 << cpu for cpu in parse_cpu_list(banned))
    words = []
    while mask:
        words.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return (
        f"{_HEADER}# The list is for irqbalance 1.8 and newer, the mask for older ones.\n[Service]\n"
        f"Environment=IRQBALANCE_BANNED_CPULIST={banned}\nEnvironment=IRQBALANCE_BANNED_CPUS={','.join(reversed(words))}\n"
    )


def _irqbalance_now(context: Context, told: str, is_wrong: bool, off: bool) -> dict[str, object]:
    if context.run is None:
        return measured("irqbalance", told, skipped="no command is run for a captured tree")
    status, out, _ = context.run(["systemctl", "is-active", _IRQBALANCE])
    is_active = status == 0
    value = told if is_active != off and not is_wrong else out.strip() or "unknown"
    return measured(
        "irqbalance",
        told,
        value=value if not is_wrong else f"{value}, with other settings",
        cause="the kernel stage has not run, or somebody started, stopped or changed it since",
        next_command=f"systemctl status {_IRQBALANCE}; systemctl cat {_IRQBALANCE}",
    )


def plan_tuned(context: Context) -> Part:
    """The part `tuned`: where a site uses it, a profile of ours on top of theirs, or a clear refusal of what it would undo."""
    part = Part("tuned")
    tree, mode = context.tree, context.wish.parts.get("tuned", "")
    active = tree.text(TUNED_ACTIVE) or ""
    record = context.known("tuned")
    if (
        context.container
        or (not active and not record)
        or not (tree.exists(_TUNED_ENABLED) or tree.link(_TUNED_ENABLED))
    ):
        return part
    below = str(record.get("profile", "")) if active == "plumbline" else active
    if mode == "profile":
        content = _own_profile(context, below)
        part.files = [FileWish(TUNED_PROFILE, content)]
        is_right = part.files[0].is_right(tree) and active == "plumbline"
        if not is_right:
            part.commands = [_profile("plumbline", active)]
        part.record = {"profile": below}
        part.rows = [
            row("tuned", "ok" if is_right else "changed", ("plumbline", active), f"on top of {below}", TUNED_PROFILE)
        ]
        part.measurements = [
            measured(
                "tuned",
                "plumbline",
                value=active,
                cause="somebody activated another profile since, or the kernel stage has not run",
                next_command="tuned-adm active; tuned-adm verify",
            )
        ]
        return part
    if record:
        part.files = [FileWish(TUNED_PROFILE)]
        if active == "plumbline" and below:
            part.commands = [_profile(below, "plumbline")]
            active = below
        part.rows = [row("tuned", "changed", ("", "plumbline"), f"given back to {below}", TUNED_PROFILE)]
    conflicts = _conflicts(tree, active, _ours(context)) if mode == "refuse" else []
    if conflicts:
        raise KernelError(
            f"tuned: its profile {active} sets {'; '.join(conflicts)}, and the last to act would win: set kernel_tuned: profile "
            "(a profile of Plumbline's on top of it), or take them out of one of the two"
        )
    return part


def _profile(name: str, before: str) -> Command:
    return Command(["tuned-adm", "profile", *name.split()], ["tuned-adm", "profile", *before.split()])


def _ours(context: Context) -> dict[str, str]:
    """What we wish and tuned can set; sysctls only where tuned does not read /etc/sysctl.d again after its own."""
    ours = dict(context.wish.knobs)
    main = context.tree.text("/etc/tuned/tuned-main.conf") or ""
    if re.search(r"^\s*reapply_sysctl\s*=\s*(0|false|no)\b", main, re.MULTILINE | re.IGNORECASE):
        ours.update({key: value for key, (value, _) in context.wish.sysctl.items()})
    return ours


def _own_profile(context: Context, below: str) -> str:
    sections: dict[str, list[str]] = {}
    done: set[str] = set()
    for (section, option), name in _TUNED_NAMES.items():
        if name in context.wish.knobs and name not in done:
            done.add(name)
            sections.setdefault(section, []).append(f"{option}={context.wish.knobs[name]}")
    if context.wish.sysctl:
        sections["sysctl"] = [f"{key}={value}" for key, (value, _) in context.wish.sysctl.items()]
    text = f"{_HEADER}[main]\nsummary=Plumbline's settings on top of {below}\ninclude={','.join(below.split())}\n"
    return text + "".join(f"\n[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())


def _conflicts(tree: Tree, active: str, ours: dict[str, str]) -> list[str]:
    found = []
    for name, (value, path) in _tuned_settings(tree, active.split()).items():
        # Several governors are tried in turn; a variable is not known here.
        words = value.split("|") if name == "cpu.governor" else [value]
        if name in ours and "$" not in value and words[0] != ours[name]:
            found.append(f"{name} to {value!r} ({path}), where {ours[name]!r} is wished")
    return found


def _tuned_settings(tree: Tree, profiles: list[str], depth: int = 0) -> dict[str, tuple[str, str]]:
    """Our name -> (value, file) of what profiles set, those that they include first."""
    found: dict[str, tuple[str, str]] = {}
    for profile in profiles:
        path = next((p for p in (f"{d}/{profile}/tuned.conf" for d in _TUNED_DIRECTORIES) if tree.exists(p)), "")
        own: dict[str, tuple[str, str]] = {}
        section = ""
        for line in (tree.text(path) or "").splitlines() if path else []:
            bare = line.strip()
            if bare.startswith("[") and bare.endswith("]"):
                section = bare[1:-1]
                continue
            option, equals, value = (piece.strip() for piece in bare.partition("="))
            if not equals or bare.startswith(("#", ";")):
                continue
            if section == "main" and option == "include" and depth < _INCLUDES_MAX:
                found.update(_tuned_settings(tree, value.replace(",", " ").split(), depth + 1))
            elif section == "sysctl":
                own[option] = (normalise_value(value), path)
            elif (section, option) in _TUNED_NAMES:
                own[_TUNED_NAMES[(section, option)]] = (value, path)
        found.update(own)
    return found
