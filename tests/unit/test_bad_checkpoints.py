"""The ten bad inputs, by the command and by the module: one sentence, a status that says so, nothing left behind, and no code run."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    checkpoint_command,
    checkpoint_convert,
    checkpoint_directory,
    checkpoint_store,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import Done, run_worker

from tests.unit import gguf_support, yuan_directory

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_command"


@dataclass
class Case:
    """A sound checkpoint, where its result would go, and the file that appears when any of its code runs."""

    root: Path
    marker: Path
    source: Path

    @property
    def target(self) -> Path:
        return self.root / "served" / "yuan"

    def change_json(self, name: str, **changes: Any) -> None:
        path = self.source / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def change_tensors(self, change: Callable[[dict[str, Any]], Any]) -> None:
        tensors = yuan_directory.values()
        change(tensors)
        yuan_directory.write_shards(self.source, tensors)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    marker = tmp_path / "code-was-run"
    return Case(tmp_path, marker, yuan_directory.write(tmp_path / "source" / "yuan", marker))


def truncated_shard(case: Case) -> None:
    path = case.source / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def wrong_shape(case: Case) -> None:
    case.change_tensors(
        lambda tensors: tensors.update({"model.layers.1.self_attn.o_proj.weight": np.ones((16, 30), np.float32)})
    )


def not_a_number(case: Case) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.experts.3.w2.weight"][3, 5] = np.nan

    case.change_tensors(spoil)


def missing_tensor(case: Case) -> None:
    case.change_tensors(lambda tensors: tensors.pop("model.layers.1.mlp.experts.2.w1.weight"))


def unknown_architecture(case: Case) -> None:
    case.change_json("config.json", architectures=["Yuan9ForCausalLM"])


def unknown_router(case: Case) -> None:
    case.change_json("config.json", moe_config={**yuan_directory.CONFIG["moe_config"], "router_type": "linear"})


class Bomb:
    """What a pickle is made of that runs a command when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def dangerous_pickle(case: Case) -> None:
    for path in case.source.glob("model*"):
        path.unlink()
    with zipfile.ZipFile(case.source / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model.norm.weight": Bomb(case.marker)}, protocol=2))
        archive.writestr("archive/byteorder", "little")


def no_separator(case: Case) -> None:
    path = case.source / "tokenizer.json"
    path.write_text(path.read_text().replace("<sep>", "<sip>"))


def outside_the_directory(case: Case) -> None:
    (case.root / "secret.safetensors").write_bytes((case.source / "model-00001-of-00002.safetensors").read_bytes())
    path = case.source / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00001-of-00002.safetensors", "../../secret.safetensors"))


BAD: dict[str, tuple[Callable[[Case], None], str]] = {
    "truncated shard": (truncated_shard, r"truncated"),
    "wrong shape": (wrong_shape, r"o_proj\.weight has the shape \[16, 30\]: expected \[16, 32\]"),
    "NaN weights": (not_a_number, r"model\.layers\.1\.mlp\.experts\.3\.w2\.weight .*not finite"),
    "missing tensor": (missing_tensor, r"The tensor model\.layers\.1\.mlp\.experts\.2\.w1\.weight is missing"),
    "unknown architecture": (unknown_architecture, r"names the architecture \['Yuan9ForCausalLM'\]: expected"),
    "unknown router": (unknown_router, r"has the router_type 'linear': expected 'attn_router'"),
    "a pickle that would execute code": (dangerous_pickle, r"would run (posix|os)\.system.* nothing of it was run"),
    "a tokenizer without its special tokens": (no_separator, r"has no <sep>: expected the special tokens"),
    "an index that names a file outside": (
        outside_the_directory,
        r"names the file '\.\./\.\./secret\.safetensors', which does not lie in",
    ),
}


def command(*arguments: str | Path) -> tuple[int, str, str]:
    """The command as a user calls it: status, standard output, standard error."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "collections"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def assert_one_sentence(text: str, sentence: str) -> None:
    assert re.search(sentence, text), text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 1
    assert text.strip().endswith(".")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion really runs in a Python of its own; only the likelihood, which needs PyTorch, is given."""

    def worker(python: str, module: str, *arguments: Any, **options: Any) -> Done:
        if module.startswith("likelihood_"):
            return Done({"token_ids": [1, 2], "logprobs": [-1.0], "top": [2], "vocab_size": 32}, 0)
        return run_worker(python, module, *arguments, **options)

    monkeypatch.setattr(checkpoint_store, "run_worker", worker)


def run_module(
    case: Case, capsys: pytest.CaptureFixture[str], root: Path | None = None, sha256: str = ""
) -> dict[str, Any]:
    """The module model_checkpoint, as the role calls it."""
    arguments = {
        "root": str(root or case.root / "models"),
        "name": "yuan",
        "source": str(case.source),
        "source_sha256": sha256 or checkpoint_directory.digest(case.source),
        "format": "safetensors",
        "dtype": "float32",
        "text": "Some text.",
        "engine_python": sys.executable,
    }
    with patch_module_args(arguments), pytest.raises(SystemExit):
        importlib.import_module("ansible_collections.plumbline.plumbline.plugins.modules.model_checkpoint").main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def left_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.name != ".lock") if root.exists() else []


