"""What the gate looks at after the driver stage: does it answer, do the versions agree, is the hardware healthy."""

from __future__ import annotations

from typing import Any

from .gpu_driver import FABRIC_SERVICE, matches, same_value, upstream
from .gpu_driver_plan import DriverWish
from .gpu_memory_health import memory_measurements
from .gpu_modes import ECC_MODES, mode_measurements

_XID_COMMAND = "journalctl -k -b | grep -i xid"


def measurements(
    seen: dict[str, Any], answer: dict[str, Any], log: tuple[list[dict[str, Any]], str], wish: DriverWish
) -> list[dict[str, Any]]:
    """Measurements of a node with NVIDIA GPUs; *answer* is of `ask_driver`, *log* of `kernel_log`."""
    smi = answer["smi"]
    found = [_answers(seen, answer)]
    if smi:
        found += _versions(seen, smi, wish)
        found.append(_count(seen, smi, wish))
        for gpu in smi["gpus"]:
            found += memory_measurements(gpu)
            found += _modes(gpu, wish)
            # A container's GPUs are set on its host.
            found += [] if wish.container else mode_measurements(gpu, wish)
        found.append(_inforom(smi))
        found += _kernel_modules(seen, wish)
    found += _fabric(seen, smi, wish)
    found += _options(seen, wish)
    return found + _xids(seen, log, wish)


def absent(reason: str) -> list[dict[str, Any]]:
    """The one measurement of a node where the stage does not apply."""
    return [{"name": "gpu_driver", "scope": "node", "skipped": reason}]


def _of(name: str, scope: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "scope": scope, "value": value, "unit": "", "statistic": "read once", **more}


