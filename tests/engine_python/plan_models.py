"""Tiny models of many kinds, by their config.json: what the plan reckons for them is held against what vLLM does."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _model(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {**_BASE, "architectures": [architecture], "model_type": model_type, **more}


_MAMBA2 = {
    "mamba_d_conv": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "mamba_chunk_size": 32,
}
_W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*lf_gate.*", r"re:.*mlp\.gate(\..*)?$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "pack-quantized",
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
                "dynamic": False,
            },
        }
    },
}
YUAN = _model(
    "YuanForCausalLM",
    "yuan",
    attention_projection_size=256,
    use_moe=True,
    moe_config={
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "ffn_hidden_size": 64,
        "norm_topk_prob": True,
        "gated_linear_unit": True,
    },
    tie_word_embeddings=True,
)
MODELS: dict[str, dict[str, Any]] = {
    "dense with grouped heads": _model("LlamaForCausalLM", "llama"),
    "dense with one head of keys": _model("LlamaForCausalLM", "llama", num_key_value_heads=1),
    "tied": _model("Qwen3ForCausalLM", "qwen3", tie_word_embeddings=True, vocab_size=1003),
    "a window in every layer": _model("MistralForCausalLM", "mistral", sliding_window=512),
    "windows in five layers of six": _model(
        "Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=7, sliding_window=256, query_pre_attn_scalar=32,
        hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
    ),
    "windows in every second layer": _model(
        "Gemma2ForCausalLM", "gemma2", sliding_window=512, query_pre_attn_scalar=32, attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
    ),
    "experts": _model(
        "Qwen3MoeForCausalLM", "qwen3_moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[],
    ),
    "experts of Mixtral": _model("MixtralForCausalLM", "mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "latent attention": _model(
        "DeepseekV2ForCausalLM", "deepseek_v2", num_key_value_heads=4, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=64,
        qk_rope_head_dim=64, v_head_dim=64, head_dim=64, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=64, first_k_dense_replace=1, moe_layer_freq=1, topk_method="greedy", n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.0, scoring_func="softmax", rope_theta=10000.0, attention_bias=False,
    ),
    "Yuan's local filter": YUAN,
    "Yuan in four bits": {**YUAN, "quantization_config": _W4A16},
    "a short convolution in most layers": _model(
        "Lfm2ForCausalLM", "lfm2", conv_dim=128, conv_L_cache=3, conv_bias=False, block_multiple_of=64, block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False, block_ff_dim=256, norm_eps=1e-5, block_dim=128,
        layer_types=["conv", "conv", "full_attention", "conv"], tie_word_embeddings=True,
    ),
    "state and attention in each layer": _model(
        "FalconH1ForCausalLM", "falcon_h1", **_MAMBA2, mamba_d_ssm=256, mamba_norm_before_gate=False, mamba_rms_norm=False,
    ),
    "states, and attention in one layer of four": _model(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", **_MAMBA2, layer_types=["mamba", "mamba", "attention", "mamba"],
        num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=256, embedding_multiplier=1.0, logits_scaling=1.0,
        residual_multiplier=1.0, attention_multiplier=0.17, position_embedding_type="rope",
    ),
    "gated delta rule": _model(
        "Qwen3NextForCausalLM", "qwen3_next", linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
        linear_value_head_dim=32, linear_conv_kernel_dim=4, full_attention_interval=4, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=64, shared_expert_intermediate_size=64, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
        partial_rotary_factor=0.5,
    ),
    "keys and values of eight bits": _model("LlamaForCausalLM", "llama"),
    "four bits": {**_model("LlamaForCausalLM", "llama"), "quantization_config": _W4A16},
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "keys and values of eight bits": {"kv_cache_dtype": "fp8"},
    "dense with one head of keys": {"block_size": 64, "max_model_len": 1000},
    "windows in every second layer": {"max_num_batched_tokens": 512},
}
