"""The kernel that is wished: whether it must be installed, that it boots next, and that no upgrade moves it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .kernel_boot import grub_entry, installed_kernels, next_kernel, room_fault, uses_entries
from .kernel_files import FileWish, current
from .kernel_parts import Command, Context, Part, measured, row
from .kernel_wish import KernelError
from .version_compare import compare_versions

DPKG_STATUS = "/var/lib/dpkg/status"
VERSIONLOCK = "/etc/dnf/plugins/versionlock.list"
_VERSIONLOCK_PLUGIN = "/etc/dnf/plugins/versionlock.conf"
_RPM = "/usr/bin/rpm"
_BEGIN = "# Plumbline: the kernel is held (role kernel); change the inventory, not these lines."
_END = "# Plumbline: end."
# A package of one kernel. NVIDIA's modules (linux-modules-nvidia-...) and the headers are the driver's: it may bring them
# later, and must be able to move them.
_DPKG_KERNEL = re.compile(r"^linux-(?:image|image-unsigned|modules|modules-extra)-(\d\S*)$")
_RPM_KERNELS = tuple(
    # Oracle's own kernel stands beside Enterprise Linux's.
    f"{kernel}{part}"
    for kernel in ("kernel", "kernel-uek")
    for part in ("", "-core", "-modules", "-modules-core", "-modules-extra")
)


@dataclass
class Package:
    """An installed package of dpkg: whether it is held, and the names that it depends on."""

    name: str
    held: bool
    depends: set[str] = field(default_factory=set)


@dataclass
class Boot:
    """What the wish of a kernel comes to."""

    running: str
    installed: list[str]
    boots_next: str
    # Empty: any will do.
    wanted: str
    # What has to be installed first: "minimum", "release", "versionlock".
    install: list[str]
    # GRUB_DEFAULT, where it must be said.
    entry: str = ""
    restart_required: bool = False

    def told(self) -> dict[str, Any]:
        """As the module returns it."""
        return {
            "running": self.running,
            "installed": self.installed,
            "next": self.boots_next,
            "wanted": self.wanted,
            "install": self.install,
        }


def plan_boot(context: Context) -> tuple[Boot, Part]:
    """The part `boot`: what must be installed, what boots next, what is held. Raises KernelError."""
    tree, wanted = context.tree, context.wanted("boot")
    part = Part("boot")
    boot = Boot(
        running=tree.text("/proc/sys/kernel/osrelease") or "",
        installed=installed_kernels(tree),
        boots_next="" if context.container else next_kernel(tree),
        wanted="",
        install=[],
    )
    hold = wanted.get("hold") == "yes"
    record = context.known("boot")
    if context.container:
        if wanted:
            reason = f"{context.container}: the kernel is the host's"
            part.rows = [row("boot", "skipped", (wanted.get("release", "held"), ""), reason)]
            part.measurements = [measured("boot.next_kernel", wanted.get("release", "any"), skipped=reason)]
        return boot, part
    if not wanted and not record and not context.wish.minimum_version:
        return boot, part
    if wanted and not boot.installed:
        reason = "no kernel in /boot has modules in /lib/modules: this machine is booted from elsewhere"
        part.rows = [row("boot", "skipped", (wanted.get("release", "held"), ""), reason)]
        part.measurements = [measured("boot.next_kernel", wanted.get("release", "any"), skipped=reason)]
        return boot, part
    boot.wanted = _choose(context, boot, wanted.get("release", ""), hold)
    if hold and tree.exists(_RPM) and not tree.exists(DPKG_STATUS) and not tree.exists(_VERSIONLOCK_PLUGIN):
        boot.install.append("versionlock")
    if {"release", "minimum"} & set(boot.install) and (fault := room_fault(tree)):
        raise KernelError(fault)
    if wanted.get("release"):
        part.record["release"] = wanted["release"]
    known = boot.wanted if boot.wanted in boot.installed else ""
    if known:
        _plan_default(context, boot, part, bool(wanted.get("release")))
    if hold and boot.wanted:
        _plan_hold(context, part, known)
    elif record.get("held") or _block_of(current(tree, VERSIONLOCK) or ""):
        _plan_hold(context, part, "")
    if boot.wanted:
        _plan_restart(context, boot, part)
    return boot, part


def _choose(context: Context, boot: Boot, release: str, hold: bool) -> str:
    """The release that should run; empty where any will do. Notes what must be installed."""
    minimum = context.wish.minimum_version
    if release:
        if minimum and compare_versions(release, minimum) < 0:
            raise KernelError(
                f"boot.release: expected {minimum} or newer (minimum_version), found {release}: correct kernel_release or "
                "kernel_minimum_version"
            )
        if release not in boot.installed:
            boot.install.append("release")
        return release
    fitting = [one for one in boot.installed if not minimum or compare_versions(one, minimum) >= 0]
    if boot.installed and not fitting:
        boot.install.append("minimum")
        return f"{minimum} or newer"
    known = context.known("boot")
    if fitting and known.get("release") == boot.boots_next != fitting[0] and (hold or uses_entries(context.tree)):
        # It boots because it was wished by name: without that wish the newest does. (GRUB without a hold boots it by itself, once our
        # drop-in names no default any more.)
        return fitting[0]
    if boot.boots_next in fitting:
        # An entry that was chosen for the minimum stays while it is the newest: let go, GRUB would boot again what was too old.
        is_ours = known.get("entry") == boot.boots_next == fitting[0]
        is_too_old = boot.running and minimum and compare_versions(boot.running, minimum) < 0
        is_asked = hold or is_too_old or (minimum and is_ours)
        return boot.boots_next if is_asked else ""
    # What boots next is too old, but a newer one is there (a boot loader entry that stayed behind).
    return fitting[0] if fitting else ""


def _plan_default(context: Context, boot: Boot, part: Part, is_pinned: bool) -> None:
    tree, record = context.tree, context.known("boot")
    differs = boot.boots_next != boot.wanted
    if uses_entries(tree):
        if differs:
            set_default = ["grubby", "--set-default"]
            part.commands.append(
                Command(
                    [*set_default, f"/boot/vmlinuz-{boot.wanted}"], [*set_default, f"/boot/vmlinuz-{boot.boots_next}"]
                )
            )
    elif tree.exists("/boot/grub/grub.cfg") and (is_pinned or differs or record.get("entry") == boot.wanted):
        boot.entry = grub_entry(tree, boot.wanted)
        if not boot.entry:
            raise KernelError(
                f"boot: expected an entry for the kernel {boot.wanted} in /boot/grub/grub.cfg, found none: run update-grub"
            )
        part.record["entry"] = boot.wanted
    elif differs:
        raise KernelError(
            f"boot: expected {boot.wanted} to boot next, found {boot.boots_next}, and no boot loader that can be told (GRUB, or "
            "grubby): set it in this machine's boot loader by hand"
        )
    state = "changed" if differs else "ok"
    part.rows.append(row("boot.next_kernel", state, (boot.wanted, boot.boots_next), "", "grub" if boot.entry else ""))

    def check() -> str:
        now = next_kernel(tree)
        return (
            ""
            if now == boot.wanted
            else f"boot: expected {boot.wanted} to boot next, found {now} after the boot loader was told: see GRUB_DEFAULT in "
            "/etc/default/grub and /etc/default/grub.d, grub2-editenv list"
        )

    part.check = check if context.run else None


def _plan_restart(context: Context, boot: Boot, part: Part) -> None:
    """A restart is due when another kernel runs, but not again and again for a machine that boots something else."""
    record = context.known("boot")
    # Staged in an earlier boot, and this boot did not bring it; unless the boot loader has been told otherwise since.
    is_staged = record.get("wanted") == boot.wanted and boot.boots_next == boot.wanted
    staged = record.get("boot_id", "") if is_staged else context.boot_id
    part.record.update({"wanted": boot.wanted, "boot_id": staged})
    is_right = boot.running == boot.wanted and not boot.install
    boot.restart_required = not is_right and staged == context.boot_id
    cause = "the machine has not restarted since"
    if not is_right and staged != context.boot_id:
        cause = "it was to boot with the last restart, but the machine booted another entry"
    next_told = boot.boots_next if not boot.install else f"{boot.boots_next} (not installed)"
    part.measurements += [
        measured(
            "boot.next_kernel",
            boot.wanted,
            value=next_told,
            cause="it is not installed: the kernel stage has not run"
            if boot.install
            else "the boot loader's default is another one: the kernel stage has not run, or somebody changed it since",
            next_command="grep -rn GRUB_DEFAULT /etc/default/grub /etc/default/grub.d; grub2-editenv list; ls /boot/vmlinuz-*",
        ),
        measured(
            "boot.running_kernel",
            boot.wanted,
            value=boot.running,
            cause=cause,
            next_command="uname -r; cat /proc/cmdline",
        ),
    ]
    state = "ok" if is_right else "changed" if boot.restart_required else "failed"
    if record.get("wanted") == boot.wanted and boot.restart_required and not boot.install:
        state = "ok"
    told = row("boot.running_kernel", state, (boot.wanted, boot.running), "" if is_right else cause)
    told["restart_required"] = boot.restart_required
    part.rows.append(told)


def _plan_hold(context: Context, part: Part, release: str) -> None:
    tree = context.tree
    if tree.exists(DPKG_STATUS):
        _hold_dpkg(context, part, release)
    elif tree.exists(_RPM):
        _hold_rpm(context, part, release)
    elif release:
        raise KernelError(
            "boot.hold: expected packages of dpkg or rpm to hold, found neither: take kernel_hold out of the inventory"
        )


def _hold_dpkg(context: Context, part: Part, release: str) -> None:
    packages = dpkg_kernels(current(context.tree, DPKG_STATUS) or "")
    wanted = to_hold(packages, release) if release else []
    if release and not any(name.startswith("linux-image-") and name.endswith(release) for name in wanted):
        raise KernelError(
            f"boot.hold: expected a package linux-image-{release} to hold, found none: the kernel was not installed as a package; "
            "set kernel_hold: false"
        )
    ours = [str(name) for name in context.known("boot").get("held", [])]
    new = [name for name in wanted if not packages[name].held]
    # What somebody held before us stays held when we go.
    gone = [name for name in ours if name not in wanted and name in packages and packages[name].held]
    if new:
        part.commands.append(Command(["apt-mark", "hold", *new], ["apt-mark", "unhold", *new]))
    if gone:
        part.commands.append(Command(["apt-mark", "unhold", *gone], ["apt-mark", "hold", *gone]))
    held = [name for name in wanted if name in new or name in ours]
    if held:
        part.record["held"] = held
    _tell_hold(part, wanted, new, gone, "apt-mark showhold")


def _hold_rpm(context: Context, part: Part, release: str) -> None:
    text = current(context.tree, VERSIONLOCK)
    others, ours = _without_block(text or ""), _block_of(text or "")
    wanted = _locks(context, release) if release else []
    block = "".join(f"{line}\n" for line in (_BEGIN, *wanted, _END)) if wanted else ""
    content = others + block
    # An empty list is what the plugin brings.
    part.files.append(FileWish(VERSIONLOCK, content if content or text is not None else None))
    new = [line for line in wanted if line not in ours]
    gone = [line for line in ours if line not in wanted]
    if wanted and not context.tree.exists(_VERSIONLOCK_PLUGIN):
        new = wanted
    _tell_hold(part, wanted, new, gone, "dnf versionlock list")


def _tell_hold(part: Part, wanted: list[str], new: list[str], gone: list[str], command: str) -> None:
    told = " ".join(name for name in wanted if name not in new)
    if wanted:
        part.rows.append(row("boot.hold", "changed" if new or gone else "ok", (" ".join(wanted), told), ""))
        part.measurements.append(
            measured(
                "boot.hold",
                " ".join(wanted),
                value=told or "nothing",
                cause="the kernel stage has not run, or somebody released or upgraded it since",
                next_command=command,
            )
        )
    elif gone:
        part.rows.append(row("boot.hold", "changed", ("", " ".join(gone)), "no longer wished: released"))


def dpkg_kernels(status: str) -> dict[str, Package]:
    """The installed packages of dpkg's status file whose names begin with linux-."""
    found: dict[str, Package] = {}
    for stanza in status.split("\n\n"):
        if not stanza.startswith("Package: linux-"):
            continue
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line.startswith(" "))
        words = fields.get("Status", "").split()
        if words[-1:] == ["installed"]:
            depends = set(re.findall(r"(linux-[a-z0-9.+~-]+)", fields.get("Depends", "")))
            found[fields["Package"]] = Package(fields["Package"], words[0] == "hold", depends)
    return found


