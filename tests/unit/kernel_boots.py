"""Fake machines with kernels, packages and boot loaders, for the tests of what boots next and what is held."""

from __future__ import annotations

from pathlib import Path

from tests.unit.kernel_machine import Machine

# As 10_linux of Debian and Ubuntu writes it, shortened to what a parser may stumble over.
GRUB_CFG = """if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="{default}"
fi
function savedefault {{
  if [ -z "${{boot_once}}" ]; then
    saved_entry="${{chosen}}"
  fi
}}
### BEGIN /etc/grub.d/10_linux ###
function gfxmode {{
        set gfxpayload="${{1}}"
}}
menuentry 'Ubuntu' --class ubuntu --class gnu-linux $menuentry_id_option 'gnulinux-simple-u1' {{
        if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
        linux   /boot/vmlinuz-{first} root=UUID=u1 ro  quiet{words}
        initrd  /boot/initrd.img-{first}
}}
submenu 'Advanced options for Ubuntu' $menuentry_id_option 'gnulinux-advanced-u1' {{
{entries}}}
### END /etc/grub.d/10_linux ###
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {{
        fwsetup
}}
"""
ENTRY = """        menuentry 'Ubuntu, with Linux {release}' --class ubuntu $menuentry_id_option 'gnulinux-{release}-advanced-u1' {{
                linux   /boot/vmlinuz-{release} root=UUID=u1 ro  quiet{words}
        }}
        menuentry 'Ubuntu, with Linux {release} (recovery mode)' $menuentry_id_option 'gnulinux-{release}-recovery-u1' {{
                linux   /boot/vmlinuz-{release} root=UUID=u1 ro recovery nomodeset
        }}
"""


class Deb(Machine):
    """A machine of dpkg and GRUB: `apt-mark` and `update-grub` do what the real ones do."""

    def __init__(self, root: Path, releases: list[str], running: str) -> None:
        super().__init__(root)
        self.releases = releases
        self.packages: dict[str, tuple[str, str]] = {}
        self.commands: list[list[str]] = []
        self.broken: list[str] = []
        self.put("/etc/default/grub", 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"')
        self.put("/usr/sbin/update-grub", "")
        for release in releases:
            self.add_kernel(release)
        self.boot(running)
        self.write_status()
        self.run(["update-grub"])
        self.commands.clear()

    def add_kernel(self, release: str) -> None:
        if release not in self.releases:
            self.releases.insert(0, release)
        self.put(f"/boot/vmlinuz-{release}", "")
        self.put(f"/lib/modules/{release}/modules.dep", "")
        for kind in ("image", "headers", "modules"):
            self.packages[f"linux-{kind}-{release}"] = ("install", "")

    def boot(self, release: str, boot_id: str = "boot-1", words: str = "") -> None:
        self.put("/proc/sys/kernel/osrelease", release)
        self.put("/proc/sys/kernel/random/boot_id", boot_id)
        self.put("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{release} root=UUID=u1 ro quiet {words}".strip())

    def package(self, name: str, depends: str, selection: str = "install") -> None:
        self.packages[name] = (selection, depends)
        self.write_status()

    def write_status(self) -> None:
        text = "Package: bash\nStatus: install ok installed\nDepends: linux-image-1.2.3\n\n"
        for name, (selection, depends) in self.packages.items():
            text += f"Package: {name}\nStatus: {selection} ok installed\nPriority: optional\nDepends: {depends}\n"
            text += "Description: a package\n with lines: of text\n\n"
        self.put("/var/lib/dpkg/status", text)

    def held(self) -> list[str]:
        return sorted(name for name, (selection, _) in self.packages.items() if selection == "hold")

    def run(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        if command[0] in self.broken:
            return 1, "", f"E: {command[0]} does not work today"
        if command[0] == "apt-mark":
            for name in command[2:]:
                self.packages[name] = ("hold" if command[1] == "hold" else "install", self.packages[name][1])
            self.write_status()
        if command == ["update-grub"]:
            text = (
                (self.get("/etc/default/grub") or "") + "\n" + (self.get("/etc/default/grub.d/95-plumbline.cfg") or "")
            )
            text += "\n" + (self.get("/etc/default/grub.d/99-site.cfg") or "")
            defaults = [
                line.partition("=")[2].strip('"') for line in text.splitlines() if line.startswith("GRUB_DEFAULT=")
            ]
            words = text.rpartition("DEFAULT }")[2].split('"')[0] if "DEFAULT }" in text else ""
            words = f" {words}" if words else ""
            entries = "".join(ENTRY.format(release=release, words=words) for release in self.releases)
            default = "${saved_entry}" if defaults[-1] == "saved" else defaults[-1]
            first = self.releases[0]
            self.put("/boot/grub/grub.cfg", GRUB_CFG.format(default=default, first=first, words=words, entries=entries))
        return 0, "", ""


class El(Machine):
    """A machine of rpm, dnf's versionlock and boot loader entries: `grubby` and `rpm` answer as the real ones do."""

    def __init__(self, root: Path, releases: list[str], running: str, plugin: bool = True) -> None:
        super().__init__(root)
        self.releases = releases
        self.commands: list[list[str]] = []
        self.deaf = False
        self.names = ["kernel", "kernel-core", "kernel-modules"]
        self.put("/usr/bin/rpm", "")
        self.put("/usr/sbin/grubby", "")
        if plugin:
            self.put("/etc/dnf/plugins/versionlock.conf", "[main]\nenabled = 1")
            self.put("/etc/dnf/plugins/versionlock.list", "# Added by a person\nbash-0:5.1.8-9.el9.*")
        for release in releases:
            self.put(f"/boot/vmlinuz-{release}", "")
            self.put(f"/lib/modules/{release}/modules.dep", "")
            self.put(
                f"/boot/loader/entries/m1-{release}.conf",
                f"title Rocky Linux ({release})\nversion {release}\nlinux /vmlinuz-{release}\noptions root=/dev/sda2 ro",
            )
        self.put("/boot/loader/entries/m1-0-rescue.conf", "title rescue\nlinux /vmlinuz-0-rescue-m1\noptions ro")
        self.put("/proc/sys/kernel/osrelease", running)
        self.default(running)

    def default(self, release: str) -> None:
        self.put("/boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry=m1-{release}\nboot_success=1\n####")

    def run(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        if command[0] == "grubby" and command[1] == "--set-default" and not self.deaf:
            self.default(command[2].rpartition("vmlinuz-")[2])
        if command[0] == "rpm":
            lines = [
                f"{name}\t0\t{release.rpartition('.')[0]}\tx86_64"
                for name in self.names
                if name in command
                for release in self.releases
            ]
            return 1, "\n".join([*lines, "package kernel-modules-extra is not installed"]) + "\n", ""
        return 0, "", ""
