""".venv: an installation that was cut off is made anew, and two commands never install into it at once."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from lab import venv
from lab.shell import LabError


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A checkout in which making and filling the environment only leave their traces."""
    (tmp_path / "requirements.txt").write_text("thing==1\n")
    done: list[str] = []

    def run(_command: object, *, what: str, **_options: object) -> object:
        done.append(what)
        if what == "making .venv":
            (tmp_path / ".venv/bin").mkdir()
            (tmp_path / ".venv/bin/python").touch()
        return type("Done", (), {"stdout": venv.sys.version + "\n"})()

    monkeypatch.setattr(venv, "run", run)
    monkeypatch.setattr(venv, "run_long", run)
    return done


def test_what_is_finished_is_left_alone(tmp_path: Path, calls: list[str]) -> None:
    venv.ensure(tmp_path, "requirements.txt")
    assert calls == ["making .venv", "installing Python packages"]
    venv.ensure(tmp_path, "requirements.txt")
    assert len(calls) == 2


def test_what_was_cut_off_is_made_anew(tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_arguments: object, **_options: object) -> None:
        (tmp_path / ".venv/half-a-package").touch()
        raise LabError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(venv, "run_long", killed)
        with pytest.raises(LabError):
            venv.ensure(tmp_path, "requirements.txt")
    assert (tmp_path / ".venv/half-a-package").exists()
    venv.ensure(tmp_path, "requirements.txt")
    assert not (tmp_path / ".venv/half-a-package").exists()
    assert calls == ["making .venv", "making .venv", "installing Python packages"]


def test_nobody_else_installs_meanwhile(tmp_path: Path, calls: list[str]) -> None:
    with venv.alone(tmp_path), (tmp_path / ".cache/venv.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