def to_hold(packages: dict[str, Package], release: str) -> list[str]:
    """The packages of a kernel, and every installed metapackage that could bring another one.

    Holding the metapackage alone pins nothing: its real package can still be upgraded or removed beside it.
    """
    kernels = {name: match.group(1) for name in packages for match in [_DPKG_KERNEL.match(name)] if match}
    real = [name for name, of in kernels.items() if of == release]
    leading = set(kernels)
    while True:
        more = {name for name, package in packages.items() if name not in leading and package.depends & leading}
        more = {name for name in more if not re.search(r"\d+\.\d+\.\d+", name)}
        if not more:
            break
        leading |= more
    return sorted(real) + sorted(leading - set(kernels))


def _locks(context: Context, release: str) -> list[str]:
    """Lines for dnf's versionlock. Raises KernelError where rpm does not know the kernel."""
    if context.run is None:
        return _block_of(current(context.tree, VERSIONLOCK) or "")
    _, out, _ = context.run(
        ["rpm", "-q", "--qf", "%{NAME}\t%{EPOCHNUM}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n", *_RPM_KERNELS]
    )
    lines = []
    for fields in (line.split("\t") for line in out.splitlines()):
        if len(fields) == 4 and f"{fields[2]}.{fields[3]}" == release:
            lines.append(f"{fields[0]}-{fields[1]}:{fields[2]}.*")
    if not lines:
        raise KernelError(
            f"boot.hold: expected rpm to know the kernel {release}, found no such package: set kernel_hold: false, or install it "
            "as a package"
        )
    return lines


def _block_of(text: str) -> list[str]:
    if _BEGIN not in text:
        return []
    return [line for line in text.partition(_BEGIN)[2].partition(_END)[0].splitlines() if line]


def _without_block(text: str) -> str:
    if _BEGIN not in text:
        return text
    head, _, rest = text.partition(_BEGIN + "\n")
    return head + rest.partition(_END + "\n")[2]
