"""Small model configurations with the key set of the real `config.json` files.

The values are small; the keys, and what is peculiar in them, are those of the published checkpoints: `sep_token_id` is wrong as
in the real file (it is the end-of-document id), the ids of the special tokens are those of the small tokenizer (tokenizer.py),
and the vocabulary is padded beyond the tokenizer's pieces to a multiple of 128.
"""

from __future__ import annotations

import copy
from typing import Any

Config = dict[str, Any]

# What the small tokenizer (tokenizer.py) gives: pieces in the model file, then the tokens that are added at run time.
VOCAB_SIZE = 512
EOD_ID = 301
SEP_ID = 303

_COMMON: Config = {
    "architectures": ["YuanForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_yuan.YuanConfig",
        "AutoModelForCausalLM": "yuan_hf_model.YuanForCausalLM",
    },
    "model_type": "yuan",
    "tokenizer_class": "YuanTokenizer",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "dropout": 0,
    "max_position_embeddings": 4096,
    "model_max_length": 8192,
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": EOD_ID,
    "eos_token_id": EOD_ID,
    "pad_token_id": EOD_ID,
    "eod_token": EOD_ID,
    "eod_token_id": EOD_ID,
    "mask_token_id": EOD_ID,
    "sep_token": SEP_ID,
    "sep_token_id": EOD_ID,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_flash_attention": False,
    "causal_mask": True,
    "use_loss_mask": False,
    "reset_attention_mask": True,
    "reset_position_ids": True,
    "transformers_version": "4.30.0.dev0",
}

# Like Yuan2-2B, 51B and 102B: dense, rotary over the whole head.
DENSE: Config = {
    **_COMMON,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}

# Like Yuan2-M32: experts behind the attention router; heads twice as wide as hidden_size / heads, so rotary over the first half.
# Widths are multiples of 128 and 64, so that the usual 4-bit groups and kernels accept them.
M32: Config = {
    **_COMMON,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "attention_projection_size": 256,
    "intermediate_size": 128,
    "use_moe": True,
    "output_router_logits": False,
    "moe_config": {
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "ffn_hidden_size": 128,
        "norm_topk_prob": True,
        "gated_linear_unit": True,
    },
}

# The one that train.py trains: M32's form with 3.8 million parameters outside the embedding, 1.4 million of them at work for a
# token. The size of the vocabulary and the ids of the special tokens come from its own tokenizer.
TRAINED: Config = {
    **M32,
    "intermediate_size": 256,
    "moe_config": {**M32["moe_config"], "ffn_hidden_size": 256},
}

CONFIGS: dict[str, Config] = {"dense": DENSE, "m32": M32, "trained": TRAINED}


def get(name: str, **changes: Any) -> Config:
    """Return a copy of the named configuration (see CONFIGS) with `changes` applied. Raises ValueError for an unknown name."""
    if name not in CONFIGS:
        raise ValueError(f"No configuration is called {name!r}: choose one of {', '.join(CONFIGS)}.")
    return {**copy.deepcopy(CONFIGS[name]), **changes}
