"""The quantiser's environment: complete and of the right version, or not there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import quantise_environment
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_install import alone
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_lock import parse_lock
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_packages import Filled
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_wish import EngineError, Run, Wish
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_environment import lacking, make

LOCK = "llmcompressor==0.14.0.1 \\\n    --hash=sha256:" + "0" * 64 + "\n"


def wish_for(tmp_path: Path) -> Wish:
    return Wish(
        root=tmp_path / "quantisers",
        kind="quantiser",
        version="0.14.0.1",
        python_executable="/usr/bin/python3",
        python_tag="cp311",
        lock_text=LOCK,
        lock_sha256="ab" * 32,
        lock_name="quantiser-cp311.txt",
        uv_requirement="",
        device="cpu",
    )


@pytest.fixture(autouse=True)
def installer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What uv would put there: the lock's distributions, or those of this list."""
    others: list[str] = []

    def fill(wish: Wish, _run: Run) -> Filled:
        for name in others or [f"{name}-{version}" for name, version in parse_lock(wish.lock_text, "").items()]:
            entry = wish.site_packages / f"{name}.dist-info"
            entry.mkdir(parents=True)
            (entry / "METADATA").write_text("")
        return Filled("uv")

    monkeypatch.setattr(quantise_environment, "fill", fill)
    return others


def answering(text: str, code: int = 0) -> Run:
    def run(arguments: list[str], _environment: Mapping[str, str], _timeout: int) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, code, text if not code else "", text if code else "")

    return run


def test_it_is_made_once(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    assert lacking(wish) == ["it is not there"]
    make(wish, answering("some warning\n0.14.0.1\n"))
    assert lacking(wish) == []
    (wish.site_packages / "llmcompressor-0.14.0.1.dist-info/METADATA").unlink()
    assert lacking(wish) == ["llmcompressor 0.14.0.1 is missing"]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (answering("0.13.0\n"), "it has llmcompressor 0.13.0; expected was llmcompressor 0.14.0.1"),
        (answering("ImportError: libgomp.so.1\n", 1), "ImportError: libgomp.so.1"),
        (answering(""), "exit status 0"),
    ],
)
def test_one_that_does_not_work_is_removed(tmp_path: Path, run: Run, reason: str) -> None:
    wish = wish_for(tmp_path)
    with pytest.raises(EngineError, match=f"does not work on this machine .{reason}"):
        make(wish, run)
    assert not wish.path.exists()


def test_one_that_is_not_its_lock_is_removed(tmp_path: Path, installer: list[str]) -> None:
    installer.append("llmcompressor-0.12.0")
    wish = wish_for(tmp_path)
    with pytest.raises(EngineError, match=r"llmcompressor is 0\.12\.0 instead of 0\.14\.0\.1"):
        make(wish, answering("0.14.0.1"))
    assert not wish.path.exists()


def test_two_runs_at_once(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    wish.root.mkdir()
    with alone(wish.root), pytest.raises(EngineError, match="Another run"):
        make(wish, answering("0.14.0.1"))


def test_the_shipped_lock_pins_what_the_role_expects(checkout: Path) -> None:
    lock = checkout / "roles/model/files/locks/quantiser-cp311.txt"
    pins = parse_lock(lock.read_text(), lock.name)
    variables = (checkout / "roles/model/vars/main.yml").read_text()
    assert f"__model_quantiser_version: {pins['llmcompressor']}\n" in variables
    assert not {"torchvision", "torchaudio", "triton"} & set(pins)
