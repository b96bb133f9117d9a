"""AWQ W4A16 through llmcompressor. Runs in the Python of the quantiser's own environment: its compressed-tensors is newer than vLLM's.

AWQ multiplies inputs of a weight that see large activations before rounding and divides what feeds them: the product is the same, and
rounding errors fall where they matter less. https://arxiv.org/abs/2306.00978
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError
from .worker_result import say

# Fewer pieces of text than this say little about which inputs matter.
LEAST_SAMPLES = 8


def samples(token_ids: list[int], count: int, length: int) -> list[list[int]]:
    """Pieces of `length` tokens, spread evenly over the text; raises CheckpointError for a text that is too short."""
    pieces = [token_ids[first : first + length] for first in range(0, len(token_ids) - length + 1, length)]
    if len(pieces) < LEAST_SAMPLES:
        raise CheckpointError(
            f"The calibration text has {len(token_ids)} tokens: expected at least {LEAST_SAMPLES * length} "
            f"({LEAST_SAMPLES} pieces of {length}), better {count * length}; name a longer file in model_quantise_calibration_file."
        )
    step = max(1.0, len(pieces) / count)
    return [pieces[int(number * step)] for number in range(min(count, len(pieces)))]


def text_of(content: str, name: str) -> str:
    """The text of a calibration file: plain, or JSON lines with a field `text`; raises CheckpointError for a line without."""
    if not name.endswith((".jsonl", ".json")):
        return content
    texts = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            texts.append(str(json.loads(line)["text"]))
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"The calibration file {name}, line {number}: expected a JSON object with the field text, one a line; correct it."
            ) from None
    return "\n\n".join(texts)


def quantise(job: dict[str, Any]) -> dict[str, Any]:
    """Quantise `source` (Hugging Face's layout, full precision) into `target`, which exists."""
    import torch  # noqa: PLC0415
    from datasets import Dataset  # noqa: PLC0415
    from llmcompressor import oneshot  # noqa: PLC0415
    from transformers import AutoTokenizer  # noqa: PLC0415

    started = time.monotonic()
    source = str(job["source"])
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    chosen = samples(tokenizer(job["text"]).input_ids, job["samples"], job["length"])
    _progress(f"{len(chosen)} pieces of {job['length']} tokens")
    model, mappings = _model(source)
    torch.set_num_threads(job.get("threads") or torch.get_num_threads())
    data = Dataset.from_dict({"input_ids": chosen, "attention_mask": [[1] * len(one) for one in chosen]})
    with _no_pinning():
        oneshot(
            model=model,
            dataset=data,
            processor=tokenizer,
            recipe=_recipe(job, mappings),
            max_seq_length=job["length"],
            num_calibration_samples=len(chosen),
            # What runs by itself, layer after layer, where llmcompressor cannot know it.
            **({"sequential_targets": ["YuanLayer"]} if mappings else {}),
        )
    _progress("writing")
    model.save_pretrained(job["target"], save_compressed=True)
    return {"samples": len(chosen), "length": job["length"], "seconds": round(time.monotonic() - started, 1)}


def _model(source: str) -> tuple[Any, list[Any] | None]:
    """The model as llmcompressor wants it, and what it smooths where llmcompressor does not know the architecture."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    config = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    if config["architectures"] == ["YuanForCausalLM"]:
        from . import quantise_yuan  # noqa: PLC0415 - imports torch

        return quantise_yuan.load(Path(source)), quantise_yuan.mappings(config)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", local_files_only=True, trust_remote_code=False)
    return model.eval(), None


def _recipe(job: dict[str, Any], mappings: list[Any] | None) -> list[Any]:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: PLC0415
    from llmcompressor.modifiers.quantization import QuantizationModifier  # noqa: PLC0415
    from llmcompressor.modifiers.transform.awq import AWQModifier  # noqa: PLC0415

    weights = QuantizationArgs(
        num_bits=job["bits"], type="int", symmetric=True, strategy="group", group_size=job["group"]
    )
    more = {} if mappings is None else {"mappings": mappings}
    return [
        AWQModifier(duo_scaling="both", n_grid=job["grid"], **more),
        QuantizationModifier(
            config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}, ignore=job["ignore"]
        ),
    ]


@contextmanager
def _no_pinning() -> Iterator[None]:
    """Without a GPU there is no memory to pin for it, and llmcompressor 0.14 fails when it tries."""
    import torch  # noqa: PLC0415
    from llmcompressor.pipelines.cache import IntermediatesCache  # noqa: PLC0415

    if torch.cuda.is_available():
        yield
        return
    kept = IntermediatesCache.pin_memory
    IntermediatesCache.pin_memory = lambda *_args, **_more: None
    try:
        yield
    finally:
        IntermediatesCache.pin_memory = kept


def _progress(words: str) -> None:
    print(f"plumbline: {words}", file=sys.stderr, flush=True)


def main(job_text: str) -> int:
    """Carry out a job in JSON (source, target, text, samples, length, bits, group, grid, ignore)."""
    job = json.loads(job_text)
    Path(job["target"]).mkdir(exist_ok=True)
    try:
        say(quantise(job))
    except CheckpointError as error:
        say({"error": str(error)})
    return 0
