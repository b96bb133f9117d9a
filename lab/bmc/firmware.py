"""Firmware images of the simulator: a header line, then any payload.

The header says which component the image is for, its version, the models it fits and the SHA-256 of the payload, so
that a truncated, damaged or foreign image is refused as on a real machine. Make one with

    python -m lab.bmc.firmware --component BIOS --version 05.12.00 --model NF8260G7 bios.img
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"BMCSIM-FIRMWARE 1 "


class ImageError(Exception):
    """An image cannot be used; the text is one sentence for a person."""


@dataclass(frozen=True)
class Image:
    """A checked image."""

    component: str
    version: str
    models: tuple[str, ...]


def build_image(component: str, version: str, models: tuple[str, ...] = (), payload: bytes = b"\0" * 4096) -> bytes:
    """Return an image for a component; without `models` it fits every one."""
    header = {
        "component": component,
        "version": version,
        "models": list(models),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + payload


def read_image(data: bytes) -> Image:
    """Return what an image says of itself, or raise ImageError."""
    head, newline, payload = data.partition(b"\n")
    if not head.startswith(_MAGIC) or not newline:
        raise ImageError("The image has no firmware header; expected an image made with lab.bmc.firmware.")
    try:
        header = json.loads(head[len(_MAGIC) :])
        image = Image(str(header["component"]), str(header["version"]), tuple(header["models"]))
        wanted = str(header["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise ImageError("The firmware header is damaged; transfer the image again.") from error
    found = hashlib.sha256(payload).hexdigest()
    if found != wanted:
        raise ImageError(
            f"The image is damaged: its SHA-256 is {found[:12]}, expected {wanted[:12]}; transfer it again."
        )
    return image


def main(arguments: list[str] | None = None) -> int:
    """Write an image file."""
    parser = argparse.ArgumentParser(prog="python -m lab.bmc.firmware", description="Make a firmware image.")
    parser.add_argument("--component", required=True, help="id in FirmwareInventory, e.g. BIOS")
    parser.add_argument("--version", required=True)
    parser.add_argument("--model", action="append", default=[], help="model it fits (default: every model)")
    parser.add_argument("output", type=Path)
    options = parser.parse_args(arguments)
    try:
        options.output.write_bytes(build_image(options.component, options.version, tuple(options.model)))
    except OSError as error:
        sys.stderr.write(f"error: {options.output} cannot be written: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
