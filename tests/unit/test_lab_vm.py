"""The virtual bare metal's parts: settings, QEMU's call, its control socket, links in its memory, boot sectors, packages."""

from __future__ import annotations

import argparse
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import packages
from lab.shell import LabError
from lab.vm import chassis, command, image, lifecycle, links, machine, powers, settings
from lab.vm.qmp import Qmp, QmpClosedError

# -- settings ---------------------------------------------------------------------------------------------------------------


def test_defaults_lie_beside_the_containers(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {})
    assert (lab.ssh_port, lab.bmc_port, lab.ipmi_port) == (2223, 8444, 9223)
    assert lab.state == tmp_path / "lab" / ".state" / "vm"
    assert lab.vault_password_file == tmp_path / "lab" / ".state" / "vault-password"
    assert lab.vault_file.parts[-5:-3] == ("inventories", "lab-vm")


def test_the_environment_wins_over_the_record_unless_it_is_about_what_runs(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {"LAB_VM_SSH_PORT": "3223"})
    lab.state.mkdir(parents=True)
    lab.write_record({"ipmi_port": 9300})
    given = {"LAB_VM_SSH_PORT": "3224"}
    assert settings.load(tmp_path, given).ssh_port == 3224
    assert settings.load(tmp_path, given, recorded_first=True).ssh_port == 3223
    assert settings.load(tmp_path, {}).ipmi_port == 9300


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"ssh_port": "x"}'])
def test_a_damaged_record_is_no_record(tmp_path: Path, content: str) -> None:
    record = settings.load(tmp_path, {}).record
    record.parent.mkdir(parents=True)
    record.write_text(content)
    assert settings.load(tmp_path, {}).ssh_port == 2223


def test_bad_and_equal_ports_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="LAB_VM_BMC_PORT must be a port from 1024 to 65535, found 'x'"):
        settings.load(tmp_path, {"LAB_VM_BMC_PORT": "x"})
    with pytest.raises(LabError, match="ports must differ, found LAB_VM_SSH_PORT=8444, LAB_VM_BMC_PORT=8444"):
        settings.load(tmp_path, {"LAB_VM_SSH_PORT": "8444"})


# -- the call of QEMU -------------------------------------------------------------------------------------------------------


def test_the_machine_is_the_one_that_was_asked_for() -> None:
    words = machine.command(Path("/state"), 2223, 3, accelerator="tcg", ipmi_port=9223)
    text = " ".join(words)
    assert [word for word in words if word.startswith("file=smbios/")] == [f"file=smbios/{n:02d}.bin" for n in range(3)]
    assert "-hypervisor" in text
    assert "-no-reboot" in words
    assert "-S" in words
    assert "x-speed=16,x-width=16" in text
    assert "x-speed=16,x-width=4" in text
    assert "hostfwd=tcp:127.0.0.1:2223-:22" in text
    assert "0.0.0.0" not in text
    assert int(words[words.index("-m") + 1]) <= 4096
    # Relative: a Unix socket's path is short, and the checkout may lie deep.
    assert "unix:control.sock,server=on,wait=off" in words


def test_emulation_is_said_to_be_emulation_where_nothing_was_found(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {})
    assert machine.accelerator_of(lab) == "tcg"
    lab.state.mkdir(parents=True)
    (lab.state / "accelerator").write_text("kvm\n")
    assert machine.accelerator_of(lab) == "kvm"
    assert machine.cpu_model("kvm").startswith("host")


# -- the control socket -----------------------------------------------------------------------------------------------------


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[Callable[[list[Any]], Path]]:
    """A QEMU that greets and then answers each command with the next of the given messages."""
    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "control.sock"
    threads: list[threading.Thread] = []

    def serve(answers: list[Any]) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            stream.write(b'{"QMP": {"version": {}}}\n')
            stream.flush()
            stream.readline()
            stream.write(b'{"return": {}}\n')
            stream.flush()
            for answer in answers:
                if not stream.readline():
                    return
                for message in answer if isinstance(answer, list) else [answer]:
                    stream.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
                stream.flush()

    def start(answers: list[Any]) -> Path:
        listener.bind(str(path))
        listener.listen(1)
        threads.append(threading.Thread(target=serve, args=(answers,)))
        threads[0].start()
        return path

    yield start
    for thread in threads:
        thread.join(10)
    listener.close()


