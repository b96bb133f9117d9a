"""From a GGUF file's vocabulary to tokenizer.json, tokenizer_config.json and the chat template. Standard library only."""

from __future__ import annotations

from typing import Any

from .checkpoint_errors import CheckpointError
from .gguf_file import GgufHeader

_CONTROL, _USER_DEFINED = 3, 4
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES_ONLY = {**_BYTE_LEVEL, "use_regex": False}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            _BYTES_ONLY,
        ],
    }


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SINGLE_DIGITS = {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]}
# How text is cut before byte pairs are merged, by the name that llama.cpp gives it (src/llama-vocab.cpp).
_CUTS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "llama-bpe": _split(_WORDS + r"\p{N}{1,3}" + _REST),
    "qwen2": _split(_WORDS + r"\p{N}" + _REST),
}


def tokenizer_files(header: GgufHeader, vocab_size: int) -> dict[str, Any]:
    """tokenizer.json and tokenizer_config.json as objects; raises CheckpointError for a vocabulary that is not understood."""
    metadata = header.metadata
    model, cut = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model is None or "tokenizer.ggml.tokens" not in metadata:
        raise CheckpointError(
            "The GGUF file holds no tokenizer: take a complete file, or give the model as a directory of safetensors."
        )
    if model != "gpt2" or cut not in _CUTS:
        raise CheckpointError(
            f"The GGUF file has the tokenizer {model!r} with the cut {cut!r}, this conversion knows 'gpt2' with {', '.join(_CUTS)}: "
            "give the model as a directory of safetensors, which brings its tokenizer."
        )
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.merges", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    if len(tokens) > vocab_size or len(kinds) != len(tokens) or len(set(tokens)) != len(tokens) or not merges:
        raise CheckpointError(
            f"The tokenizer of the GGUF file has {len(tokens)} tokens ({len(set(tokens))} different), {len(kinds)} types and "
            f"{len(merges)} merges for {vocab_size} embeddings: the file is damaged."
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [merge.split(" ") for merge in merges]
    bad = next((merge for merge, pair in zip(merges, pairs) if len(pair) != 2 or "".join(pair) not in vocabulary), None)
    if bad is not None:
        raise CheckpointError(
            f"The tokenizer of the GGUF file merges {bad!r} into no token of its own: the file is damaged."
        )
    special = {
        role: _token(tokens, metadata, key)
        for role, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("pad_token", "padding"),
            ("unk_token", "unknown"),
        )
    }
    if special["eos_token"] is None:
        raise CheckpointError(
            "The GGUF file names no end-of-sequence token, so that no answer would end: take another copy."
        )
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False)) and special["bos_token"] is not None
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(number, token, kinds[number])
            for number, token in enumerate(tokens)
            if kinds[number] in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": _CUTS[cut],
        "post_processor": _begin_with(special["bos_token"], vocabulary) if adds_bos else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": cut == "llama-bpe",
            "vocab": vocabulary,
            "merges": pairs,
        },
    }
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{metadata.get('general.architecture')}.context_length", 2048),
        **{role: token for role, token in special.items() if token is not None},
    }
    if metadata.get("tokenizer.chat_template"):
        settings["chat_template"] = metadata["tokenizer.chat_template"]
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}


def _token(tokens: list[str], metadata: dict[str, Any], key: str) -> str | None:
    number = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if number is None:
        return None
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise CheckpointError(
            f"The GGUF file names token {number!r} as {key}, it has {len(tokens)}: the file is damaged."
        )
    return tokens[number]


def _added(number: int, token: str, kind: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": token, **flags, "special": kind == _CONTROL}


def _begin_with(token: str | None, vocabulary: dict[str, int]) -> dict[str, Any]:
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"SpecialToken": {"id": token, "type_id": 1}}, other],
        "special_tokens": {token: {"id": token, "ids": [vocabulary[token or ""]], "tokens": [token]}},
    }
