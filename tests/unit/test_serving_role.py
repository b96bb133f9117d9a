"""The serving role's refusals, each with one sentence, and the unit that it writes. One Ansible run for all of them."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_wish import MARKER
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import parse_exposure
from plumbline_serving.settings import from_environment

from tests.unit.playbook_run import CHECKOUT, Outcome, play, run_playbook

KEY = "a-sound-key-of-the-unit-tests"
# What each host has otherwise than the sound one, and what its refusal must say.
REFUSALS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "short-key": ({"serving_api_key": "short"}, ("20 to 200 characters", "found 5 characters", "openssl rand -hex 32")),
    "odd-key": ({"serving_api_key": "a key with blanks in it, long enough"}, ("with others among them",)),
    "doubled": ({"serving_options": {"port": 9, "kv-cache-dtype": "fp8"}}, ("serving_port", "model_kv_cache_dtype")),
    "no-model": ({"model_path": "/no/such/model"}, ("no readable model config", "model stage")),
    "too-long": ({"serving_max_model_len": 9000}, ("up to the 8192 tokens", "found 9000")),
    "too-big": ({"serving_kv_cache_gib": 64}, ("64 GiB of key-value cache", "serving_kv_cache_gib")),
    "no-middleware": (
        {"serving_middleware": True, "engine_root": "/nowhere"},
        ("plugin plumbline-serving", "found no plugin", "playbooks/engine.yml"),
    ),
    "odd-limit": (
        {"serving_maximum_concurrent_requests": "many"},
        ("whole number or auto", "found many"),
    ),
    "old-name": ({"serving_options": {"swap_space": 4}}, ("found swap_space", "kv_offloading_size")),
    "other-name": ({"serving_options": {"quantize": "awq"}}, ("found quantize", "model_quantization")),
    "no-engine": ({"engine_id": "", "engine_path": ""}, ("active engine", "playbooks/engine.yml")),
}
UNITS: dict[str, dict[str, Any]] = {
    "cpu": {
        "serving_options": {"enforce_eager": True, "compilation_config": {"a": 'b"$c%'}, "middleware": ["a.b", "c.d"]}
    },
    "cuda": {
        "engine_id": "cuda-0.33.0",
        "serving_host": "::",
        "serving_options": {"enable_prefix_caching": False, "seed": None},
        "serving_environment": {"NOTE": 'it is "50 %"'},
        "serving_memory_max": "64G",
        "serving_slice": "plumbline.slice",
        "serving_notice_seconds": 6,
        "__serving_binding": {"cpus": "1-15", "memory_nodes": "0", "reason": "NUMA node 0, on which 0000:17:00.0 hang"},
    },
    "other-model": {"model_manifest_sha256": "def"},
    "upgrade": {"serving_middleware": True},
    "cpu-plain": {"serving_middleware": True},
    "middleware": {
        "serving_middleware": True,
        "serving_options": {"enforce_eager": True, "max_num_seqs": 24, "middleware": ["a.b"]},
        "serving_maximum_concurrent_requests": "auto",
    },
}


def sound(folder: Path) -> dict[str, Any]:
    return {
        "engine_id": "cpu-0.32.0",
        "engine_path": "/engines/cpu-0.32.0",
        "engine_python": "/engines/cpu-0.32.0/bin/python",
        "model_path": str(folder / "model"),
        "model_name": "smol",
        "model_manifest_sha256": "abc",
        "model_serving_options": {"dtype": "bfloat16"},
        "model_verify_command": f"/opt/plumbline/bin/plumbline-verify-model {folder / 'model'}",
        "serving_api_key": KEY,
        "serving_host": "127.0.0.1",
        "serving_port": 1,  # nobody listens there
        "serving_kv_cache_gib": 1,
        "serving_max_model_len": 2048,
        "serving_drain_seconds": 30,
        "serving_options": {"enforce_eager": True},
        "serving_environment": {},
        "serving_memory_max": "",
        "serving_slice": "",
        "serving_notice_seconds": 0,
        "serving_middleware": False,
        "serving_maximum_concurrent_requests": 7,
        "engine_root": str(folder / "engines"),
        "__serving_binding": {"cpus": "", "memory_nodes": "", "reason": "all"},
    }


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcome, Path]]:
    folder = tmp_path_factory.mktemp("serving")
    (folder / "model").mkdir()
    (folder / "engines" / "cpu-0.32.0").mkdir(parents=True)
    (folder / "engines" / "current").symlink_to("cpu-0.32.0")
    (folder / "engines" / "cpu-0.32.0" / MARKER).write_text('{"plugins": {"plumbline-serving": "0.1.0"}}')
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1000], "data_offsets": [0, 2000]}}).encode()
    (folder / "model" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        cases = {host: changes for host, (changes, _) in REFUSALS.items()} | UNITS
        cases["squatted"] = {"serving_port": squatter.getsockname()[1]}
        variables: dict[str, Any] = {name: f"{{{{ cases[inventory_hostname].{name} }}}}" for name in sound(folder)}
        variables["cases"] = {host: {**sound(folder), **changes} for host, changes in cases.items()}
        variables["survey_node"] = {"memory_total_bytes": 32 * 2**30, "memory_limit_bytes": None}
        variables["gates_rules"] = {"serving_memory_plan": {"kind": "record", "unit": "B"}}
        role = {"name": "serving", "tasks_from": "assert", "public": True}
        template = CHECKOUT / "roles" / "serving" / "templates" / "plumbline-serving.service.j2"
        differs = "__serving_upgrade_differs if inventory_hostname == 'upgrade' else {}"
        text = f"{{{{ lookup('ansible.builtin.template', '{template}', template_vars=({differs})) }}}}"
        write = {"content": text, "dest": f"{folder}/{{{{ inventory_hostname }}}}.service", "mode": "0644"}
        tasks = [
            {"name": "The model can be served", "ansible.builtin.include_role": role},
            {"name": "The unit is written", "ansible.builtin.copy": write},
        ]
        yield run_playbook(folder, [play(tasks, "serving")], hosts=tuple(cases), variables=variables), folder


def refusal(outcome: Outcome, host: str) -> str:
    """Return what the evidence of a host says of its failed task."""
    return json.dumps(outcome.evidence(host))


@pytest.mark.parametrize("host", REFUSALS)
def test_each_refusal_is_one_sentence_with_the_remedy(outcome: tuple[Outcome, Path], host: str) -> None:
    said = refusal(outcome[0], host)
    for word in REFUSALS[host][1]:
        assert word in said, said
    assert not (outcome[1] / f"{host}.service").exists()


def test_a_port_in_use_names_its_holder(outcome: tuple[Outcome, Path]) -> None:
    said = refusal(outcome[0], "squatted")
    assert re.search(r"found it in use on 127.0.0.1 by \S+ \(pid \d+", said), said
    assert "or set serving_port to a free port" in said
    assert not (outcome[1] / "squatted.service").exists()


def test_no_refusal_shows_a_traceback_or_the_key(outcome: tuple[Outcome, Path]) -> None:
    assert "Traceback" not in outcome[0].output
    assert KEY not in outcome[0].output


def unit(outcome: tuple[Outcome, Path], host: str) -> tuple[str, dict[str, list[str]]]:
    path = outcome[1] / f"{host}.service"
    assert path.exists(), outcome[0].output[-4000:]
    text = path.read_text()
    values: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            values.setdefault(name, []).append(value)
    return text, values


def test_the_unit_of_a_cpu_node(outcome: tuple[Outcome, Path]) -> None:
    text, values = unit(outcome, "cpu")
    (command,) = values["ExecStart"]
    words = shlex.split(command)
    assert words[:2] == ["/engines/cpu-0.32.0/bin/vllm", "serve"]
    pairs = dict(zip(words[3::1], words[4::1], strict=False))
    assert pairs["--port"] == "1"
    assert pairs["--dtype"] == "bfloat16"
    # The plan's, whose arithmetic is in the evidence.
    assert pairs["--max-num-batched-tokens"] == "2048"
    assert 1 <= int(pairs["--max-num-seqs"]) <= 128
    (record,) = [each for each in outcome[0].evidence("cpu") if each.get("name") == "serving_memory_plan"]
    assert record["conditions"]["key-value cache"] == "VLLM_CPU_KVCACHE_SPACE, as set: 1.00 GiB"
    assert pairs["--max-model-len"] == "2048"
    assert pairs["--shutdown-timeout"] == "30"
    # systemd's own characters are doubled, so that they arrive as they are.
    assert json.loads(pairs["--compilation-config"].replace("$$", "$").replace("%%", "%")) == {"a": 'b"$c%'}
    assert after(words, "--middleware") == ["a.b", "c.d"]  # its own option for each, as vLLM wants it
    assert "PLUMBLINE_SERVING" not in text
    assert "--enforce-eager" in words
    assert '"VLLM_CPU_KVCACHE_SPACE=1"' in values["Environment"]
    assert '"TORCHDYNAMO_DISABLE=1"' in values["Environment"]
    assert '"HF_HUB_OFFLINE=1"' in values["Environment"]
    assert '"TMPDIR=/run/plumbline-serving"' in values["Environment"]
    assert values["PrivateDevices"] == ["yes"]
    assert values["Restart"] == ["always"]
    assert values["StartLimitIntervalSec"] == ["0"]
    assert values["KillMode"] == ["mixed"]
    assert values["TimeoutStopSec"] == ["90"]
    drain = shlex.split(values["ExecStop"][0])
    assert drain[2] == "/opt/plumbline/bin/plumbline-drain"
    assert drain[drain.index("--drain-file") + 1] == "/run/plumbline-serving/draining"
    assert (drain[drain.index("--notice") + 1], drain[drain.index("--timeout") + 1]) == ("0", "30")
    assert '"PLUMBLINE_SERVES=cpu-0.32.0 ' in "".join(values["Environment"])
    assert not {"AllowedCPUs", "CPUAffinity", "AllowedMemoryNodes"} & set(values)
    assert "Slice" not in values
    assert [program.split()[-0].rsplit("/", 1)[-1] for program in values["ExecStartPre"]] == [
        "python",
        "plumbline-verify-model",
    ]
    assert "plumbline-ready wait" in values["ExecStartPost"][0]
    assert KEY not in text
    assert "--api-key" not in text


def after(words: list[str], option: str) -> list[str]:
    """Return what stands behind each of an option."""
    return [value for name, value in zip(words, words[1:], strict=False) if name == option]


def test_the_middleware_is_outermost_and_has_its_settings(outcome: tuple[Outcome, Path]) -> None:
    """Its own settings accept what the role writes, with the types as they arrive."""
    _, values = unit(outcome, "middleware")
    assert after(shlex.split(values["ExecStart"][0]), "--middleware") == ["a.b", "plumbline_serving.Middleware"]
    # The unit has drained by the time the engine is ended; waiting once more would be twice serving_drain_seconds.
    assert "--shutdown-timeout" not in values["ExecStart"][0]
    environment = dict(shlex.split(line)[0].split("=", 1) for line in values["Environment"])
    settings = from_environment(environment)
    assert (settings.model, settings.maximum_concurrent_requests) == ("smol", 48)
    assert settings.drain_file == "/run/plumbline-serving/draining"
    assert settings.ready_record == "/run/plumbline-serving/ready.json"


def test_the_unit_of_a_gpu_node(outcome: tuple[Outcome, Path]) -> None:
    _, values = unit(outcome, "cuda")
    assert values["PrivateDevices"] == ["no"]
    assert not any("VLLM_CPU" in entry or "TORCHDYNAMO" in entry for entry in values["Environment"])
    assert '"NOTE=it is \\"50 %%\\""' in values["Environment"]
    assert values["MemoryMax"] == ["64G"]
    assert values["Slice"] == ["plumbline.slice"]
    assert (values["AllowedCPUs"], values["CPUAffinity"], values["AllowedMemoryNodes"]) == (["1-15"], ["1-15"], ["0"])
    assert values["TimeoutStopSec"] == ["96"]
    assert "--no-enable-prefix-caching" in values["ExecStart"][0]
    assert "--seed" not in values["ExecStart"][0]
    assert '--url "http://[::1]:1/v1"' in values["ExecStartPost"][0]


def test_another_manifest_makes_another_unit(outcome: tuple[Outcome, Path]) -> None:
    """So that a model that was made anew leads to a restart, though its path is the same."""
    assert "model_manifest_sha256=def" in unit(outcome, "other-model")[0]


def test_the_unit_of_an_upgrade_differs_in_port_and_places_only(outcome: tuple[Outcome, Path]) -> None:
    """So that what proved itself beside is what then serves. It is never started at boot."""
    text, values = unit(outcome, "upgrade")
    assert '--port "2"' in text
    assert values["RuntimeDirectory"] == ["plumbline-serving-upgrade"]
    # Its middleware looks at its own record and drain file, else it would answer for the other.
    assert "/run/plumbline-serving-upgrade/draining" in str(values["Environment"])
    assert values["CacheDirectory"] == ["plumbline-serving"]
    assert "WantedBy" not in values
    plain = unit(outcome, "cpu-plain")[0]
    back = text.replace("plumbline-serving-upgrade", "plumbline-serving").replace(", an upgrade", "")
    back = back.replace("127.0.0.1:2/", "127.0.0.1:1/").replace('--port "2"', '--port "1"')
    assert [line for line in plain.splitlines() if line not in back.splitlines()] == [
        "[Install]",
        "WantedBy=multi-user.target",
    ]


def test_its_exposure_is_below_the_bound(outcome: tuple[Outcome, Path]) -> None:
    """By systemd itself, where it can judge a file; the gate of the stage asks it about the unit that runs."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed here")
    for host in ("cpu", "cuda"):
        (outcome[1] / "analysed").mkdir(exist_ok=True)
        path = outcome[1] / "analysed" / f"{host}.service"
        # Programs that are there: systemd refuses to judge a unit that it could not start.
        path.write_text(
            re.sub(r"^(Exec\w+)=.*?(?<!\\)$", r"\1=/bin/true", unit(outcome, host)[0], flags=re.MULTILINE | re.DOTALL)
        )
        command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "unrecognized option" in done.stderr:
            pytest.skip("this systemd judges no files")
        exposure, left_open = parse_exposure(done.stdout)
        assert exposure is not None, done.stderr
        assert exposure <= 2.5, left_open
        assert ("PrivateDevices=" in left_open) == (host == "cuda")


def test_systemd_could_read_it(outcome: tuple[Outcome, Path]) -> None:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    text, _ = unit(outcome, "cpu")
    parser.read_string(text.replace("\\\n", " "))
    assert parser.sections() == ["Unit", "Service", "Install", "X-Plumbline"]