def test_events_that_come_before_an_answer_are_kept(qemu: Callable[[list[Any]], Path]) -> None:
    stop = {"event": "SHUTDOWN", "data": {"guest": True, "reason": "guest-reset"}}
    with Qmp(qemu([[{"event": "RESUME"}, stop, {"return": {"running": True}}]]), 5) as qmp:
        assert qmp.call("query-status") == {"running": True}
        assert qmp.event(1) == {"event": "RESUME"}
        assert qmp.event(1) == stop


def test_what_qemu_refuses_is_one_sentence(qemu: Callable[[list[Any]], Path]) -> None:
    with (
        Qmp(qemu([{"error": {"class": "GenericError", "desc": "no such device"}}]), 5) as qmp,
        pytest.raises(LabError, match="QEMU refused stop: no such device"),
    ):
        qmp.call("stop")


def test_an_end_of_qemu_is_told_from_silence(qemu: Callable[[list[Any]], Path]) -> None:
    with Qmp(qemu([]), 5) as qmp, pytest.raises(QmpClosedError):
        qmp.event(5)


def test_nothing_for_a_while_is_no_event(qemu: Callable[[list[Any]], Path]) -> None:
    with Qmp(qemu([{"return": {}}]), 5) as qmp:
        assert qmp.event(0.05) is None


def test_nonsense_from_qemu_is_one_sentence(qemu: Callable[[list[Any]], Path]) -> None:
    with (
        Qmp(qemu([b"nonsense\n"]), 5) as qmp,
        pytest.raises(LabError, match="expected a JSON object from QEMU, found b'nonsense'"),
    ):
        qmp.call("stop")


def test_a_qemu_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(QmpClosedError, match="QEMU does not listen on"):
        Qmp(tmp_path / "control.sock", 60, alive=lambda: False)


# -- links ------------------------------------------------------------------------------------------------------------------


def config_space(card: links.Card, version: int = 1) -> bytearray:
    config = bytearray(256)
    config[0:4] = card.identity
    config[0x2C:0x30] = struct.pack("<HH", card.subsystem_vendor, card.subsystem)
    config[0x34] = 0x50
    config[0x50:0x52] = bytes([0x01, 0xE0])  # power management, then PCI Express
    config[0xE0:0xE3] = bytes([0x10, 0x00, version])
    struct.pack_into("<I", config, 0xE0 + 0x0C, 0x0003F400 & ~0x3FF | 0x011)
    struct.pack_into("<H", config, 0xE0 + 0x12, 0x1011)
    return config


def test_what_is_written_is_capability_and_state_and_nothing_else() -> None:
    config = config_space(machine.NIC)
    changes = links.with_link(bytes(config), machine.NIC.capable, links.parse("8x8"))
    assert changes == {
        0xEC: struct.pack("<I", 0x0003F400 & ~0x3FF | 16 << 4 | 4),
        0xF2: struct.pack("<H", 0x1000 | 8 << 4 | 3),
    }


def test_a_newer_capability_also_lists_its_speeds() -> None:
    config = config_space(machine.DRIVE, version=2)
    # There, the capability is longer than what is left behind 0xE0.
    config[0x51] = 0x80
    config[0x80:0x83] = bytes([0x10, 0x00, 2])
    changes = links.with_link(bytes(config), machine.DRIVE.capable, machine.DRIVE.capable)
    assert struct.unpack("<I", changes[0x80 + 0x2C])[0] == 0b11110
    assert struct.unpack("<H", changes[0x80 + 0x30])[0] & 0xF == 4


def memory_with(*parts: tuple[int, bytes]) -> tuple[Callable[[int, int], bytes], Iterator[tuple[int, int]]]:
    memory = bytearray(1 << 16)
    for at, content in parts:
        memory[at : at + len(content)] = content
    base = 0x7F0000000000
    return lambda start, size: bytes(memory[start - base : start - base + size]), iter([(base, base + len(memory))])


def test_a_card_is_found_once_and_copies_of_its_ids_are_not_it() -> None:
    real = bytes(config_space(machine.NIC))
    read, places = memory_with((0x1000, machine.NIC.identity), (0x2340, real), (0x9008, real[:64]))
    assert links.find(machine.NIC, read, places) == 0x7F0000002340


@pytest.mark.parametrize(("parts", "times"), [([], 0), ([0x1000, 0x3000], 2)])
def test_nothing_is_guessed(parts: list[int], times: int) -> None:
    read, places = memory_with(*((at, bytes(config_space(machine.NIC))) for at in parts))
    with pytest.raises(LabError, match=f"once in QEMU's memory, found it {times} times"):
        links.find(machine.NIC, read, places)