def test_the_sound_one_passes_by_the_command(case: Case) -> None:
    status, output, errors = command("convert", "--quiet", case.source, case.target)
    assert (status, errors) == (0, "")
    assert checkpoint_directory.digest(case.source) in output
    assert command("verify", case.target)[0] == 0
    assert command("inspect", case.target)[0] == 0
    config = json.loads((case.target / "config.json").read_text())
    assert (config["sep_token_id"], "auto_map" in config) == (5, False)
    assert not list(case.target.glob("*.py"))
    assert not case.marker.exists()


def test_the_sound_one_passes_by_the_module(case: Case, capsys: pytest.CaptureFixture[str], reference: None) -> None:
    made = run_module(case, capsys)
    assert made["changed"]
    assert made["present"]
    assert not run_module(case, capsys)["changed"]
    assert not case.marker.exists()


@pytest.mark.parametrize("name", BAD)
def test_by_the_command(case: Case, name: str) -> None:
    damage, sentence = BAD[name]
    damage(case)
    status, _, errors = command("convert", "--quiet", case.source, case.target)
    assert status == 1
    assert_one_sentence(errors, sentence)
    assert left_in(case.target.parent) == []
    assert not case.marker.exists()


@pytest.mark.parametrize("name", [name for name in BAD if name != "NaN weights"])
def test_already_seen_by_inspect(case: Case, name: str) -> None:
    damage, sentence = BAD[name]
    damage(case)
    status, output, errors = command("inspect", case.source)
    assert status == 1
    assert output.rstrip().endswith("no")
    assert_one_sentence(errors, sentence)
    assert not case.marker.exists()


@pytest.mark.parametrize("name", BAD)
def test_by_the_module(case: Case, name: str, capsys: pytest.CaptureFixture[str], reference: None) -> None:
    damage, sentence = BAD[name]
    damage(case)
    answer = run_module(case, capsys)
    assert answer["failed"]
    assert_one_sentence(answer["msg"], sentence)
    assert left_in(case.root / "models") == []
    assert not case.marker.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_first_by_the_command(case: Case, small_disk: Path) -> None:
    status, _, errors = command("convert", "--quiet", case.source, small_disk / "yuan")
    assert status == 1
    assert_one_sentence(errors, r"needs .* MB, 0\.0 MB are free there")
    assert left_in(small_disk) == []


