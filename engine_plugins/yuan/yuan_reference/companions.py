"""What lies beside the weights of a checkpoint: configurations, the tokenizer's files, and code that must never run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

REMOTE_CODE = 'raise RuntimeError("The code of a checkpoint was executed.")\n'


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_companions(
    directory: Path, config: Mapping[str, Any], dtype: torch.dtype, tokenizer: Path | None = None
) -> None:
    """Write what lies beside the weights. `tokenizer`: a directory as tokenizer.py writes it, whose files are copied."""
    directory.mkdir(parents=True, exist_ok=True)
    name = str(dtype).removeprefix("torch.")
    write_json(directory / "config.json", {**config, "torch_dtype": name})
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    write_json(
        directory / "generation_config.json", {"_from_model_config": True, **ids, "transformers_version": "4.30.0.dev0"}
    )
    for code in ("configuration_yuan.py", "yuan_hf_model.py"):
        (directory / code).write_text(REMOTE_CODE, encoding="utf-8")
    if tokenizer is not None:
        for path in sorted(tokenizer.iterdir()):
            shutil.copyfile(path, directory / path.name)