def test_only_the_heap_is_searched() -> None:
    text = (
        "55a000000000-55a000100000 rw-p 00000000 00:00 0                          [heap]\n"
        "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n"
        "7f1000000000-7f1040000000 rw-p 00000000 00:00 0 \n"
        "7f2000000000-7f2000100000 rwxp 00000000 00:00 0 \n"
        "7f3000000000-7f3000100000 rw-p 00001000 08:01 123 /usr/bin/qemu-system-x86_64\n"
    )
    assert list(links.mappings(text)) == [(0x55A000000000, 0x55A000100000), (0x7F0000000000, 0x7F0000200000)]


@pytest.mark.parametrize("text", ["8", "x8", "8x", "8x8x8", "3x8", "8x3", "-8x8", "fast"])
def test_a_link_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(LabError, match="link"):
        links.parse(text)


def test_links_are_remembered_and_full_by_default(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {})
    lab.state.mkdir(parents=True)
    assert "off and will have it" in lifecycle.link(lab, "nic1", "8x8")
    found = links.wanted(lab.state, machine.CARDS)
    assert (str(found["nic1"]), str(found["nvme1"])) == ("8 GT/s x8", "16 GT/s x4")
    lifecycle.link(lab, "nic1", "full")
    assert links.wanted(lab.state, machine.CARDS)["nic1"] == machine.NIC.capable
    with pytest.raises(LabError, match="nvme1 can do 16 GT/s x4, found 16 GT/s x16"):
        lifecycle.link(lab, "nvme1", "16x16")
    with pytest.raises(LabError, match="expected one of the cards nic1, nvme1, found 'gpu'"):
        lifecycle.link(lab, "gpu", "8x8")


def test_a_machine_that_is_off_has_no_memory_to_write_to() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(LabError, match="the machine is off"):
        links.train(ended.pid, machine.NIC, machine.NIC.capable)


# -- power ------------------------------------------------------------------------------------------------------------------


def test_power_of_a_machine_that_is_not_there(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {})
    assert powers.power(lab, "status") == "off"
    assert powers.power(lab, "off") == "off"
    assert powers.power(lab, "graceful-off") == "off"
    with pytest.raises(LabError, match="there is no virtual machine: run make lab-vm"):
        powers.power(lab, "on")
    with pytest.raises(LabError, match="there is no virtual machine: run make lab-vm"):
        lifecycle.status(lab)


def test_a_number_left_behind_is_not_taken_for_the_chassis(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {})
    lab.state.mkdir(parents=True)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (lab.state / "chassis.pid").write_text(f"{stranger.pid}\n")
        (lab.state / "power.json").write_text('{"boot": "1.000", "qemu": 1}')
        assert powers.chassis_pid(lab) is None
        assert powers.described(lab) == "off"
        assert powers.power(lab, "off") == "off"
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


def test_the_power_verbs_are_the_simulators(tmp_path: Path) -> None:
    made = argparse.ArgumentParser()
    command.add_to(made.add_subparsers())
    for verb in ("on", "off", "graceful-off", "status"):
        assert made.parse_args(["vm", "power", verb]).action == verb


# -- image and packages -----------------------------------------------------------------------------------------------------


def test_the_boot_sectors_hold_grub_and_one_partition() -> None:
    boot, core = bytes([0x90]) * 512, b"core" * 300
    made = image.boot_sectors(boot, core, 6291456)
    assert made[:440] == boot[:440]
    assert made[510:512] == b"\x55\xaa"
    active, kind, start, sectors = made[446], made[450], *struct.unpack_from("<II", made, 454)
    assert (active, kind, start, sectors) == (0x80, 0x83, 2048, 6291456 - 2048)
    assert made[462:510] == bytes(48)
    assert made[512:] == core


def test_a_damaged_grub_is_refused() -> None:
    with pytest.raises(LabError, match=r"boot\.img to have 512 bytes, found 3"):
        image.boot_sectors(b"abc", b"", 4096)
    with pytest.raises(LabError, match="only 1048064 are free before the partition"):
        image.boot_sectors(bytes(512), bytes(1 << 20), 4096)


