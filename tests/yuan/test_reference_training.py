"""The trainable model is the reference, and the recipe trains: the loss falls, a resumed training is the straight one."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from yuan_reference import configs, corpus, tokenizer, train
from yuan_reference.checkpoints import make_tensors, read_hf
from yuan_reference.model import YuanReference
from yuan_reference.trainable import TrainableYuan

Prepare = Callable[[Path], train.Data]
SHORT = train.Recipe(steps=5, batch=4, length=48, warm_up=2, threads=1)


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module", name="prepare")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    """The recipe's own preparation, with the standard library's text and a small tokenizer, done once."""
    first = tmp_path_factory.mktemp("prepared")
    data = train.prepare(first, lambda: corpus.read(packages=()), pieces=tokenizer.SMALL_PIECES)

    def prepare(output: Path) -> train.Data:
        for path in first.iterdir():
            shutil.copyfile(path, output / path.name)
        return data

    return prepare


def test_the_trainable_model_is_the_reference() -> None:
    """Its local filter, rotation and experts are written another way; with random weights that say something they agree."""
    config = configs.get("trained", num_hidden_layers=2)
    model = TrainableYuan(config)
    tensors = make_tensors(config, seed=2)
    with torch.no_grad():
        for key, parameter in model.weights.items():
            parameter.copy_(tensors[key.replace("/", ".")])
        ids = torch.randint(0, configs.VOCAB_SIZE, (3, 33), generator=torch.Generator().manual_seed(1))
        logits, imbalance = model(ids)
    reference = YuanReference(config, model.tensors())
    expected = torch.stack([reference.logits(row) for row in ids])
    assert float((logits - expected).abs().max()) < 1e-4
    assert 0.9 < float(imbalance) < 2


def test_every_weight_is_trained() -> None:
    model = TrainableYuan(configs.get("trained", num_hidden_layers=2))
    logits, imbalance = model(torch.arange(400).reshape(4, 100))
    (logits.square().mean() + imbalance).backward()
    still = [
        key for key, parameter in model.weights.items() if parameter.grad is None or not parameter.grad.abs().max() > 0
    ]
    assert still == []


def test_only_what_it_can_train_is_accepted() -> None:
    with pytest.raises(ValueError, match="experts and tied embeddings"):
        TrainableYuan(configs.get("dense"))
    with pytest.raises(ValueError, match="experts and tied embeddings"):
        TrainableYuan(configs.get("m32", tie_word_embeddings=False))


def test_a_resumed_training_is_the_straight_one(tmp_path: Path, prepare: Prepare) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    content = train.run(straight, SHORT, minutes=10, prepare_data=prepare)
    assert content is not None
    calls = 0
    while train.run(resumed, SHORT, minutes=0, prepare_data=prepare) is None:  # one step a call
        calls += 1
        assert not (resumed / "training.json").exists()
    assert calls == SHORT.steps - 1
    for name, tensor in read_hf(straight)[1].items():
        assert torch.equal(read_hf(resumed)[1][name], tensor), name
    again = json.loads((resumed / "training.json").read_text())
    assert again["held_out_perplexity"] == content["held_out_perplexity"]


def test_training_lowers_the_perplexity_and_leaves_a_checkpoint(tmp_path: Path, prepare: Prepare) -> None:
    recipe = train.Recipe(steps=40, batch=8, length=64, warm_up=4, threads=1)
    content = train.run(tmp_path, recipe, minutes=10, prepare_data=prepare)
    assert content is not None
    assert content["held_out_perplexity"] < 0.6 * configs.VOCAB_SIZE
    config, tensors = read_hf(tmp_path)
    assert config["eos_token_id"] == tokenizer.ids_of(tmp_path)["<eod>"]
    assert config["torch_dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    held_out = (tmp_path / "held_out.txt").read_text()
    ids = tokenizer.load(tmp_path).encode(held_out[:2000])
    losses = torch.nn.functional.cross_entropy(YuanReference(config, tensors).logits(ids[:-1]), torch.tensor(ids[1:]))
    assert math.exp(float(losses)) < configs.VOCAB_SIZE
    with pytest.raises(ValueError, match="holds a training of another recipe"):
        train.run(tmp_path, SHORT, minutes=0, prepare_data=prepare)


def test_perplexities_by_hand() -> None:
    held_out = torch.tensor([[0, 1, 1], [1, 0, 1]])
    certain = torch.tensor([[math.log(0.25), math.log(0.75)]])
    # Three ones and one zero are to be predicted.
    assert train.perplexity(lambda row: certain.expand(len(row), -1), held_out) == pytest.approx(
        (0.75**3 * 0.25) ** -0.25
    )
    training = torch.tensor([1, 1, 0])  # add one: 3 and 2 of 5
    assert train.unigram_perplexity(training, held_out, 2) == pytest.approx((0.6**3 * 0.4) ** -0.25)


def test_the_rate_rises_and_falls() -> None:
    recipe = train.Recipe(steps=100, warm_up=10, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) in (9, 10)
    assert rates[-1] == pytest.approx(0.1, abs=0.001)


def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prepare: Prepare
) -> None:
    monkeypatch.setattr(train.run, "__defaults__", (prepare,))
    arguments = ["--output", str(tmp_path), "--steps", "2", "--threads", "1"]
    assert train.main([*arguments, "--minutes", "0"]) == 3
    assert "call again to go on" in capsys.readouterr().out
    assert train.main(["--output", str(tmp_path), "--steps", "5", "--threads", "1"]) == 1
    assert "Nothing was trained: " in capsys.readouterr().err
    assert train.main(arguments) == 0
    assert "held_out_perplexity_unigram" in capsys.readouterr().out