def test_a_disk_that_fills_in_the_middle_by_the_command(
    case: Case, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process, so that the disk seems large enough until it is written to.
    monkeypatch.setattr(checkpoint_command, "free_bytes", lambda _path: 1 << 40)
    assert checkpoint_command.main(["convert", "--quiet", str(case.source), str(small_disk / "yuan")]) == 1
    assert_one_sentence(capsys.readouterr().err, r"could not be written to .* \(No space left on device\)")
    assert left_in(small_disk) == []


def test_a_disk_that_fills_in_the_middle_by_the_module(
    case: Case, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reference: None
) -> None:
    monkeypatch.setattr(checkpoint_store, "free_bytes", lambda _path: 1 << 40)
    answer = run_module(case, capsys, root=small_disk / "models")
    assert answer["failed"]
    assert_one_sentence(answer["msg"], r"could not be written to .* \(No space left on device\)")
    assert left_in(small_disk) == ["models"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-7] ^= 0x40
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_manifest_that_does_not_match_by_the_command(case: Case) -> None:
    assert command("convert", "--quiet", case.source, case.target)[0] == 0
    flip(case.target / "model-00002-of-00002.safetensors")
    status, _, errors = command("verify", case.target)
    assert status == 1
    assert_one_sentence(
        errors, r"model-00002-of-00002\.safetensors: expected the SHA-256 .*, found .*; convert the checkpoint again"
    )
    status, _, errors = command("convert", "--quiet", "--source-sha256", "0" * 64, case.source, case.root / "other")
    assert status == 1
    assert_one_sentence(errors, r"expected the SHA-256 0{64}, found")
    assert not (case.root / "other").exists()


def test_a_manifest_that_names_another_shape(case: Case) -> None:
    assert command("convert", "--quiet", case.source, case.target)[0] == 0
    path = case.target / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tensors"]["model.norm.weight"]["shape"] = [17]
    path.write_text(json.dumps(manifest))
    status, _, errors = command("verify", case.target)
    assert status == 1
    assert_one_sentence(
        errors, r"the tensor model\.norm\.weight is \['F32', \[16\]\], the manifest says \['F32', \[17\]\]"
    )


def test_a_manifest_that_does_not_match_by_the_module(
    case: Case, capsys: pytest.CaptureFixture[str], reference: None
) -> None:
    made = run_module(case, capsys)
    flip(next(Path(made["path"]).glob("*.safetensors")))
    answer = run_module(case, capsys)
    assert answer["failed"]
    assert_one_sentence(answer["msg"], r"is not what was put there: .* expected the SHA-256")
    answer = run_module(case, capsys, root=case.root / "other", sha256="0" * 64)
    assert answer["failed"]
    assert_one_sentence(answer["msg"], r"expected the SHA-256 0{64} \(model_source_sha256\), found")
    assert left_in(case.root / "other") == []


def test_a_target_that_is_there_already(case: Case) -> None:
    case.target.mkdir(parents=True)
    (case.target / "mine").touch()
    status, _, errors = command("convert", case.source, case.target)
    assert status == 1
    assert_one_sentence(errors, r"is there already: expected a name that is free")
    assert left_in(case.target.parent) == ["mine", "yuan"]


def test_wrong_usage(case: Case) -> None:
    for arguments in (
        (),
        ("convert", case.source),
        ("convert", "--source-sha256", "12", "a", "b"),
        ("convert", "--shard-bytes", "x", "a", "b"),
    ):
        status, _, errors = command(*arguments)
        assert status == 2
        assert "Traceback" not in errors


def test_an_interrupted_conversion_goes_on(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_command, "_write_manifest", interrupted)
        assert checkpoint_command.main(["convert", "--quiet", str(case.source), str(case.target)]) == 130
    assert "goes on where it stopped" in capsys.readouterr().err
    partial = case.target.with_name(".yuan.partial")
    before = (partial / "model-00001-of-00002.safetensors").stat().st_ino
    assert checkpoint_command.main(["convert", "--quiet", str(case.source), str(case.target)]) == 0
    assert (case.target / "model-00001-of-00002.safetensors").stat().st_ino == before
    assert not partial.exists()


def test_an_architecture_that_the_engine_does_not_know(case: Case, tmp_path: Path) -> None:
    registry = tmp_path / "site" / "vllm" / "model_executor" / "models"
    registry.mkdir(parents=True)
    (tmp_path / "site" / "vllm" / "__init__.py").write_text("raise SystemExit('vllm was imported')")
    (registry / "registry.py").write_text('X = {\n    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),\n}\n')
    case.change_json("config.json", architectures=["NoSuchForCausalLM"], model_type="nosuch")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{CHECKOUT / 'collections'}:{tmp_path / 'site'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", COMMAND, "convert", str(case.source), str(case.target)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    assert_one_sentence(
        done.stderr,
        r"names the architecture NoSuchForCausalLM, which vLLM .* does not know: .*Its own Python \(auto_map\) is not run",
    )
    assert left_in(case.target.parent) == []
    assert not case.marker.exists()


def test_the_format_of_autogptq_is_refused_with_its_reason(case: Case) -> None:
    case.change_tensors(
        lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.qweight": np.ones((2, 32), np.float32)})
    )
    with pytest.raises(CheckpointError, match=r"quantised by AutoGPTQ .*take the bf16 checkpoint"):
        checkpoint_convert.prepared(case.source, "safetensors", "float32")


@pytest.mark.parametrize("architecture", ["yuan2", "yuan2_moe"])
def test_a_gguf_file_of_yuan_is_refused_with_its_reason(tmp_path: Path, architecture: str) -> None:
    metadata = {**gguf_support.metadata(), "general.architecture": architecture}
    source = gguf_support.write(tmp_path / "yuan.gguf", metadata)
    status, _, errors = command("convert", "--quiet", source, tmp_path / "served")
    assert status == 1
    assert_one_sentence(errors, rf"is a Yuan2\.0 \({architecture}\) .*take the bf16 checkpoint")
    assert left_in(tmp_path) == ["yuan.gguf"]
