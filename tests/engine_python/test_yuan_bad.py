"""Bad inputs of Yuan2.0 that need the engine's Python: by the command, as a user calls it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import checkpoint_command

from tests.engine_python.yuan_support import NEEDED, Made, train

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_command"


def command(*arguments: str | Path) -> tuple[int, str, str]:
    """Status, standard output and standard error of plumbline-checkpoint."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "collections"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made("m32", tmp_path_factory.mktemp("yuan"))


class Bomb:
    """What runs a command when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def of_shard(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], None]:
    """The shards of torch.save with a change, saved again by PyTorch."""

    def apply(source: Path, _marker: Path) -> None:
        for path in sorted(source.glob("pytorch_model-*.bin")):
            tensors = torch.load(path, weights_only=True)
            if change(tensors):
                torch.save(tensors, path)
                return
        raise AssertionError("no shard was changed")

    return apply


def spoil(tensors: dict[str, Any]) -> bool:
    if "model.layers.2.self_attn.lf_gate.conv2.bias" not in tensors:
        return False
    tensors["model.layers.2.self_attn.lf_gate.conv2.bias"][3] = float("nan")
    return True


def drop(tensors: dict[str, Any]) -> bool:
    return tensors.pop("model.layers.2.self_attn.lf_gate.conv2.bias", None) is not None


def reshape(tensors: dict[str, Any]) -> bool:
    name = "model.layers.2.self_attn.lf_gate.conv1.weight"
    if name in tensors:
        tensors[name] = tensors[name].reshape(64, 256, 1, 1).clone()
    return name in tensors


def without_index(source: Path) -> None:
    (source / "pytorch_model.bin.index.json").unlink()


def bomb(source: Path, marker: Path) -> None:
    path = sorted(source.glob("pytorch_model-*.bin"))[0]
    torch.save({**torch.load(path, weights_only=True), "model.extra": Bomb(marker)}, path)


def bare_bomb(source: Path, marker: Path) -> None:
    sorted(source.glob("pytorch_model-*.bin"))[0].write_bytes(pickle.dumps(Bomb(marker), protocol=2))


def truncated(source: Path, _marker: Path) -> None:
    path = sorted(source.glob("pytorch_model-*.bin"))[-1]
    path.write_bytes(path.read_bytes()[:-2000])


def lacking(source: Path, _marker: Path) -> None:
    train(source / "tokenizer.model", tuple(name for name in NEEDED if name != "<sep>"), vocab_size=1000)


def unknown(source: Path, _marker: Path) -> None:
    path = source / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"})
    )


def outside(source: Path, _marker: Path) -> None:
    path = source / "pytorch_model.bin.index.json"
    path.write_text(path.read_text().replace("pytorch_model-00001", "../pytorch_model-00001"))


BAD: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "truncated": (truncated, "truncated or something else"),
    "wrong shape": (of_shard(reshape), "conv1.weight has the shape [64, 256, 1, 1]: expected [64, 128, 2, 1]"),
    "NaN": (of_shard(spoil), "not finite"),
    "missing tensor": (of_shard(drop), "conv2.bias"),
    "unknown architecture": (unknown, "names the architecture NoSuchForCausalLM, which vLLM"),
    "a pickle that would execute code": (bomb, "nothing of it was run"),
    "a bare pickle": (bare_bomb, "format of torch.save before PyTorch 1.6"),
    "a tokenizer without <sep>": (lacking, "has no <sep> among its"),
    "an index that leaves the directory": (outside, "which does not lie in its directory"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_by_the_command(made: Made, tmp_path: Path, name: str) -> None:
    source, marker, target = tmp_path / "source", tmp_path / "code-was-run", tmp_path / "served" / "yuan"
    made.write(source, "bin")
    damage, sentence = BAD[name]
    damage(source, marker)
    status, _, errors = command("convert", "--quiet", source, target)
    assert status == 1
    assert sentence in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1
    assert not target.parent.exists() or not list(target.parent.iterdir())
    assert not marker.exists()


def test_the_sound_one_is_converted_and_verified(made: Made, tmp_path: Path) -> None:
    source = made.write(tmp_path / "source", "bin")
    assert command("convert", "--quiet", source, tmp_path / "served")[0] == 0
    assert command("verify", tmp_path / "served")[0] == 0
    status, _, errors = command("convert", "--quiet", "--quantise", "rtn-w4a16", source, tmp_path / "small")
    assert (status, errors) == (0, "")
    assert command("verify", tmp_path / "small")[0] == 0
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert config["model_type"] == "yuan"


def test_a_quantised_one_is_read_back(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made.write(tmp_path / "source", "safetensors")
    monkeypatch.setattr(checkpoint_command, "_LARGEST_ROUNDING", 0.01)
    arguments = ["convert", "--quiet", "--quantise", "rtn-w4a16", str(source), str(tmp_path / "small")]
    assert checkpoint_command.main(arguments) == 1
    assert "half steps from its source's: expected at most 1, the nearest" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