def _answers(seen: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Whether nvidia-smi answers; the cause is the first thing that explains a silence."""
    works = answer["smi"] is not None
    cause = answer["smi_problem"]
    command = "nvidia-smi"
    if not works and "mismatch" in cause:
        cause = f"another version of the libraries than of the loaded module: {cause}; the restart after the update is still due"
    elif not works and seen["nouveau_loaded"]:
        cause = "nouveau holds the GPU: the initramfs was not made anew, or the machine has not restarted since"
        command = "lsmod | grep nouveau; cat /proc/cmdline"
    elif not works and not seen["loaded_version"] and not seen["module_file"]:
        cause = f"no driver module was built for kernel {seen['next_kernel']} ({cause})"
        command = f"dkms status; ls -d /lib/modules/{seen['next_kernel']}/build"
    elif not works and not seen["loaded_version"]:
        cause = f"the driver's module is built for kernel {seen['next_kernel']} but not loaded ({cause})"
        if seen["running_kernel"] != seen["next_kernel"]:
            cause = f"the machine runs kernel {seen['running_kernel']}, the module was built for {seen['next_kernel']}: restart"
        elif seen["secure_boot"] == "enabled":
            cause += "; Secure Boot is enabled and may have refused its signature"
        command = f"modprobe {seen['module_name'] or 'nvidia'}; dmesg | tail"
    return _of("gpu_driver", "nvidia-smi", works, expected=True, cause="" if works else cause, next_command=command)


def _versions(seen: dict[str, Any], smi: dict[str, Any], wish: DriverWish) -> list[dict[str, Any]]:
    """Loaded module, built module and package against what nvidia-smi says; and that against the wish."""
    told = smi["driver_version"] or ""
    package = seen["packages"].get(wish.packages[0]) if wish.packages else None
    sides = [
        ("loaded module", seen["loaded_version"], "the module was updated and the machine has not restarted since"),
        (
            "module of the next kernel",
            seen["module_version"],
            "the next restart will change the driver: DKMS built another one",
        ),
        (
            "package",
            upstream(package["version"]) if package else "",
            "the package was updated, the module was not: dkms status",
        ),
    ]
    found = [
        _of(
            "gpu_driver_version",
            scope,
            value,
            expected=told,
            cause=cause,
            next_command="cat /proc/driver/nvidia/version; dkms status",
        )
        for scope, value, cause in sides
        if value
    ]
    if wish.version:
        found.append(
            _of(
                "gpu_driver_version",
                "nvidia-smi",
                told,
                # A branch is wanted: any version of it is right.
                expected=told if matches(told, wish.version) else wish.version,
                cause="another driver is loaded than the inventory asks for",
                next_command="cat /proc/driver/nvidia/version",
            )
        )
    if wish.cuda_version:
        measured = {"name": "gpu_driver_cuda_version", "scope": "nvidia-smi", "unit": "", "statistic": "read once"}
        if smi["cuda_version"]:
            measured.update(
                value=smi["cuda_version"],
                # Programs of one major release run on every driver of it (NVIDIA, "CUDA Compatibility").
                expected=wish.cuda_version.partition(".")[0],
                cause="the driver's branch is older than the engine's CUDA",
                next_command="nvidia-smi",
            )
        else:
            measured["error"] = "nvidia-smi does not say which CUDA release the driver supports"
        found.append(measured)
    return found


def _kernel_modules(seen: dict[str, Any], wish: DriverWish) -> list[dict[str, Any]]:
    """The kind of module that runs, where Plumbline's packages or the inventory say which one it should be."""
    ours = wish.packages and wish.packages[0] in seen["packages"]
    if not wish.flavour or not (ours or wish.kernel_modules != "auto") or not seen["loaded_version"]:
        return []
    return [
        _of(
            "gpu_kernel_modules",
            "node",
            "open" if seen["loaded_open"] else "proprietary",
            expected=wish.flavour,
            cause="the other kind of module was loaded: it comes from another package, or from an older initramfs",
            next_command="cat /proc/driver/nvidia/version; dkms status",
        )
    ]


def _fabric(seen: dict[str, Any], smi: dict[str, Any] | None, wish: DriverWish) -> list[dict[str, Any]]:
    """The fabric manager, without which the GPUs behind NVSwitches compute nothing: it runs, and in the driver's version."""
    if wish.container or FABRIC_SERVICE not in seen["services"]:
        return []
    state = seen["services"][FABRIC_SERVICE]["active"]
    switches = len(seen["nvswitches"])
    why = f"the node has {switches} NVSwitches" if switches else "by gpu_driver_fabric_manager the node has NVSwitches"
    found = [
        _of(
            "gpu_fabric_manager",
            "node",
            state or "not installed",
            expected="active",
            cause=f"{why}, whose links only the fabric manager sets up",
            next_command=f"systemctl status {FABRIC_SERVICE}; journalctl -b -u {FABRIC_SERVICE}",
        )
    ]
    package = seen["packages"].get(wish.fabric)
    version = seen["fabric_manager"] or (upstream(package["version"]) if package else "")
    driver = (smi or {}).get("driver_version") or seen["loaded_version"]
    if version and driver:
        found.append(
            _of(
                "gpu_driver_version",
                "fabric manager",
                version,
                expected=driver,
                cause="the fabric manager refuses a driver of another version, and the GPUs get no NVLink",
                next_command="nv-fabricmanager --version; cat /proc/driver/nvidia/version",
            )
        )
    return found


def _count(seen: dict[str, Any], smi: dict[str, Any], wish: DriverWish) -> dict[str, Any]:
    if wish.container:
        reason = "a container sees its host's PCI bus, and may be given fewer GPUs"
        return {"name": "gpu_count", "scope": "node", "skipped": reason}
    told = {gpu["address"] for gpu in smi["gpus"]}
    missing = sorted(set(seen["gpus"]) - told)
    return _of(
        "gpu_count",
        "node",
        len(told),
        expected=len(seen["gpus"]),
        cause=f"not known to the driver: {', '.join(missing)} (fallen off the bus, or too old or too new for this driver)"
        if missing
        else "the driver knows more GPUs than the PCI bus shows",
        next_command=f"lspci -vvs {missing[0]}; dmesg | grep -i nvrm" if missing else "lspci -d 10de:",
    )


def _modes(gpu: dict[str, Any], wish: DriverWish) -> list[dict[str, Any]]:
    address = gpu["address"]
    found = []
    wanted = ("" if wish.container else ECC_MODES.get(wish.ecc)) or gpu["ecc_mode_pending"]
    if gpu["ecc_mode"] and wanted:
        waits = gpu["ecc_mode_pending"] not in (None, gpu["ecc_mode"])
        found.append(
            _of(
                "gpu_ecc_mode",
                address,
                gpu["ecc_mode"],
                expected=wanted,
                cause="ECC was switched and waits for a restart"
                if waits
                else "ECC could not be set before the driver was loaded: run the stage gpu_driver again, and restart",
                next_command=f"nvidia-smi -q -d ECC -i {address}",
            )
        )
    if gpu["recovery_action"]:
        found.append(
            _of(
                "gpu_recovery_action",
                address,
                gpu["recovery_action"],
                expected="None",
                cause="the driver asks for this before it can be relied on again",
                next_command=f"nvidia-smi -q -i {address} | grep -i recovery",
            )
        )
    if gpu["persistence_mode"]:
        found.append(
            _of(
                "gpu_persistence_mode",
                address,
                gpu["persistence_mode"],
                expected="Enabled",
                cause="nvidia-persistenced does not run: the GPU is initialised anew for every first program, which takes seconds",
                next_command="systemctl status nvidia-persistenced",
            )
        )
    return found


def _inforom(smi: dict[str, Any]) -> dict[str, Any]:
    corrupt = [line for line in smi["warnings"] if "inforom" in line.lower()]
    return _of(
        "gpu_inforom",
        "node",
        "; ".join(corrupt)[:300] or "no complaint",
        expected="no complaint",
        cause="the GPU's own configuration memory is damaged: its counters and settings cannot be trusted, replace it",
        next_command="nvidia-smi | tail",
    )


def _options(seen: dict[str, Any], wish: DriverWish) -> list[dict[str, Any]]:
    """Each option as the running driver has it."""
    found = []
    for name, wanted in wish.module_options.items():
        if wanted is None:
            continue
        measured = {"name": "gpu_module_option", "scope": name, "unit": "", "statistic": "read once"}
        plain = name.partition("NVreg_")[2] or name
        value = seen["loaded_parameters"].get(plain)
        if value is None:
            why = (
                "the driver is not loaded"
                if not seen["loaded_version"]
                else "the running driver does not tell this parameter"
            )
            measured["error"] = f"/proc/driver/nvidia/params has no {plain}: {why}"
        else:
            measured.update(
                # The driver prints -1 as 4294967295 and octal as decimal: the same value is shown as it was asked for.
                value=str(wanted) if same_value(str(wanted), value) else value,
                expected=str(wanted),
                cause="the module was loaded before the option was set, or from an older initramfs",
                next_command=f"cat {'/etc/modprobe.d/95-plumbline-nvidia.conf'} /proc/driver/nvidia/params",
            )
        found.append(measured)
    return found


def _xids(seen: dict[str, Any], log: tuple[list[dict[str, Any]], str], wish: DriverWish) -> list[dict[str, Any]]:
    """Errors since boot: those of the hardware and driver by GPU, and together those that GPUs got over or programs caused."""
    xids, problem = log
    if problem and wish.container:
        return [{"name": "gpu_xid", "scope": "node", "skipped": f"the kernel log is the host's: {problem}"}]
    if problem:
        return [{"name": "gpu_xid", "scope": "node", "error": problem, "next_command": "dmesg | grep -i xid"}]
    found = []
    for address in sorted({*seen["gpus"], *(xid["address"] for xid in xids)}):
        mine = [xid for xid in xids if xid["address"] == address and not (xid["application"] or xid["recovered"])]
        found.append(
            _of(
                "gpu_xid",
                address,
                sum(xid["count"] for xid in mine),
                unit="count",
                statistic="since boot",
                conditions={str(xid["code"]): xid["count"] for xid in mine},
                cause="; ".join(_told(xid) for xid in mine),
                next_command=_XID_COMMAND,
            )
        )
    for name, kind, why in (
        ("gpu_xid_recovered", "recovered", ""),
        ("gpu_xid_application", "application", "a program's fault by NVIDIA's list"),
    ):
        some = [xid for xid in xids if xid[kind]]
        found.append(
            _of(
                name,
                "node",
                sum(xid["count"] for xid in some),
                unit="count",
                statistic="since boot",
                conditions={f"{xid['address']} {xid['code']}": xid["count"] for xid in some},
                cause="; ".join(f"Xid {xid['code']} on {xid['address']}: {why or xid['meaning']}" for xid in some),
                next_command=_XID_COMMAND,
            )
        )
    return found


def _told(xid: dict[str, Any]) -> str:
    kind = "SXid" if xid["switch"] else "Xid"
    return f"{kind} {xid['code']} ({xid['meaning'] or 'see NVIDIA Xid Errors'}): {xid['first']}"
