"""Command line of the lab."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from lab import packages, settings
from lab.shell import LabError, fail, say

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def locked(lab: settings.Lab) -> Iterator[None]:
    """One command that changes the lab at a time."""
    lab.ensure_state()
    with (lab.state / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another lab command of this checkout to end")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def up(lab: settings.Lab) -> None:
    """Bring everything up that is not."""
    from lab import credentials, masters, model, pipconf, tls
    from lab.bmcd import Bmc
    from lab.node import Node
    from lab.podman import Podman

    podman = Podman(lab)
    node, bmc = Node(lab, podman), Bmc(lab)
    podman.prepare()
    pip = pipconf.discover(lab.root)
    bmc_password = credentials.ensure_secret(lab.state / "bmc-password")
    api_key = credentials.ensure_secret(lab.state / "api-key")
    node.ensure_keys()
    renewed = tls.ensure(lab.state)
    credentials.ensure_vault(lab, bmc_password, api_key)
    source = model.ensure(lab.cache)
    node.up(pip)
    lab.write_record(
        {
            "find_links": list(pip.find_links),
            "known_hosts": str(node.known_hosts),
            "ssh_key": str(node.key),
            "ca_file": str(lab.state / "ca.pem"),
            "container": lab.container,
            "control_path_dir": str(masters.directory(lab)),
            "model_source": str(source),
        }
    )
    bmc.up(renewed=renewed)


def down(lab: settings.Lab) -> None:
    """Stop and remove everything that runs."""
    from lab import masters
    from lab.bmcd import Bmc
    from lab.node import Node
    from lab.podman import Podman
    from lab.shell import which

    masters.end(lab)
    Bmc(lab).down()
    if which("podman"):
        podman = Podman(lab)
        podman.prepare()
        Node(lab, podman).down()
    lab.record.unlink(missing_ok=True)


def status(lab: settings.Lab) -> None:
    """Say what runs."""
    from lab.bmcd import Bmc
    from lab.podman import Podman

    found = Podman(lab).inspect(lab.container)
    bmc = Bmc(lab)
    print(f"node   {lab.container}: {found['State']['Status'] if found else 'absent'}, ssh 127.0.0.1:{lab.ssh_port}")
    print(f"BMC    https://127.0.0.1:{lab.bmc_port}/redfish/v1/: {'answers' if bmc.answers() else 'does not answer'}")
    print(f"API    http://127.0.0.1:{lab.api_port}/v1 (once served)")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m lab", description="The embedded lab: a node and its BMC on loopback.")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("packages", help="install the distribution packages that are missing")
    venv = commands.add_parser("venv", help="make or renew .venv")
    venv.add_argument("--dev", action="store_true", help="with what the tests need")
    commands.add_parser("up", help="bring node and BMC up")
    commands.add_parser("down", help="take them down")
    commands.add_parser("status", help="say what runs")
    power = commands.add_parser("power", help="power of the node")
    power.add_argument("action", choices=["on", "off", "cycle", "graceful-off", "graceful-cycle", "status"])
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run one command; every failure is one sentence on standard error and exit status 1."""
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        return fail(LabError(f"the controller needs Python 3.11 or newer, found {found}: say which with make PYTHON=python3.12"))
    options = parser().parse_args(arguments)
    os.chdir(ROOT)
    try:
        lab = settings.load(ROOT, os.environ, recorded_first=options.command in {"down", "power", "status"})
        if options.command == "packages":
            packages.ensure(ROOT / ".cache" / "apt.log")
        elif options.command == "venv":
            from lab import venv

            venv.ensure(ROOT, "requirements-dev.txt" if options.dev else "requirements.txt")
        elif options.command == "up":
            with locked(lab):
                up(lab)
        elif options.command == "down":
            with locked(lab):
                down(lab)
        elif options.command == "power":
            from lab.podman import Podman
            from lab.power import power

            print(power(lab, Podman(lab), options.action))
        else:
            status(lab)
    except LabError as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail(LabError("interrupted"))
    except OSError as error:
        return fail(LabError(f"{error.strerror or error}: {error.filename or 'no file'}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
