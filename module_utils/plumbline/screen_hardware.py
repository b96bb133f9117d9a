"""The hardware of a machine as rows and tables for people: the content of an evidence record `machine`, with the figures measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .loose import count, mapping, mappings, number, texts, words
from .quantities import format_percent, format_seconds, format_value
from .screen_checks import best, condition, figure, fraction, gigabytes

UNKNOWN_TEXT = "not known"
_SHOWN_ADDRESSES = 4
Checks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Table:
    """Rows of equal length below their head; ``numbers`` are the columns that are aligned right."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()


def facts(machine: Mapping[str, Any], checks: Checks) -> list[tuple[str, str]]:
    """Return (label, text) for the machine as a whole, in the order in which an engineer asks."""
    rows = [("BIOS", _bios(machine)), ("System", _os(machine)), ("CPU", _cpu(machine)), *_memory(machine, checks)]
    rows += _network(machine)
    rows += [("Storage", _storage(checks))] if best(checks, "storage_read_bandwidth") else []
    if (reduce := best(checks, "collective_bus_bandwidth")) is not None:
        rows.append(
            ("All-reduce", f"bus {gigabytes(reduce)} GB/s, {words(reduce.get('scope')).removeprefix('all_reduce ')}")
        )
    return [*rows, ("Sensors", _sensors(machine)), ("Errors", _errors(machine, checks))]


def name_of(machine: Mapping[str, Any]) -> str:
    """Return maker, product and serial number."""
    system = mapping(machine.get("system"))
    maker, product = words(system.get("manufacturer")), words(system.get("product"))
    # Some makers repeat themselves in the product's name.
    name = (
        product if product.lower().startswith(maker.lower()) and product else " ".join(filter(None, (maker, product)))
    )
    serial = words(system.get("serial_number"))
    if not name:
        virtual = words(mapping(machine.get("os")).get("virtualization"))
        name = "maker and product not known" + (f", virtualization {virtual}" if virtual not in ("", "none") else "")
    return name + (f", serial {serial}" if serial else "")


def link_text(link: Any, suffix: str = "") -> str:
    """Return ``32 GT/s x16``; ``suffix`` is `max_` for what it can do."""
    link = mapping(link)
    speed, width = number(link.get(f"{suffix}speed_gts" if suffix else "speed_gts")), count(link.get(f"{suffix}width"))
    if speed is None and width is None:
        return "?"
    if width == 0:
        return "down"
    return f"{'?' if speed is None else f'{speed:g}'} GT/s x{'?' if width is None else width}"


def short(address: str) -> str:
    """Return an address as `lspci` shows it, without the domain 0000."""
    return address[5:] if address.startswith("0000:") else address


def numa_table(machine: Mapping[str, Any], checks: Checks) -> Table | None:
    """Return the NUMA nodes with their CPUs, memory and measured bandwidth; of a single node all is told elsewhere."""
    nodes = mappings(machine.get("numa"))
    if len(nodes) < 2:
        return None
    rows = []
    for node in nodes[:16]:
        number_text = words(node.get("node"))
        figures = (
            figure(checks, name, f"numa{number_text}")
            for name in ("host_memory_bandwidth", "host_memory_read_bandwidth")
        )
        size = count(node.get("memory_bytes"))
        rows.append(
            (
                number_text or "?",
                words(node.get("cpus")) or "none",
                _size(size) if size else "none",
                *map(gigabytes, figures),
            )
        )
    head: tuple[str, ...] = ("NUMA", "CPUs", "memory", "triad GB/s", "read GB/s")
    table = _without_empty(Table("", head, rows, frozenset({2, 3, 4})))
    more = f"{len(nodes)} NUMA nodes, the first 16 shown" if len(nodes) > 16 else ""
    return Table(more, table.head, table.rows, table.numbers)


def device_tables(machine: Mapping[str, Any], checks: Checks, idle: set[str]) -> list[Table]:
    """Return a table for the GPUs of each kind, one row each, and one for NICs and drives, grouped when equal."""
    devices = mappings(machine.get("devices"))
    gpus: dict[str, list[Mapping[str, Any]]] = {}
    for device in devices:
        if device.get("kind") == "gpu":
            gpus.setdefault(_named(device), []).append(device)
    tables = [_gpus(name, members, checks, idle) for name, members in gpus.items()]
    others = [device for device in devices if device.get("kind") != "gpu"]
    return tables + ([_others(others)] if others else [])


