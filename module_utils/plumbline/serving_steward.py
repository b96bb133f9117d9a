"""Brings a serving unit to run as was decided: writes its file, starts it, waits until it is ready, takes back what failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .serving_upgrade import BESIDE, IN_PLACE, Decision, Found
from .systemd_service import PROPERTIES, State, cause_from_journal, parse_record, parse_show, was_refused

# Runs a command; returns its exit status, stdout and stderr.
Runner = Callable[[list[str]], "tuple[int, str, str]"]
POLL_SECONDS = 0.5


class StewardError(Exception):
    """The message is the sentence for the user; *journal* the end of the log that led to it."""

    def __init__(self, message: str, journal: list[str] | None = None, result: str = "") -> None:
        """Keep what a module answers beside the message."""
        super().__init__(message)
        self.journal = journal or []
        self.result = result


class StartFailedError(StewardError):
    """A start did not become ready. *cause* says why, *refused* that starting again would not help."""

    def __init__(self, unit: str, cause: str, lines: list[str], result: str) -> None:
        """Take the log of the start."""
        super().__init__(cause, lines[-30:], result)
        self.unit = unit
        self.cause = cause
        self.refused = was_refused(lines)


@dataclass(frozen=True)
class Tools:
    """What the steward needs of the machine: a way to run commands, and where things are."""

    run: Runner
    systemctl: str
    journalctl: str | None
    directory: Path = Path("/etc/systemd/system")


class Unit:
    """One unit of the node's systemd, with its file and the record of its last right completion."""

    def __init__(self, tools: Tools, name: str, record: Path) -> None:
        """Nothing is looked at yet."""
        self.tools = tools
        self.name = name
        self.record = record
        self.path = tools.directory / name

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """Call systemctl."""
        return self.tools.run([self.tools.systemctl, *arguments])

    def must(self, *arguments: str) -> None:
        """Call systemctl. Raises StewardError with what it said when it fails."""
        code, out, err = self.call(*arguments)
        if code != 0:
            raise StewardError(
                f"systemctl {' '.join(arguments)} ended with {code}: {(err or out).strip()}; look at systemctl status {self.name}"
            )

    def state(self) -> State:
        """Return the state of the unit now."""
        return parse_show(self.call("show", self.name, f"--property={','.join(PROPERTIES)}")[1])

    def find(self) -> Found:
        """Return what is there of it."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        try:
            noted = parse_record(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            noted = {}
        return Found(self.state(), noted, text)

    def write(self, text: str) -> None:
        """Have its file hold *text*, whole or not at all; an empty one removes it. Raises StewardError."""
        write_whole(self.path, text)
        self.must("daemon-reload")

    def journal(self, invocation: str) -> list[str]:
        """Return the log of one start, of its processes and of systemd about it; empty where there is no journal."""
        if not self.tools.journalctl or not invocation:
            return []
        match = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
        return self.tools.run([self.tools.journalctl, "--no-pager", "-o", "cat", "-n", "2000", *match])[1].splitlines()

    def start(self, before: State, timeout_seconds: float) -> State:
        """Restart the unit and wait until it is active. Raises StartFailedError with the cause when it does not become so."""
        failures = self.record.with_name("failures")
        failures.unlink() if failures.exists() else None  # somebody asked for this start: no pause because of earlier ones
        self.must("restart", "--no-block", self.name)
        deadline = time.monotonic() + timeout_seconds
        invocation = ""
        while True:
            state = self.state()
            fresh = state.invocation not in ("", before.invocation)
            invocation = invocation or (state.invocation if fresh else "")
            if fresh and state.running:
                return state
            if (fresh and state.failed_start) or (invocation and state.invocation != invocation):
                raise self._failed(state, invocation)
            if time.monotonic() > deadline:
                waited = f"it was not ready within {timeout_seconds:.0f} s ({state.status_text or state.sub})"
                raise self._failed(state, invocation, waited)
            time.sleep(POLL_SECONDS)

    def _failed(self, state: State, invocation: str, cause: str = "") -> StartFailedError:
        lines = self.journal(invocation)
        cause = cause or cause_from_journal(lines) or state.status_text or f"result {state.result or 'unknown'}"
        return StartFailedError(self.name, cause, lines, state.result)

    def end(self) -> None:
        """Stop it, drained as its file says, and remove its file."""
        self.call("stop", self.name)
        self.write("")
        self.call("reset-failed", self.name)


def write_whole(path: Path, text: str) -> None:
    """Write a file of root's beside its place and put it there by one rename; an empty text removes it. Raises StewardError."""
    try:
        if not text:
            path.unlink() if path.exists() else None
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.plumbline")
        temporary.unlink() if temporary.exists() else None
        try:
            with os.fdopen(
                os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8"
            ) as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink() if temporary.exists() else None
    except OSError as error:
        raise StewardError(
            f"{path} cannot be written ({error.strerror or error}): what serves goes on; make room, or make it writable, and run again"
        ) from error


