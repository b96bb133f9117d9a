"""The special tokens of Yuan2.0, the chat template, and the JSON files that follow from them. Standard library only.

Names and order are those of the publishers' tokenizer (megatron/tokenizer/tokenizer.py): what the model file lacks of them gets the ids
behind its last piece. Ids are taken from the model file; config.json is wrong about some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError
from .sentencepiece_model import UNKNOWN, SentencePieceModel

END, SEPARATOR, NEWLINE, PAD = "<eod>", "<sep>", "<n>", "<pad>"
# Without these no prompt can be written and no answer would end.
_NEEDED = (END, SEPARATOR, NEWLINE, PAD)
_ADDED = (
    SEPARATOR, PAD, "<mask>", "<predict>", "<FIM_SUFFIX>", "<FIM_PREFIX>", "<FIM_MIDDLE>", "<commit_before>", "<commit_msg>",
    "<commit_after>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>", "<empty_output>", "<repo_name>",
    "<file_sep>",
)  # fmt: skip
_BEGIN = "<s>"
_ELSEWHERE = "take the tokenizer.model that was published with this checkpoint"

# One turn: TEXT<sep> and the answer ends with <eod>. Several turns: joined by <n>, which stands for their newlines too.
CHAT_TEMPLATE = (
    "{%- set last = messages[-1] if messages else none -%}"
    "{%- set answered = last is not none and last['role'] == 'assistant' and not add_generation_prompt -%}"
    "{%- set prompt = messages[:-1] if answered else messages -%}"
    "{%- for message in prompt -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('Yuan2.0 knows the roles system, user and assistant, not ' ~ message['role']) -}}"
    "{%- endif -%}"
    "{%- set all = namespace(text='') -%}"
    "{%- if message['content'] is string -%}{%- set all.text = message['content'] -%}"
    "{%- else -%}"
    "{%- for part in message['content'] or [] -%}"
    "{%- if part['type'] != 'text' -%}{{- raise_exception('Yuan2.0 reads text only, not ' ~ part['type']) -}}{%- endif -%}"
    "{%- set all.text = all.text ~ ('' if loop.first else '\n') ~ part['text'] -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<n>' if not loop.first else '' -}}"
    "{{- all.text | replace('\n', '<n>') if prompt | length > 1 else all.text -}}"
    "{%- endfor -%}"
    "{%- if answered -%}{{- '<sep>' ~ last['content'] ~ '<eod>' -}}"
    "{%- elif add_generation_prompt -%}{{- '<sep>' -}}{%- endif -%}"
)


def special_ids(model: SentencePieceModel, config: Mapping[str, Any]) -> dict[str, int]:
    """Id of every special token. Raises CheckpointError where the model file lacks one, or contradicts config.json."""
    ids = model.ids()
    missing = [name for name in _NEEDED if name not in ids]
    if missing:
        raise CheckpointError(
            f"tokenizer.model has no {', '.join(missing)} among its {len(ids)} pieces: expected the special tokens of Yuan2.0, "
            f"without which no prompt and no end can be written; {_ELSEWHERE}."
        )
    unknown = [piece.text for piece in model.pieces if piece.kind == UNKNOWN]
    if len(unknown) != 1 or _BEGIN not in ids:
        raise CheckpointError(
            f"tokenizer.model has the unknown pieces {unknown} and {'a' if _BEGIN in ids else 'no'} {_BEGIN}: expected one of each; "
            f"{_ELSEWHERE}."
        )
    special = {unknown[0]: ids[unknown[0]], _BEGIN: ids[_BEGIN], END: ids[END]}
    behind = len(ids)
    for name in _ADDED:
        special[name] = ids.get(name, behind)
        behind += name not in ids
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and behind > vocabulary:
        raise CheckpointError(
            f"tokenizer.model with its special tokens has {behind} tokens, config.json has a vocab_size of {vocabulary}: "
            f"expected at most as many; {_ELSEWHERE}."
        )
    for key, name in (("eos_token_id", END), ("sep_token", SEPARATOR)):
        stated = config.get(key)
        if isinstance(stated, int) and stated != special[name]:
            raise CheckpointError(
                f"config.json has {stated} as {key}, {name} is {special[name]} in tokenizer.model: expected the same; {_ELSEWHERE}."
            )
    return special


def served_config(config: Mapping[str, Any], special: Mapping[str, int], dtype: str) -> dict[str, Any]:
    """config.json as it shall be served: no foreign code is named, and the ids are those of the tokenizer.

    `dtype`: type of the weights (bfloat16, float16, float32). The padded vocabulary stays as the embedding has it.
    """
    left = {
        key: value
        for key, value in config.items()
        if key not in ("auto_map", "tokenizer_class", "transformers_version", "dtype")
    }
    end = special[END]
    return {
        **left,
        "architectures": ["YuanForCausalLM"],
        "model_type": "yuan",
        "torch_dtype": dtype,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", True)),
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": special[PAD],
        "sep_token": special[SEPARATOR],
        "sep_token_id": special[SEPARATOR],
        **({"mask_token_id": special["<mask>"]} if "mask_token_id" in config else {}),
    }


def generation_config(given: Mapping[str, Any], special: Mapping[str, int]) -> dict[str, Any]:
    """generation_config.json: how the publishers sample, and where an answer ends."""
    kept = {
        key: value
        for key, value in given.items()
        if not key.endswith("_token_id") and key not in ("_from_model_config", "transformers_version")
    }
    return {**kept, "bos_token_id": special[END], "eos_token_id": special[END], "pad_token_id": special[PAD]}


def tokenizer_config(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json for tokenizer.json. Nothing is put before or behind a prompt, whatever the publishers' file says."""
    length = given.get("model_max_length") or config.get("model_max_length") or config.get("max_position_embeddings")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": length} if isinstance(length, int) else {}),
        "bos_token": _BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "sep_token": SEPARATOR,
        "mask_token": "<mask>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
    }


def check_tokenizer_json(directory: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """Special ids of a directory that brings tokenizer.json alone; raises CheckpointError where it lacks one."""
    try:
        tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        ids = {str(entry["content"]): int(entry["id"]) for entry in tokenizer["added_tokens"]}
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            ids.update({name: int(vocabulary[name]) for name in _NEEDED if name in vocabulary})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{directory}/tokenizer.json cannot be read ({error}): {_ELSEWHERE}.") from None
    missing = [name for name in _NEEDED if name not in ids]
    if missing:
        raise CheckpointError(
            f"{directory}/tokenizer.json has no {', '.join(missing)}: expected the special tokens of Yuan2.0; {_ELSEWHERE}."
        )
    if config.get("eos_token_id") not in (None, ids[END]):
        raise CheckpointError(
            f"config.json has {config['eos_token_id']} as eos_token_id, {END} is {ids[END]} in tokenizer.json: expected the same; "
            f"{_ELSEWHERE}."
        )
    return ids