def shared(machine: Mapping[str, Any]) -> list[str]:
    """Return an entry for each link that GPUs share with other devices, those that GPUs share with each other first."""
    kinds = {words(device.get("address")): words(device.get("kind")) for device in mappings(machine.get("devices"))}
    entries: list[tuple[int, int, str, str, str]] = []
    for link in mappings(machine.get("shared")):
        below = texts(link.get("devices"))
        gpus = [short(address) for address in below if kinds.get(address) == "gpu"]
        named = [f"{'GPU' if len(gpus) == 1 else 'GPUs'} {_list(gpus)}"]
        for kind, label in (("nic", "NIC"), ("nvme", "NVMe")):
            times = sum(kinds.get(address) == kind for address in below)
            named += [f"{times} {label}"] if times else []
        entries.append(
            (-len(gpus), len(entries), short(words(link.get("address"))), link_text(link, "max_"), ", ".join(named))
        )
    links = {link for _gpus, _place, _address, link, _named in entries}
    if len(links) == 1 and len(entries) > 1:
        return [f"{address}: {named}" for *_order, address, _link, named in sorted(entries)] + [f"each {links.pop()}"]
    return [f"{address} {link}: {named}" for *_order, address, link, named in sorted(entries)]


def _size(value: float | None) -> str:
    return UNKNOWN_TEXT if value is None else format_value(int(value), "B")


def _list(names: Sequence[str], shown: int = _SHOWN_ADDRESSES) -> str:
    """Return names, and where they are more than ``shown`` all but one of those and how many there are beside."""
    kept = shown - 1 if len(names) > shown else shown
    return ", ".join(names[:kept]) + (f" and {len(names) - kept} more" if len(names) > kept else "")


def _bios(machine: Mapping[str, Any]) -> str:
    system = mapping(machine.get("system"))
    version, date = words(system.get("bios_version")), words(system.get("bios_date"))
    text = " ".join(filter(None, (words(system.get("bios_vendor")), version))) or UNKNOWN_TEXT
    bmc = words(system.get("bmc_version"))
    return text + (f" of {date}" if date else "") + (f"; BMC {bmc}" if bmc else "")


def _os(machine: Mapping[str, Any]) -> str:
    system = mapping(machine.get("os"))
    virtual = words(system.get("virtualization"))
    parts = [
        words(system.get("distribution")) or f"distribution {UNKNOWN_TEXT}",
        f"kernel {words(system.get('kernel')) or UNKNOWN_TEXT}",
        words(system.get("architecture")),
        {"": "", "none": "bare metal"}.get(virtual, f"in {virtual}"),
        "read without root" if system.get("root") is False else "",
    ]
    return ", ".join(filter(None, parts))


def _cpu(machine: Mapping[str, Any]) -> str:
    cpu = mapping(machine.get("cpu"))
    sockets, cores, threads = (count(cpu.get(key)) for key in ("sockets", "cores", "threads"))
    text = f"{sockets or '?'} x {words(cpu.get('model')) or 'model not known'}; "
    text += ", ".join(
        f"{'?' if value is None else value} {word}" for value, word in ((cores, "cores"), (threads, "threads"))
    )
    nodes = len(mappings(machine.get("numa")))
    text += f", {nodes} NUMA {'node' if nodes == 1 else 'nodes'}" if nodes else ""
    allowed = count(cpu.get("allowed"))
    return text + (f" ({allowed} may be used)" if allowed and threads and allowed < threads else "")


def _memory(machine: Mapping[str, Any], checks: Checks) -> list[tuple[str, str]]:
    memory = mapping(machine.get("memory"))
    visible, limit = count(memory.get("visible_bytes")), count(memory.get("limit_bytes"))
    seen = f"kernel sees {_size(visible) if visible else '?'}" + (
        f", {_size(limit)} allowed" if limit and visible and limit < visible else ""
    )
    groups = mappings(memory.get("groups"))
    rows = []
    if groups:
        populated = sum(count(group.get("count")) or 0 for group in groups)
        slots = count(memory.get("slots"))
        rows.append(("Memory", f"{'; '.join(map(_dimms, groups[:3]))}; {populated} of {slots or '?'} slots; {seen}"))
    else:
        rows.append(("Memory", f"{seen}; DIMMs not known: {words(memory.get('reason')) or 'none is listed'}"))
    bandwidth = number(memory.get("bandwidth_bytes_per_second"))
    source = words(memory.get("bandwidth_source")).replace(" (SMBIOS)", "")
    ceiling = (
        "limit not known"
        if bandwidth is None
        else f"limit {bandwidth / 1e9:.1f} GB/s" + (f" = {source}" if source else "")
    )
    if sockets := mappings(memory.get("sockets")):
        rows.append(("Channels", f"{_channels(sockets)}; {ceiling}"))
    elif groups:
        rows.append(("Channels", f"not known; {ceiling}"))
    measured: list[str] = []
    for name, label in (("bandwidth", "triad"), ("read_bandwidth", "read"), ("copy_bandwidth", "copy")):
        check = figure(checks, f"host_memory_{name}", "node")
        if check is not None:
            part = fraction(check)
            of_limit = "" if part is None else f" ({format_percent(part)}{' of limit' if not measured else ''})"
            measured.append(f"{label} {(number(check.get('value')) or 0) / 1e9:.1f} GB/s{of_limit}")
    return rows + ([("Measured", ", ".join(measured))] if measured else [])


