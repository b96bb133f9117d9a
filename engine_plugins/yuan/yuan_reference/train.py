"""Train a small Yuan MoE on the text of installed packages, so that quality gates, quantisation and routing have something to lose.

Deterministic for a seed, a number of threads and given versions. Resumable: `--minutes` bounds one call, and the next call goes
on where it ended. When all steps are done, OUTPUT holds a Hugging Face checkpoint (safetensors, bfloat16) with its tokenizer,
`held_out.txt` (text that was not trained on) and `training.json` (recipe, versions and figures).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from yuan_reference import configs, corpus, tokenizer
from yuan_reference.checkpoints import read_hf, write_hf_safetensors
from yuan_reference.companions import write_json
from yuan_reference.model import YuanReference
from yuan_reference.trainable import TrainableYuan

PIECES = 2000
HELD_OUT_WINDOWS = 64


@dataclass(frozen=True)
class Recipe:
    """What the result depends on."""

    steps: int = 1500
    batch: int = 4
    length: int = 256
    learning_rate: float = 3e-3
    warm_up: int = 100
    weight_decay: float = 0.1
    balance: float = 0.01
    seed: int = 0
    # One: matrices of this size gain little from a second one, and beside other work the two wait for each other at every product
    # (measured on two busy cores: 0.5 s a step with one, 5 s with two).
    threads: int = 1

    def rate(self, step: int) -> float:
        """The learning rate of a step: a linear rise, then half a cosine down to a tenth."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        progress = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class Data:
    """Token ids of the training and the held-out text, documents ended by `<eod>`, and the held-out text itself."""

    training: Tensor
    held_out: Tensor
    text: list[str]


def prepare(output: Path, texts: Callable[[], tuple[list[str], list[str]]] = corpus.read, pieces: int = PIECES) -> Data:
    """Train the tokenizer into OUTPUT if it is not there, and encode the text. Raises ValueError for too little text."""
    training, held_out = texts()
    if not (output / "tokenizer.model").exists():
        tokenizer.train(training[::4], output, pieces)
    processor = tokenizer.load(output)
    eod = tokenizer.ids_of(output)["<eod>"]

    def encode(documents: list[str]) -> Tensor:
        ids = [token for document in processor.encode(documents) for token in (*document, eod)]
        return torch.from_numpy(np.array(ids, dtype=np.int64))

    return Data(encode(training), encode(held_out), held_out)


def windows(data: Tensor, length: int, starts: Tensor) -> Tensor:
    """Cut [count, length + 1] tokens from `data` at `starts`."""
    return torch.stack([data[start : start + length + 1] for start in starts.tolist()])


def batch_of(data: Tensor, recipe: Recipe, step: int) -> Tensor:
    """The batch of a step: it depends on the seed and the step only, so that a resumed training sees the same ones."""
    generator = torch.Generator().manual_seed((recipe.seed * 1_000_003 + step) % 2**31)
    starts = torch.randint(0, len(data) - recipe.length - 1, (recipe.batch,), generator=generator)
    return windows(data, recipe.length, starts)


def held_out_windows(data: Tensor, length: int) -> Tensor:
    """Windows that lie evenly over the held-out text. Raises ValueError if it is shorter than one."""
    last = len(data) - length - 1
    if last < 1:
        raise ValueError(f"The held-out text has {len(data)} tokens, one window wants {length + 1}.")
    return windows(data, length, torch.linspace(0, last, min(HELD_OUT_WINDOWS, last)).long())


def perplexity(logits_of: Callable[[Tensor], Tensor], held_out: Tensor) -> float:
    """exp of the mean negative log likelihood per token of [count, S + 1] windows; `logits_of` maps [S] to [S, V]."""
    losses = [functional.cross_entropy(logits_of(row[:-1]).double(), row[1:]) for row in held_out]
    return math.exp(float(torch.stack(losses).mean()))


def unigram_perplexity(training: Tensor, held_out: Tensor, vocabulary: int) -> float:
    """What counting tokens alone gives (add-one smoothed): the figure that a model has to beat."""
    counts = torch.bincount(training, minlength=vocabulary).double() + 1
    logits = (counts / counts.sum()).log()
    return perplexity(lambda row: logits.expand(len(row), -1), held_out)