@dataclass(frozen=True)
class Texts:
    """The files of both units; empty where a file is not the steward's to write, or there is no unit beside."""

    unit: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Steward:
    """Does what was decided."""

    unit: Unit
    beside: Unit | None
    texts: Texts
    timeout_seconds: float
    notice_seconds: float
    # Where the old unit's file is kept while the new one takes over in place.
    previous: Path

    def carry_out(self, decision: Decision, found: Found, found_beside: Found | None) -> State:
        """Return the unit's state once it is ready. Raises StewardError."""
        if decision.end_beside_first and self.beside:
            self.beside.end()
        if decision.how == BESIDE and self.beside:
            if decision.start_beside:
                self._start_beside(self.beside, found_beside)
            time.sleep(self.notice_seconds)
        if decision.how == IN_PLACE:
            write_whole(self.previous, found.text)
        state = self._run_unit(decision, found)
        write_whole(self.previous, "")
        if decision.end_beside and not decision.end_beside_first and self.beside:
            if decision.reasons:
                time.sleep(self.notice_seconds)
            self.beside.end()
        return state

    def _start_beside(self, beside: Unit, found: Found | None) -> None:
        try:
            beside.write(self.texts.beside)
            beside.start((found or beside.find()).state, self.timeout_seconds)
        except StewardError as error:
            cause = error.cause if isinstance(error, StartFailedError) else str(error)
            beside.end()
            raise StewardError(
                f"the new model or engine did not become ready ({beside.name}): {cause}; it was ended, and {self.unit.name} "
                f"goes on serving the old one; the whole log: journalctl -u {beside.name}",
                error.journal,
                error.result,
            ) from error

    def _run_unit(self, decision: Decision, found: Found) -> State:
        unit = self.unit
        if self.texts.unit and self.texts.unit != found.text:
            unit.write(self.texts.unit)
        elif decision.reasons or found.state.needs_reload:
            unit.must("daemon-reload")
        state = unit.state()
        if state.load != "loaded":
            raise StewardError(
                f"{unit.name} cannot be loaded ({state.load or 'no answer from systemd'}); look at systemctl status {unit.name}"
            )
        if not found.state.enabled:
            unit.must("enable", unit.name)
        if not decision.reasons:
            return state
        try:
            return unit.start(found.state, self.timeout_seconds)
        except StartFailedError as error:
            raise self._after_failure(error, decision) from error

    def _after_failure(self, error: StartFailedError, decision: Decision) -> StewardError:
        unit = self.unit
        told = f"{unit.name} did not become ready: {error.cause}"
        log = f"the whole log: journalctl -u {unit.name}"
        old = self.previous.read_text(encoding="utf-8") if self.previous.is_file() else ""
        if old:
            outcome = self._roll_back(old)
        elif error.refused:
            unit.call("stop", unit.name)
            outcome = "it was stopped and serves nobody"
        else:
            outcome = "systemd goes on trying"
        if decision.how == BESIDE and self.beside:
            outcome += f"; {self.beside.name} goes on serving the new model or engine"
        return StewardError(f"{told}; {outcome}; {log}", error.journal, error.result)

    def _roll_back(self, old: str) -> str:
        try:
            before = self.unit.state()
            self.unit.write(old)
            self.unit.start(before, self.timeout_seconds)
            write_whole(self.previous, "")
        except StewardError as error:
            return f"the old one was put back and did not become ready either ({error})"
        return "the old one was put back and serves again"