def _dimms(group: Mapping[str, Any]) -> str:
    rated, now = count(group.get("rated_mts")), count(group.get("configured_mts"))
    size = count(group.get("size_bytes"))
    kind = words(group.get("type"))
    speeds = f"rated {rated or '?'}, runs {now or '?'} MT/s" if rated or now else "speed not told"
    speeds = f"{now} MT/s as rated" if now and now == rated else speeds
    return (
        f"{count(group.get('count')) or '?'} x {_size(size) if size else '? GiB'}{f' {kind}' if kind else ''}, {speeds}"
    )


def _channels(sockets: Sequence[Mapping[str, Any]]) -> str:
    """Return how many channels have a DIMM, by socket; in few words where all sockets are alike and full."""
    told = []
    for socket in sockets:
        total, used = count(socket.get("channels")), count(socket.get("channels_populated"))
        empty = texts(socket.get("empty_channels"))
        text = f"{'?' if used is None else used} of {total or '?'}"
        told.append((words(socket.get("socket")) or "?", text + (f" ({_list(empty)} empty)" if empty else "")))
    if len({text for _socket, text in told}) == 1:
        return told[0][1] + (" on each socket" if len(told) > 1 else "")
    return ", ".join(f"socket {socket}: {text}" for socket, text in told)


def _network(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    ports = [port for device in mappings(machine.get("devices")) for port in mappings(device.get("interfaces"))]
    if not ports:
        return []
    up = [port for port in ports if words(port.get("state")) in ("up", "active")]
    named = []
    for port in up:
        speed = number(port.get("bits_per_second"))
        named.append(f"{words(port.get('name'))} {format_value(speed, 'bit/s') if speed else 'speed not told'}")
    down = [words(port.get("name")) for port in ports if port not in up]
    parts = [f"up: {_list(named, 6)}"] if named else []
    return [("Network", "; ".join(parts + ([f"not up: {_list(down, 6)}"] if down else [])))]


def _storage(checks: Checks) -> str:
    check = best(checks, "storage_read_bandwidth") or {}
    text = f"{words(check.get('scope'))}: sequential read {gigabytes(check)} GB/s"
    seconds = number(condition(check, "load_seconds"))
    return text + (f", at least {format_seconds(seconds)} to load the model" if seconds else "")


def _sensors(machine: Mapping[str, Any]) -> str:
    sensors = mapping(machine.get("sensors"))
    if not sensors.get("available"):
        return f"not read: {words(sensors.get('reason')) or 'no sensor was read'}"
    hottest, power = mapping(sensors.get("hottest")), number(sensors.get("power_watts"))
    celsius, limit = number(hottest.get("celsius")), number(hottest.get("limit_celsius"))
    # Where limits are known it is the one with the least margin, which may be a cool inlet.
    which = "hottest" if limit is None else "nearest to its limit"
    parts = ["temperature not told" if celsius is None else f"{which} {words(hottest.get('name'))} {celsius:g} °C"]
    parts[0] += f" of {limit:g}" if celsius is not None and limit is not None else ""
    parts.append("power not told" if power is None else f"power {power:,.0f} W")
    supplies = mappings(sensors.get("supplies"))
    if supplies:
        bad = [words(item.get("name")) for item in supplies if words(item.get("health")).lower() not in ("", "ok")]
        untold = sum(not words(item.get("health")) for item in supplies)
        well = len(supplies) - len(bad) - untold
        state = [f"{well} OK"] if well else []
        state += [f"{untold} do not tell"] if untold else []
        state += [f"{_list(bad)} not OK"] if bad else []
        parts.append(f"power supplies: {', '.join(state)}")
    unwell = texts(sensors.get("unwell"))
    parts += [f"not well: {_list(unwell)}"] if unwell else []
    silent = count(sensors.get("silent"))
    return "; ".join(
        [*parts, *([f"{silent} of {count(sensors.get('count')) or '?'} sensors without a reading"] if silent else [])]
    )


def _errors(machine: Mapping[str, Any], checks: Checks) -> str:
    errors = mapping(machine.get("errors"))
    parts = []
    for label, bad, good in (
        ("memory", "memory_uncorrected", "memory_corrected"),
        ("PCIe", "pcie_uncorrectable", "pcie_correctable"),
    ):
        wrong, right = count(errors.get(bad)), count(errors.get(good))
        told = ["?" if value is None else str(value) for value in (wrong, right)]
        counted = wrong is not None or right is not None
        parts.append(
            f"{label} {told[0]} uncorrected, {told[1]} corrected since boot" if counted else f"{label} not counted"
        )
    for name, label in (("gpu_ecc_uncorrected", "GPU memory {} uncorrected"), ("gpu_xid", "{} Xids")):
        counts = [
            value for check in checks if check.get("name") == name and (value := count(check.get("value"))) is not None
        ]
        parts += [label.format(sum(counts))] if counts else []
    return "; ".join(parts)


def _named(device: Mapping[str, Any]) -> str:
    ids = ":".join(words(device.get(key)) or "?" for key in ("vendor_id", "device_id"))
    name = words(device.get("name"))
    return f"{name} [{ids}]" if name and ids != "?:?" else name or f"[{ids}]"


def _numa(device: Mapping[str, Any]) -> str:
    node = count(device.get("numa_node"))
    return "?" if node is None else str(node)


def _gpus(name: str, devices: Sequence[Mapping[str, Any]], checks: Checks, idle: set[str]) -> Table:
    rows = []
    for device in devices:
        address, hop = words(device.get("address")), mapping(device.get("limit_hop"))
        now = link_text(device.get("link")) if device.get("responsive") is not False else "no answer"
        rows.append(
            (
                short(address),
                _numa(device),
                words(device.get("slot")) or "?",
                now + (" idle" if address in idle else ""),
                link_text(device.get("link"), "max_"),
                f"{short(words(hop.get('address')))} {link_text(hop, 'max_')}" if hop else "own link",
                gigabytes(best(checks, "gpu_h2d_bandwidth", address)),
                gigabytes(best(checks, "gpu_d2h_bandwidth", address)),
            )
        )
    head = ("GPU", "NUMA", "slot", "link now", "can do", "narrowest hop", "to GPU GB/s", "from GPU GB/s")
    drivers = sorted({words(device.get("driver")) for device in devices} - {""})
    title = f"{len(devices)} x {name}, {'driver ' + ', '.join(drivers) if drivers else 'no driver'}"
    linked = any(mapping(device.get("link")) for device in devices)
    title += "; no narrower hop above" if linked and all(row[5] == "own link" for row in rows) else ""
    return _without_own_links(Table(title, head, rows, frozenset({6, 7})))


def _others(devices: Sequence[Mapping[str, Any]]) -> Table:
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for device in devices:
        kind = {"nic": "NIC", "nvme": "NVMe"}.get(words(device.get("kind")), words(device.get("kind")) or "?")
        size = count(device.get("size_bytes"))
        name = f"{kind} {_named(device)}" + (f" {size / 1e12:.2f} TB" if size else "")
        hop = mapping(device.get("limit_hop"))
        link = device.get("link")
        now, able = ("no link", "") if link is None else (link_text(link), link_text(link, "max_"))
        key = (name, now, able, link_text(hop, "max_") if hop else "own link" if link is not None else "")
        groups.setdefault(key, []).append(device)
    rows = []
    for (name, now, able, hop_text), members in groups.items():
        nodes = ",".join(sorted({_numa(member) for member in members}))
        addresses = _list([short(words(member.get("address"))) for member in members])
        rows.append((f"{len(members)} x {name}", nodes, now, able, hop_text, addresses))
    return _without_own_links(
        Table("", ("NICs and drives", "NUMA", "link now", "can do", "narrowest hop", "addresses"), rows)
    )


def _without_own_links(table: Table) -> Table:
    """Leave out the narrowest hop where it is every device's own link."""
    column = table.head.index("narrowest hop")
    if all(row[column] in ("own link", "") for row in table.rows):
        rows = [(*row[:column], "", *row[column + 1 :]) for row in table.rows]
        table = Table(table.title, table.head, rows, table.numbers)
    return _without_empty(table)


def _without_empty(table: Table) -> Table:
    """Leave out columns in which no row says anything."""
    kept = [column for column in range(len(table.head)) if any(row[column] for row in table.rows)]
    return Table(
        table.title,
        tuple(table.head[column] for column in kept),
        [tuple(row[column] for column in kept) for row in table.rows],
        frozenset(kept.index(column) for column in table.numbers if column in kept),
    )
