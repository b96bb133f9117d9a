"""Power limit, compute mode and ECC of the GPUs: what nvidia-smi allows, what differs from the wish, and what was set.

ECC is kept by the GPU itself and takes effect at the next restart. Power limit and compute mode are the driver's: they last
until it is unloaded, so a unit sets them after every boot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gpu_driver_plan import DriverWish
    from .tree import Tree

MODES_UNIT = "/etc/systemd/system/plumbline-gpu-modes.service"
ECC_MODES = {"enabled": "Enabled", "disabled": "Disabled"}
# The inventory's word: what nvidia-smi -q calls it, and the number that nvidia-smi -c takes.
COMPUTE_MODES = {
    "default": ("Default", "0"),
    "prohibited": ("Prohibited", "2"),
    "exclusive_process": ("Exclusive_Process", "3"),
}
# nvidia-smi prints limits with two decimals.
_SAME_WATTS = 0.01


def unit_content(wish: DriverWish) -> str:
    """The unit that sets power limit and compute mode after every boot; empty when neither is wished."""
    commands = []
    if wish.power_limit_watts:
        commands.append(f"ExecStart=nvidia-smi -pl {wish.power_limit_watts:g}")
    if wish.compute_mode:
        commands.append(f"ExecStart=nvidia-smi -c {COMPUTE_MODES[wish.compute_mode][1]}")
    if not commands:
        return ""
    lines = [
        "# Managed by Plumbline (role gpu_driver): change the inventory, not this file.",
        "[Unit]",
        "Description=Power limit and compute mode of the GPUs, as Plumbline's inventory has them",
        # Without persistence mode the driver forgets both as soon as nothing uses the GPU.
        "Wants=nvidia-persistenced.service",
        "After=nvidia-persistenced.service",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        *commands,
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def mode_problems(smi: dict[str, Any] | None, wish: DriverWish) -> list[str]:
    """A sentence for each wish that cannot be had of a GPU; nothing can be said while the driver does not answer."""
    problems = []
    for gpu in (smi or {}).get("gpus", []):
        if wish.power_limit_watts:
            problems += _limit_problem(gpu, wish.power_limit_watts)
        if wish.ecc and not gpu["ecc_mode"]:
            problems.append(
                f"gpu_driver_ecc: expected a GPU that lets ECC be set, found that {gpu['name']} at {gpu['address']} tells of none: "
                "take gpu_driver_ecc out of the inventory of this node"
            )
        if wish.compute_mode and not gpu["compute_mode"]:
            problems.append(
                f"gpu_driver_compute_mode: expected a GPU with compute modes, found that {gpu['name']} at {gpu['address']} tells of "
                "none: take gpu_driver_compute_mode out of the inventory of this node"
            )
    return problems


def mode_plan(tree: Tree, smi: dict[str, Any] | None, wish: DriverWish) -> dict[str, Any]:
    """`differences` (modes, ecc), `mode_unit_content`, `mode_commands` (once, in this run) and whether ECC waits for a restart."""
    content = unit_content(wish)
    old = tree.text(MODES_UNIT) or ""
    gpus = (smi or {}).get("gpus", [])
    commands = []
    for gpu in gpus:
        address = ["nvidia-smi", "-i", gpu["address"]]
        # What an earlier run set and nobody wishes any more goes back to what the GPU comes with.
        default = gpu["power_limit_default_watts"]
        if " -pl " in old and not wish.power_limit_watts and default and not _same(gpu["power_limit_watts"], default):
            commands.append([*address, "-pl", f"{default:g}"])
        if " -c " in old and not wish.compute_mode and gpu["compute_mode"] not in (None, COMPUTE_MODES["default"][0]):
            commands.append([*address, "-c", COMPUTE_MODES["default"][1]])
    unset = any(
        (wish.power_limit_watts and not _same(gpu["power_limit_watts"], wish.power_limit_watts))
        or (wish.compute_mode and gpu["compute_mode"] != COMPUTE_MODES[wish.compute_mode][0])
        for gpu in gpus
    )
    wanted = ECC_MODES.get(wish.ecc)
    switch = [gpu for gpu in gpus if wanted and gpu["ecc_mode_pending"] not in (None, wanted)]
    commands += [["nvidia-smi", "-i", gpu["address"], "-e", str(int(wish.ecc == "enabled"))] for gpu in switch]
    differences = ["modes"] if unset or old != content.strip() else []
    return {
        "differences": differences + (["ecc"] if switch else []),
        "mode_unit": MODES_UNIT,
        "mode_unit_content": content,
        "mode_commands": commands,
        "ecc_waits": any(wanted and gpu["ecc_mode"] and gpu["ecc_mode"] != wanted for gpu in gpus),
    }


def mode_measurements(gpu: dict[str, Any], wish: DriverWish) -> list[dict[str, Any]]:
    """Measurements of `gpu_power_limit` (W) and `gpu_compute_mode` of one GPU, where the inventory wishes them."""
    found: list[dict[str, Any]] = []
    address = gpu["address"]
    again = "systemctl status plumbline-gpu-modes"
    if wish.power_limit_watts:
        limit = gpu["power_limit_watts"]
        measured: dict[str, Any] = {"name": "gpu_power_limit", "scope": address, "unit": "W", "next_command": again}
        if limit is None:
            measured["error"] = f"nvidia-smi does not tell the power limit of GPU {address}"
        else:
            same = _same(limit, wish.power_limit_watts)
            measured.update(
                # The driver rounds to hundredths.
                value=wish.power_limit_watts if same else limit,
                expected=wish.power_limit_watts,
                cause=""
                if same
                else "somebody set another limit since, or the unit that sets it after the boot failed",
            )
        found.append(measured)
    if wish.compute_mode:
        mode = COMPUTE_MODES[wish.compute_mode][0]
        measured = {"name": "gpu_compute_mode", "scope": address, "unit": "", "next_command": again}
        if gpu["compute_mode"] is None:
            measured["error"] = f"nvidia-smi does not tell the compute mode of GPU {address}"
        else:
            cause = "somebody set another mode since, or the unit that sets it after the boot failed"
            measured.update(
                value=gpu["compute_mode"], expected=mode, cause="" if gpu["compute_mode"] == mode else cause
            )
        found.append(measured)
    return found


def _limit_problem(gpu: dict[str, Any], watts: float) -> list[str]:
    least, most = gpu["power_limit_minimum_watts"], gpu["power_limit_maximum_watts"]
    who = f"{gpu['name']} at {gpu['address']}"
    if least is None or most is None:
        return [
            f"gpu_driver_power_limit_watts: expected a GPU that lets its power be limited, found that {who} tells of no limits: "
            "set it to 0 for this node"
        ]
    if not least <= watts <= most:
        return [
            f"gpu_driver_power_limit_watts: expected {least:g} to {most:g} W, which {who} allows, found {watts:g}: correct it"
        ]
    return []


def _same(found: float | None, wanted: float) -> bool:
    return found is not None and abs(found - wanted) <= _SAME_WATTS
