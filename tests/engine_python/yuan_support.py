"""Small Yuan2.0 checkpoints for tests: weights by the reference, and a tokenizer of SentencePiece with the family's special tokens."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from yuan_reference import checkpoints, configs

NEEDED = ("<eod>", "<n>", "<sep>", "<pad>")
CODE = (
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<empty_output>",
    "<commit_before>",
    "<commit_msg>",
    "<commit_after>",
)
LIKE_LLAMA: dict[str, Any] = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}


def corpus() -> list[str]:
    """Text of this checkout: prose and code, English and Chinese."""
    root = Path(__file__).resolve().parents[2]
    files = [
        root / "README.md",
        root / "README.zh-CN.md",
        root / "docs/model.md",
        root / "docs/gates.md",
        Path(__file__),
    ]
    return [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def train(path: Path, special: tuple[str, ...] = (*NEEDED, *CODE), vocab_size: int = 1500, **form: Any) -> Path:
    """A small model file with these pieces among the others."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_writer=writer,
        vocab_size=vocab_size,
        character_coverage=0.995,
        user_defined_symbols=list(special),
        minloglevel=2,
        hard_vocab_limit=False,
        **(form or LIKE_LLAMA),
    )
    path.write_bytes(writer.getvalue())
    return path


class Made:
    """A small model: its configuration, its tensors, and a directory with its tokenizer."""

    def __init__(self, name: str, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        self.tokenizer = directory / "tokenizer"
        self.tokenizer.mkdir(parents=True)
        model = train(self.tokenizer / "tokenizer.model", vocab_size=1000)
        (self.tokenizer / "tokenizer_config.json").write_text('{"add_bos_token": true, "add_eos_token": true}')
        ids = sentencepiece.SentencePieceProcessor(model_file=str(model))
        end = ids.piece_to_id("<eod>")
        named = (
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "eod_token",
            "eod_token_id",
            "mask_token_id",
            "sep_token_id",
        )
        self.config = configs.get(
            name, vocab_size=1152, **dict.fromkeys(named, end), sep_token=ids.piece_to_id("<sep>")
        )
        self.tensors = checkpoints.make_tensors(self.config, seed=11, dtype=dtype)

    def write(self, directory: Path, layout: str) -> Path:
        """Write it in a layout and return the directory."""
        if layout == "safetensors":
            checkpoints.write_hf_safetensors(directory, self.config, self.tensors, shards=3, tokenizer=self.tokenizer)
        elif layout == "split":
            checkpoints.write_split(directory, self.config, self.tensors, pieces=3, tokenizer=self.tokenizer)
        elif layout in ("bin", "views"):
            checkpoints.write_hf_bin(
                directory, self.config, self.tensors, shards=3, views=layout == "views", tokenizer=self.tokenizer
            )
        else:
            tp, pp = (int(digit) for digit in layout.partition(" ")[2].split("x"))
            checkpoints.write_companions(directory, self.config, torch.bfloat16, self.tokenizer)
            checkpoints.write_megatron(directory, self.config, self.tensors, tp=tp, pp=pp)
        return directory


LAYOUTS = ("safetensors", "split", "bin", "views", "megatron 1x1", "megatron 2x2")