def train_steps(
    model: TrainableYuan, optimizer: torch.optim.Optimizer, data: Tensor, recipe: Recipe, *, steps: range, until: float
) -> tuple[int, float]:
    """Train until the steps are done or the clock (time.monotonic) passes `until`. Returns (next step, last loss)."""
    loss_now = math.nan
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        rows = batch_of(data, recipe, step)
        logits, imbalance = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + recipe.balance * imbalance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss_now = float(loss.detach())
        if step % 50 == 0:
            print(f"step {step}: loss {loss_now:.3f}, imbalance {float(imbalance.detach()):.3f}", flush=True)
        if time.monotonic() > until:
            return step + 1, loss_now
    return steps.stop, loss_now


def finish(
    output: Path, config: dict[str, Any], model: TrainableYuan, data: Data, figures: dict[str, Any]
) -> dict[str, Any]:
    """Write the checkpoint, measure it as it was written, and write training.json. Returns its content."""
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in model.tensors().items()}
    write_hf_safetensors(output, config, tensors, shards=2)
    (output / "held_out.txt").write_text("\n\n".join(data.text), encoding="utf-8")
    rows = held_out_windows(data.held_out, figures["recipe"]["length"])
    reference = YuanReference(*read_hf(output))
    content = {
        **figures,
        "parameters": sum(tensor.numel() for name, tensor in tensors.items() if name != "lm_head.weight"),
        "training_tokens_available": len(data.training),
        "held_out_tokens": rows.numel() - len(rows),
        "held_out_perplexity": round(perplexity(reference.logits, rows), 3),
        "held_out_perplexity_unigram": round(unigram_perplexity(data.training, rows, config["vocab_size"]), 3),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    write_json(output / "training.json", content)
    return content


def run(
    output: Path, recipe: Recipe, minutes: float, prepare_data: Callable[[Path], Data] = prepare
) -> dict[str, Any] | None:
    """Train for at most `minutes`. Returns the content of training.json when all steps are done, else None.

    Raises ValueError if OUTPUT holds a training of another recipe, or the text is too short.
    """
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    output.mkdir(parents=True, exist_ok=True)
    data = prepare_data(output)
    config = tokenizer.with_tokenizer(configs.get("trained"), tokenizer.pieces_of(output))
    model = TrainableYuan(config, recipe.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=True
    )
    state_file = output / ".training" / "state.pt"
    step, seconds = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        if state["recipe"] != asdict(recipe):
            raise ValueError(
                f"{output} holds a training of another recipe: give the same options, or another directory."
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, seconds = state["step"], state["seconds"]
    began = time.monotonic()
    step, loss = train_steps(
        model, optimizer, data.training, recipe, steps=range(step, recipe.steps), until=began + 60 * minutes
    )
    seconds += time.monotonic() - began
    state_file.parent.mkdir(exist_ok=True)
    unfinished = state_file.with_suffix(".new")
    state = {"recipe": asdict(recipe), "step": step, "seconds": seconds}
    torch.save({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(state_file)
    print(f"{step} of {recipe.steps} steps in {seconds:.0f} s, loss {loss:.3f}", flush=True)
    if step < recipe.steps:
        return None
    figures = {
        "recipe": asdict(recipe),
        "training_seconds": round(seconds),
        "tokens_trained": step * recipe.batch * recipe.length,
    }
    return finish(output, config, model, data, figures)


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 when the model is trained, 3 when there are steps left, 1 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m yuan_reference.train", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--output", type=Path, required=True, help="directory for the state and the result")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so many minutes; call again to go on"
    )
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    options = parser.parse_args(arguments)
    try:
        recipe = Recipe(steps=options.steps, seed=options.seed, threads=options.threads)
        content = run(options.output, recipe, options.minutes)
    except (ValueError, OSError) as error:
        print(f"Nothing was trained: {error}", file=sys.stderr)
        return 1
    if content is None:
        print("There are steps left: call again to go on.")
        return 3
    print(json.dumps({key: value for key, value in content.items() if "perplexity" in key}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
