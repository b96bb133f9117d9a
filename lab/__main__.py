"""Command line of the lab."""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import client, image, lifecycle, lock, packages, programs, settings, venv
from lab.node import Node
from lab.podman import Podman
from lab.power import ACTIONS, power
from lab.shell import LabError, fail, say, write_atomically
from lab.vm import command as vm_command

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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m lab", description="The embedded lab: a node and its BMC on loopback."
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    distribution = commands.add_parser("packages", help="install the distribution packages that are missing")
    of = distribution.add_mutually_exclusive_group()
    of.add_argument("--controller", action="store_true", help="only what a controller without a lab needs")
    of.add_argument("--vm", action="store_true", help="what the virtual bare metal needs")
    of.add_argument("--engine", action="store_true", help="what the tests in the engine's Python need")
    of.add_argument("--tests", action="store_true", help="programs that only tests run, unpacked into .cache")
    of.add_argument("--gateway", action="store_true", help="what the gateway's tests run")
    environment = commands.add_parser("venv", help="make or renew .venv")
    environment.add_argument("--dev", action="store_true", help="with what the tests need")
    commands.add_parser("up", help="bring node and BMC up")
    commands.add_parser("down", help="stop them; the node keeps its disk")
    commands.add_parser("clean", help="stop and remove them")
    commands.add_parser("purge", help="clean, and remove images, caches, .venv and keys")
    commands.add_parser("lock", help="renew the lock files")
    commands.add_parser("status", help="say what runs")
    commands.add_parser("image", help="build the node's image where it is missing, and print its name")
    commands.add_parser("environment", help="print shell commands that let podman run as the lab does")
    switch = commands.add_parser("power", help="power of the node")
    switch.add_argument("action", choices=[*ACTIONS, "status"])
    ask = commands.add_parser("ask", help="ask the served model one question")
    ask.add_argument("question", nargs="?", default=client.QUESTION)
    shell = commands.add_parser("shell", help="a shell on the node, or one command there as root")
    shell.add_argument("words", nargs="*", metavar="-- COMMAND")
    vm_command.add_to(commands)
    return made


def dispatch(options: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    command = options.command
    if command == "packages" and options.tests:
        programs.ensure(ROOT / ".cache")
    elif command == "packages":
        wanted = (
            packages.machine_needs
            if options.vm
            else packages.gateway_needs
            if options.gateway
            else packages.engine_needs
            if options.engine
            else packages.controller_needs
            if options.controller
            else packages.needs
        )
        packages.ensure(ROOT / ".cache" / "apt.log", wanted())
    elif command == "venv":
        venv.ensure(ROOT, "requirements-dev.txt" if options.dev else "requirements.txt")
    elif command == "vm":
        vm_command.dispatch(ROOT, options)
    elif command == "lock":
        lock.renew(ROOT)
    else:
        # What is there decides, except where a lab is to be made.
        lab = settings.load(ROOT, os.environ, lifecycle.recorded(ROOT), recorded_first=command != "up")
        on_lab(options, lab)


def on_lab(options: argparse.Namespace, lab: settings.Lab) -> None:
    """The commands that need to know which lab."""
    command = options.command
    if command in {"up", "down", "clean", "purge"}:
        with locked(lab):
            if command in {"clean", "purge"}:
                vm_command.take_down(ROOT, forget=command == "purge")
            if command == "purge":
                lifecycle.clean(lab)
            getattr(lifecycle, command)(lab)
    elif command in {"image", "environment"}:
        podman = Podman(lab)
        with locked(lab):
            podman.prepare()
            print(
                image.ensure(ROOT, podman)
                if command == "image"
                else f"export CONTAINERS_CONF={shlex.quote(str(podman.configuration))}"
            )
    elif command == "power":
        print(power(lab, Podman(lab), options.action))
    elif command == "ask":
        client.ask(lab, options.question)
    elif command == "shell":
        words = ["sudo", "-n", "--", *options.words] if options.words else []
        ssh = Node(lab, Podman(lab)).ssh_command(shlex.join(words), terminal=not words)
        os.execvp(ssh[0], ssh)  # noqa: S606
    else:
        lifecycle.status(lab)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; every failure is one sentence on standard error and exit status 1."""
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        return fail(f"the controller needs Python 3.11 or newer, found {found}: say which with make PYTHON=python3.12")
    options = parser().parse_args(arguments)
    os.chdir(ROOT)
    try:
        dispatch(options)
    except LabError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return fail("interrupted; run the same command again to go on")
    except OSError as error:
        return fail(f"{error.strerror or error}: {error.filename or 'no file'}")
    except Exception as error:
        # A defect of the lab itself: what a developer needs goes to a file, a person gets a sentence.
        report = ROOT / "lab" / ".state" / "error.log"
        write_atomically(report, traceback.format_exc(), 0o600)
        return fail(f"this is a defect of the lab ({type(error).__name__}: {error}): please report it with {report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