def test_the_image_is_named_by_what_it_is_made_of(checkout: Path, tmp_path: Path) -> None:
    recipe = image.recipe(checkout)
    words = recipe.command(Path("sources"), Path("tree"))
    included = next(word for word in words if word.startswith("--include="))
    assert {"linux-image-amd64", "grub-pc-bin", "openssh-server", "python3", "ipmitool"} <= set(
        included.removeprefix("--include=").split(",")
    )
    assert sum(word.startswith("--include=") for word in words) == 1
    # Kernel modules for IPMI are not in the kernel for clouds.
    assert "cloud" not in included
    directory = tmp_path / "node"
    directory.mkdir()
    other = image.MachineRecipe(directory, recipe.sources, recipe.apt_options)
    first = other.reference()
    (directory / "customize.sh").write_text("true\n")
    assert other.reference() != first


def test_missing_packages_are_one_sentence_with_the_remedy() -> None:
    needs = [packages.Need("the virtual machine", ("qemu-system-x86",), ("no-such-program-here",))]
    with pytest.raises(
        LabError, match=r"the virtual machine needs qemu-system-x86\. Run python -m lab packages --vm, or make lab-vm"
    ):
        packages.require(needs)
    packages.require([packages.Need("a shell", ("dash",), ("sh",))])
    assert {"qemu-system-x86_64", "mmdebstrap", "ipmi_sim"} <= {
        probe for need in packages.machine_needs() for probe in need.probes
    }


# -- chassis ----------------------------------------------------------------------------------------------------------------


class FakeChassis(chassis.Chassis):
    """Boots that end for given reasons; what happened is in `done`."""

    def __init__(self, lab: settings.VmLab, reasons: list[str], *, off_in_post: bool = False) -> None:
        super().__init__(lab, "tcg")
        self.reasons, self.off_in_post = reasons, off_in_post
        self.done: list[str] = []

    def boot(self) -> str:
        self.done.append("boot")
        return self.reasons.pop(0)

    def pass_post(self) -> None:
        self.done.append("POST")
        self.wants_off = self.off_in_post


def test_every_reset_of_the_guest_passes_post(tmp_path: Path) -> None:
    made = FakeChassis(settings.load(tmp_path, {}), ["guest-reset", "guest-reset", "guest-shutdown"])
    made.run()
    assert made.done == ["boot", "POST", "boot", "POST", "boot"]


def test_power_that_is_taken_away_stays_away(tmp_path: Path) -> None:
    made = FakeChassis(settings.load(tmp_path, {}), ["guest-reset", "host-off"], off_in_post=True)
    made.run()
    assert made.done == ["boot", "POST"]


def test_a_running_machine_keeps_its_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = settings.load(tmp_path, {})
    lab.state.mkdir(parents=True)
    lab.write_record({"ipmi_port": lab.ipmi_port})
    monkeypatch.setattr(powers, "chassis_pid", lambda _: 1)
    monkeypatch.setattr(lifecycle, "require", lambda _: None)
    with pytest.raises(LabError, match=r"runs with the ports 2223 \(SSH\).* asked for 2323.*make lab-vm-down first"):
        lifecycle.up(settings.load(tmp_path, {"LAB_VM_SSH_PORT": "2323"}))
    assert settings.load(tmp_path, {}).ssh_port == 2223


def test_what_was_made_is_gone_after_clean_and_keys_stay(tmp_path: Path) -> None:
    lab = settings.load(tmp_path, {})
    (lab.state / "smbios").mkdir(parents=True)
    made = ["disk.qcow2", "nvme.img", "links.json", "bmc-state.json", "smbios/00.bin", "lab.json"]
    kept = ["ssh_key", "bmc-password", "ca.pem"]
    for name in made + kept:
        (lab.state / name).write_text("x")
    lifecycle.clean(lab)
    assert sorted(path.name for path in lab.state.iterdir()) == sorted(kept)


def test_a_disk_keeps_the_image_that_it_is_a_layer_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = settings.load(tmp_path, {})
    lab.state.mkdir(parents=True)
    old, new = tmp_path / "machine-old.img", tmp_path / "machine-new.img"
    old.touch()
    monkeypatch.setattr(image, "ensure", lambda _: new)
    assert lifecycle._base_image(lab) == new, "there is no disk yet"
    (lab.state / "disk.qcow2").touch()
    (lab.state / "image").write_text(f"{old}\n")
    assert lifecycle._base_image(lab) == old
    assert (lab.state / "disk.qcow2").exists()
    old.unlink()
    assert lifecycle._base_image(lab) == new, "a layer over nothing cannot start"
    assert not (lab.state / "disk.qcow2").exists()
    assert (lab.state / "image").read_text() == f"{new}\n"
