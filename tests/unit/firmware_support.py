"""What the tests of firmware updates share: images, a request, and a web server that a BMC fetches from."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_operation import (
    Request,
    stage_firmware,
    verify_firmware,
)

from lab.bmc.firmware import build_image
from lab.bmc.testing import RunningBmc
from tests.unit.redfish_support import login

Json = dict[str, Any]

# Of each profile: the ids of BIOS and BMC, and versions newer than what it comes with.
MACHINES = {
    "ieit-nf8260g7": ("BIOS", "05.12.00", "BMC", "1.40.00"),
    "ieit-nf8260g7-strict": ("BIOS", "05.12.00", "BMC", "1.40.00"),
    "ieit-nf5280m6": ("BIOS", "06.09.00", "BMC", "4.30.00"),
    "dell-r750": ("BIOS", "1.14.1", "iDRAC", "7.10.30.00"),
    "hpe-dl380a-gen11": ("BIOS", "U58 v2.60 (05/20/2025)", "iLO", "1.66"),
    "lenovo-sr670v2": ("UEFI", "U8E130A-2.20", "BMC-Primary", "AFBT60A-5.20"),
    "supermicro-821ge": ("BIOS", "1.6", "BMC", "01.03.02"),
    "supermicro-gb300": ("BIOS", "02.08.00", "BMC", "25.10"),
}
# Those whose service takes no upload in a standard form: the BMC fetches the image.
FETCH_ONLY = {"hpe-dl380a-gen11"}


@contextlib.contextmanager
def image_server(directory: Path) -> Iterator[str]:
    """Serve a directory, as a site's web server would; yields its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(directory))

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def image_file(directory: Path, component: str, version: str, payload: bytes = b"\0" * 4096) -> Json:
    """Write an image and return its entry for `firmware_images`."""
    data = build_image(component, version, payload=payload)
    path = directory / f"{component}-{version.split(' ', maxsplit=1)[0]}.img"
    path.write_bytes(data)
    return {
        "component": component,
        "version": version,
        "file": str(path),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def fetched(entry: Json, server: str) -> Json:
    """The same entry, for a BMC that fetches it."""
    uri = f"{server}/{Path(entry['file']).name}"
    return {"component": entry["component"], "version": entry["version"], "uri": uri}


def request(images: list[Json], *, pinned: bool = False, **changes: Any) -> Request:
    """A request whose floors (or pins) are the versions of the images; quick to poll."""
    wanted = {image["component"]: image["version"] for image in images}
    values: Json = {
        "pins" if pinned else "floors": wanted,
        "images": images,
        "poll_seconds": 0.02,
        "settle_seconds": 1.5,
        "update_timeout_seconds": 20,
        **changes,
    }
    return Request(**values)


def stage(bmc: RunningBmc, wanted: Request, **connection: Any) -> Json:
    """Run the module's work in a session of its own."""
    with login(bmc, **connection) as client:
        return stage_firmware(client, wanted)


def verify(bmc: RunningBmc, wanted: Request) -> Json:
    """Read back in a session of its own."""
    with login(bmc) as client:
        return verify_firmware(client, wanted)
