"""Which paths of vLLM are treated how. A POST request to any other computes: a drain refuses it, and it takes a place."""

from __future__ import annotations

STATUS = "/plumbline/status"
GENERATE = "/generate"
COMPLETIONS = "/v1/completions"

GUARDED = "/v1"
"""vLLM asks for its key below this; newer versions below some others as well, where it is asked twice then."""

OPEN = frozenset({"/ping", "/health", "/metrics", "/version", "/load"})
"""Nobody needs a key for these, whatever the method."""

OPERATION = frozenset(
    {
        "/abort_requests",
        "/collective_rpc",
        "/fault_tolerance/apply",
        "/is_scaling_elastic_ep",
        "/pause",
        "/release_kv_cache_memory",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/resume",
        "/scale_elastic_ep",
        "/sleep",
        "/start_profile",
        "/stop_profile",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/wake_up",
    }
)
"""Operation of the server: possible while it is drained or full."""

PASSED = OPEN | OPERATION

LIGHT = frozenset(
    {
        "/detokenize",
        "/tokenize",
        "/v1/chat/completions/derender",
        "/v1/chat/completions/render",
        "/v1/completions/derender",
        "/v1/completions/render",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/responses/render",
    }
)
"""The API server answers these alone: they end with a drain, but take no place of the engine."""

PROMPTS = frozenset(
    {
        "/cohere/v2/chat",
        "/invocations",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/completions/render",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/responses",
        "/v1/responses/render",
        GENERATE,
    }
)
"""Their bodies hold prompts, which are cleaned."""
