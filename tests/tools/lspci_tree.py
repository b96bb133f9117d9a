"""Turn the text of `lspci -vvv` into a sysfs tree with real configuration-space bytes, as a parser would find it on that machine.

What the text does not say (device ids by name, most registers) stays zero; what the parser looks at is all there.
"""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

SPEEDS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6, "128": 7}
VENDORS = {
    "NVIDIA Corporation": 0x10DE,
    "Intel Corporation": 0x8086,
    "Broadcom / LSI": 0x1000,
    "Broadcom Inc.": 0x14E4,
    "Mellanox Technologies": 0x15B3,
    "PMC-Sierra": 0x11F8,
    "Micron Technology": 0x1344,
    "Matrox Electronics": 0x102B,
    "PLDA": 0x1556,
}
CLASSES = {
    "3D controller": 0x0302,
    "VGA compatible controller": 0x0300,
    "Ethernet controller": 0x0200,
    "Non-Volatile memory controller": 0x0108,
    "PCI bridge": 0x0604,
    "Host bridge": 0x0600,
    "ISA bridge": 0x0601,
    "Bridge": 0x0680,
    "System peripheral": 0x0880,
    "Generic system peripheral [0807]": 0x0807,
    "Serial Attached SCSI controller": 0x0107,
    "Performance counters": 0x1101,
    "USB controller": 0x0C03,
    "SMBus": 0x0C05,
    "Serial bus controller": 0x0C80,
    "SATA controller": 0x0106,
    "RAM memory": 0x0500,
    "Communication controller": 0x0780,
    "Memory controller": 0x0580,
}
PORT_TYPES = {
    "Endpoint": 0x0,
    "Legacy Endpoint": 0x1,
    "Root Port": 0x4,
    "Upstream Port": 0x5,
    "Downstream Port": 0x6,
    "PCI-Express to PCI/PCI-X Bridge": 0x7,
    "Root Complex Integrated Endpoint": 0x9,
    "Root Complex Event Collector": 0xA,
}
CAPABILITIES = {
    "Power Management": 0x01,
    "Vital Product Data": 0x03,
    "Slot ID": 0x04,
    "MSI-X": 0x11,
    "MSI": 0x05,
    "Vendor Specific Information": 0x09,
    "Subsystem": 0x0D,
    "Express": 0x10,
    "SATA HBA": 0x12,
    "Null": 0x00,
}
EXTENDED = {
    "Advanced Error Reporting": 0x01,
    "Virtual Channel": 0x02,
    "Device Serial Number": 0x03,
    "Power Budgeting": 0x04,
    "Root Complex Event Collector": 0x07,
    "Vendor Specific Information": 0x0B,
    "Access Control Services": 0x0D,
    "Alternative Routing-ID Interpretation": 0x0E,
    "Single Root I/O Virtualization": 0x10,
    "Multicast": 0x12,
    "Page Request Interface": 0x13,
    "Physical Resizable BAR": 0x15,
    "Address Translation Service": 0x0F,
    "Transaction Processing Hints": 0x17,
    "Latency Tolerance Reporting": 0x18,
    "Secondary PCI Express": 0x19,
    "Process Address Space ID": 0x1B,
    "Downstream Port Containment": 0x1D,
    "L1 PM Substates": 0x1E,
    "Precision Time Measurement": 0x1F,
    "Designated Vendor-Specific": 0x23,
    "Virtual Resizable BAR": 0x24,
    "Data Link Feature": 0x25,
    "Physical Layer 16.0": 0x26,
    "Lane Margining": 0x27,
    "Native PCIe Enclosure Management": 0x28,
}
ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
UNCORRECTABLE = {
    "DLP": 4,
    "SDES": 5,
    "TLP": 12,
    "FCP": 13,
    "CmpltTO": 14,
    "CmpltAbrt": 15,
    "UnxCmplt": 16,
    "RxOF": 17,
    "MalfTLP": 18,
    "ECRC": 19,
    "UnsupReq": 20,
    "ACSViol": 21,
}
CORRECTABLE = {"RxErr": 0, "BadTLP": 6, "BadDLLP": 7, "Rollover": 8, "Timeout": 12, "AdvNonFatalErr": 13}
AER_NAMES = {
    "correctable": ("COR", ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr")),
    "nonfatal": ("NONFATAL", ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnsupReq")),
    "fatal": ("FATAL", ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnsupReq")),
}


def read_text(path: Path) -> str:
    """The text of a capture, packed or not."""
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


class Function:
    """One function: its address and its 4096 configuration bytes, which a test may change before the tree is written."""

    def __init__(self, block: str) -> None:
        self.block = block
        head = block.splitlines()[0]
        address, _, rest = head.partition(" ")
        self.address = address if address.count(":") == 2 else f"0000:{address}"
        self.class_name, _, self.name = rest.partition(": ")
        self.config = bytearray(4096)
        self.express: int | None = None
        self.aer_offset: int | None = None
        self.acs_offset: int | None = None
        self.parent: Function | None = None
        self.aer = {kind: dict.fromkeys(names, 0) for kind, (_, names) in AER_NAMES.items()}
        self.numa_node = int(self.find(r"NUMA node: (\d+)") or -1)
        self.driver = self.find(r"Kernel driver in use: (\S+)")
        self.slot = self.find(r"Physical Slot: (\S+)")
        self._header()
        self._capabilities()

    def find(self, pattern: str, text: str | None = None) -> str | None:
        match = re.search(pattern, self.block if text is None else text)
        return match.group(1) if match else None

    def put(self, layout: str, offset: int, value: int) -> None:
        struct.pack_into(layout, self.config, offset, value)

    def get(self, layout: str, offset: int) -> int:
        return int(struct.unpack_from(layout, self.config, offset)[0])

    # What tests inject.
    def set_link(self, *, speed: str | None = None, width: int | None = None, target: str | None = None) -> None:
        assert self.express is not None
        status = self.get("<H", self.express + 0x12)
        if speed is not None:
            status = status & ~0xF | SPEEDS[speed]
        if width is not None:
            status = status & ~0x3F0 | width << 4
        self.put("<H", self.express + 0x12, status)
        if target is not None:
            self.put("<H", self.express + 0x30, self.get("<H", self.express + 0x30) & ~0xF | SPEEDS[target])

    def set_payload(self, code: int) -> None:
        """The largest payload that the function sends: 128 bytes << code."""
        assert self.express is not None
        control = self.get("<H", self.express + 8)
        self.put("<H", self.express + 8, control & ~0xE0 | code << 5)

    def set_acs(self, *names: str) -> None:
        """Switch these parts of ACS on, by lspci's names."""
        assert self.acs_offset is not None
        self.put("<H", self.acs_offset + 6, sum(1 << ACS.index(name) for name in names))

    def set_slot(self, *, occupied: bool, active: bool) -> None:
        """What a port's slot senses, and whether its link is up."""
        assert self.express is not None
        self.put("<H", self.express + 0x1A, 0x40 if occupied else 0)
        status = self.get("<H", self.express + 0x12) & ~0x2000
        self.put("<H", self.express + 0x12, status | (0x2000 if active else 0))

    def _header(self) -> None:
        vendor = next((code for name, code in VENDORS.items() if self.name.startswith(name)), 0x1234)
        device = int(self.find(r"Device ([0-9a-f]{4})\b", self.name) or "0001", 16)
        bridge = "PCI bridge" in self.class_name
        interface = int(self.find(r"\(prog-if ([0-9a-f]{2})") or "0", 16)
        self.put("<H", 0x00, vendor)
        self.put("<H", 0x02, device)
        self.put("<H", 0x04, 0x0406)
        self.put("<I", 0x08, CLASSES[self.class_name] << 16 | interface << 8)
        self.config[0x0E] = 1 if bridge else 0
        if bridge:
            for offset, key in ((0x18, "primary"), (0x19, "secondary"), (0x1A, "subordinate")):
                self.config[offset] = int(self.find(key + r"=([0-9a-f]{2})") or "0", 16)

    def _capabilities(self) -> None:
        parts = re.split(r"\n\s*Capabilities: \[", self.block)[1:]
        basic: list[tuple[int, int]] = []
        extended: list[tuple[int, int, int]] = []
        for part in parts:
            match = re.match(r"([0-9a-f]+)(?: v(\d+))?\] (.*)", part)
            if not match:
                continue  # "access denied"
            offset, version, title = int(match.group(1), 16), match.group(2), match.group(3)
            if version is None:
                code = next(code for name, code in CAPABILITIES.items() if title.startswith(name))
                basic.append((offset, code))
                if code == 0x10:
                    self._express(offset, title, part)
            else:
                named = re.match(r"Extended Capability ID 0x([0-9a-f]+)", title)
                code = int(named.group(1), 16) if named else next(c for n, c in EXTENDED.items() if title.startswith(n))
                extended.append((offset, code, int(version)))
                self._extended(code, offset, part)
        if basic:
            self.put("<H", 0x06, 0x10)
            self.config[0x34] = basic[0][0]
        for index, (offset, code) in enumerate(basic):
            self.config[offset] = code
            self.config[offset + 1] = basic[index + 1][0] if index + 1 < len(basic) else 0
        for index, (offset, code, version) in enumerate(extended):
            following = extended[index + 1][0] if index + 1 < len(extended) else 0
            self.put("<I", offset, code | version << 16 | following << 20)

    def _express(self, offset: int, title: str, text: str) -> None:
        self.express = offset
        kind = re.match(r"Express(?: \(v(\d)\))? ([A-Za-z/ -]+?)(?: \(Slot([+-])\))?,", title)
        assert kind, title
        flags = int(kind.group(1) or "1") | PORT_TYPES[kind.group(2)] << 4 | (0x100 if kind.group(3) == "+" else 0)
        self.put("<H", offset + 2, flags)
        payloads = {128 << code: code for code in range(6)}
        supported, current, request = (
            int(self.find(pattern, text) or "128")
            for pattern in (r"DevCap:\s+MaxPayload (\d+)", r"(?s)DevCtl:.*?MaxPayload (\d+)", r"MaxReadReq (\d+)")
        )
        self.put("<I", offset + 4, payloads[supported])
        self.put("<H", offset + 8, payloads[current] << 5 | payloads[request] << 12)
        capability = re.search(r"LnkCap:\s+Port #(\d+), Speed ([\d.]+)GT/s, Width x(\d+), ASPM ([^,\n]*)", text)
        if not capability:
            return
        port, speed, width, aspm = capability.groups()
        states = (1 if "L0s" in aspm else 0) | (2 if "L1" in aspm else 0)
        reports = 0x100000 if "LLActRep+" in text else 0
        self.put(
            "<I", offset + 0xC, SPEEDS[speed] | int(width) << 4 | states << 10 | reports | (int(port) & 0xFF) << 24
        )
        control = self.find(r"LnkCtl:\s+ASPM ([^;\n]*)", text) or ""
        enabled = ((1 if "L0s" in control else 0) | (2 if "L1" in control else 0)) if "Enabled" in control else 0
        self.put("<H", offset + 0x10, enabled)
        status = re.search(r"LnkSta:\s+Speed ([\d.]+)GT/s[^,]*, Width x(\d+)", text)
        if status:
            active = 0x2000 if "DLActive+" in text else 0
            self.put("<H", offset + 0x12, SPEEDS[status.group(1)] | int(status.group(2)) << 4 | active)
        slot = self.find(r"Slot #(\d+)", text)
        if slot:
            self.put("<I", offset + 0x14, int(slot) << 19)
        if "PresDet+" in text:
            self.put("<H", offset + 0x1A, 0x40)
        fastest = self.find(r"LnkCap2: Supported Link Speeds: 2\.5-([\d.]+)GT/s", text)
        if fastest:
            self.put("<I", offset + 0x2C, (1 << SPEEDS[fastest]) - 1 << 1)
        target = self.find(r"LnkCtl2: Target Link Speed: ([\d.]+)GT/s", text)
        if target:
            self.put("<H", offset + 0x30, SPEEDS[target])

    def _extended(self, code: int, offset: int, text: str) -> None:
        if code == 0x0D:
            self.acs_offset = offset
            for register, line in ((4, "ACSCap"), (6, "ACSCtl")):
                values = self.find(line + r":(.*)", text) or ""
                self.put("<H", offset + register, sum(1 << bit for bit, name in enumerate(ACS) if f"{name}+" in values))
        if code == 0x01:
            self.aer_offset = offset
            for register, line, names in ((4, "UESta", UNCORRECTABLE), (0x10, "CESta", CORRECTABLE)):
                words = (self.find(line + r":(.*)", text) or "").split()
                self.put("<I", offset + register, sum(1 << bit for name, bit in names.items() if f"{name}+" in words))


class Machine:
    """All functions of a capture, by address."""

    def __init__(self, text: str) -> None:
        blocks = re.split(r"\n(?=[0-9a-f]{2,5}:[0-9a-f]{2}[:.])", "\n" + text.strip() + "\n")
        found = [Function(block) for block in blocks if block.strip()]
        self.functions = {function.address: function for function in found}
        by_bus = {(f.address.split(":")[0], f.config[0x19]): f for f in found if f.config[0x0E] == 1}
        for function in found:
            domain, bus, _ = function.address.split(":")
            function.parent = by_bus.get((domain, int(bus, 16)))

    def __getitem__(self, address: str) -> Function:
        return self.functions[address]

    def write(self, root: Path, *, config_bytes: int = 4096, symlinks: bool = True) -> Path:
        """Write the tree below *root*; `config_bytes=64` is what a user without root sees."""
        bus = root / "sys/bus/pci/devices"
        bus.mkdir(parents=True)
        slots = root / "sys/bus/pci/slots"
        slots.mkdir(parents=True)
        for function in self.functions.values():
            real = self._directory(function)
            directory = root / "sys/devices" / real if symlinks else bus / function.address
            directory.mkdir(parents=True, exist_ok=True)
            if symlinks:
                (bus / function.address).symlink_to(f"../../../devices/{real}")
            self.write_files(function, directory, config_bytes)
            if function.driver:
                (directory / "driver").symlink_to(f"../../../bus/pci/drivers/{function.driver}")
            # lspci names the slot of a device and of the port above alike: the slot belongs to the device.
            if function.slot and not (slots / function.slot).exists() and function.config[0x0E] == 0:
                (slots / function.slot).mkdir()
                (slots / function.slot / "address").write_text(function.address.rpartition(".")[0] + "\n")
        return root

    def _directory(self, function: Function) -> str:
        above = [function.address]
        while function.parent:
            function = function.parent
            above.insert(0, function.address)
        return "/".join([f"pci{above[0].rpartition(':')[0]}", *above])

    @staticmethod
    def write_files(function: Function, directory: Path, config_bytes: int = 4096) -> None:
        """Write the files of one function, over those of an earlier state."""
        (directory / "config").write_bytes(bytes(function.config[:config_bytes]))
        texts = {
            "vendor": f"0x{function.get('<H', 0):04x}",
            "device": f"0x{function.get('<H', 2):04x}",
            "class": f"0x{function.get('<I', 8) >> 8:06x}",
            "numa_node": str(function.numa_node),
        }
        if function.express is not None and function.get("<I", function.express + 0xC):
            names = {code: name if "." in name else f"{name}.0" for name, code in SPEEDS.items()}
            status, capability = (
                function.get("<H", function.express + 0x12),
                function.get("<I", function.express + 0xC),
            )
            texts["current_link_speed"] = f"{names[status & 0xF]} GT/s PCIe" if status & 0xF in names else "Unknown"
            texts["current_link_width"] = str(status >> 4 & 0x3F)
            texts["max_link_speed"] = f"{names[capability & 0xF]} GT/s PCIe" if capability & 0xF in names else "Unknown"
            texts["max_link_width"] = str(capability >> 4 & 0x3F)
        if function.aer_offset is not None:
            for kind, (total, _) in AER_NAMES.items():
                counts = function.aer[kind]
                lines = [f"{name} {count}" for name, count in counts.items()]
                texts[f"aer_dev_{kind}"] = "\n".join([*lines, f"TOTAL_ERR_{total} {sum(counts.values())}"])
        for name, text in texts.items():
            (directory / name).write_text(text + "\n")


def machine(path: Path) -> Machine:
    """The machine of a capture."""
    return Machine(read_text(path))
