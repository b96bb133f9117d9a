"""The demo as a test: one lab for the whole session, driven by the very commands that a user types."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
RECAP = re.compile(
    r"^(?P<host>[\w.-]+)\s*:\s+ok=(?P<ok>\d+)\s+changed=(?P<changed>\d+)\s+unreachable=(?P<unreachable>\d+)\s+failed=(?P<failed>\d+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Outcome:
    """A finished command: exit status, everything it printed, and how long it took in seconds."""

    returncode: int
    output: str
    seconds: float

    def recap(self, host: str = "lab-node1") -> dict[str, int]:
        """Return the recap counters of a host, as Ansible prints them at the end of a run."""
        for match in RECAP.finditer(self.output):
            if match["host"] == host:
                return {key: int(match[key]) for key in ("ok", "changed", "unreachable", "failed")}
        raise AssertionError(f"no recap of {host} in:\n{self.output[-3000:]}")

    def refused_with(self, *words: str) -> None:
        """Assert a clean refusal: non-zero exit, the words in the output, and no traceback."""
        assert self.returncode != 0, f"expected a refusal, got success:\n{self.output[-3000:]}"
        assert "Traceback" not in self.output, self.output[-5000:]
        flat = " ".join(self.output.split())
        for word in words:
            assert word in flat, f"{word!r} is not in:\n{self.output[-5000:]}"


@dataclass(frozen=True)
class Lab:
    """The running lab and the ways to reach into it."""

    environment: dict[str, str]
    first: Outcome
    second: Outcome

    def run(self, *command: str, timeout_seconds: int = 900) -> Outcome:
        """Run a command in the checkout with the lab's environment."""
        return run(*command, environment=self.environment, timeout_seconds=timeout_seconds)

    def playbook(self, name: str, *arguments: str, timeout_seconds: int = 900) -> Outcome:
        """Run a playbook against the lab's inventory."""
        return self.run("ansible-playbook", "-i", "inventories/lab", name, *arguments, timeout_seconds=timeout_seconds)

    def node(self, command: str, *, check: bool = True) -> str:
        """Run a shell command on the node as root and return what it printed."""
        outcome = self.run("python", "-m", "lab", "shell", "--", "sh", "-c", command)
        if check:
            assert outcome.returncode == 0, f"{command}: {outcome.output}"
        return outcome.output.strip()


def run(*command: str, environment: dict[str, str], timeout_seconds: int = 1800) -> Outcome:
    """Run one command in the checkout, its two outputs together."""
    started = time.monotonic()
    result = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    return Outcome(result.returncode, result.stdout, time.monotonic() - started)


def lab_environment() -> dict[str, str]:
    """Return the environment that `. lab/activate` gives a shell."""
    environment = dict(os.environ)
    environment["PATH"] = f"{CHECKOUT / '.venv' / 'bin'}:{environment['PATH']}"
    environment["ANSIBLE_VAULT_PASSWORD_FILE"] = str(CHECKOUT / "lab" / ".state" / "vault-password")
    environment.pop("ANSIBLE_FORCE_COLOR", None)
    return environment


@pytest.fixture(scope="session")
def lab() -> Lab:
    environment = lab_environment()
    first = run("make", "demo", environment=environment)
    print(first.output)
    assert first.returncode == 0, first.output[-8000:]
    second = run("make", "demo", environment=environment)
    print(second.output)
    return Lab(environment, first, second)
