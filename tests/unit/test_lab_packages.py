"""Which distribution packages are asked for: a controller without a lab gets no containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import packages
from lab.shell import LabError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.Need, "met", lambda need: False)
    monkeypatch.setattr(packages, "which", lambda program: None)


def test_a_controller_needs_no_lab(bare: None, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="openssh-client") as refusal:
        packages.ensure(tmp_path / "apt.log", packages.controller_needs())
    assert "podman" not in str(refusal.value)


def test_the_lab_needs_what_a_controller_does_and_more(bare: None, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"podman.*openssh-client"):
        packages.ensure(tmp_path / "apt.log", packages.needs())
    assert {need.what for need in packages.controller_needs()} < {need.what for need in packages.needs()}


def test_the_engines_python_needs_what_vllm_is_linked_with(bare: None, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"python3\.11.*libnuma1"):
        packages.ensure(tmp_path / "apt.log", packages.engine_needs())


def test_the_tests_run_a_real_gateway(bare: None, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"haproxy.*openssl"):
        packages.ensure(tmp_path / "apt.log", packages.gateway_needs())
