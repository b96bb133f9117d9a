"""Options of `vllm serve` as an inventory writes them: names of old releases and other servers mapped or refused, numbers read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class PlanError(ValueError):
    """What cannot be served so; the message is one sentence: expected, found, what to do."""


# Other names for an option that vLLM has: they are carried over.
RENAMED = {
    "gpu_memory_fraction": "gpu_memory_utilization",
    "tensor_parallel": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "num_shard": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "max_batch_size": "max_num_seqs",
    "max_concurrent_requests": "max_num_seqs",
    "max_batch_prefill_tokens": "max_num_batched_tokens",
    "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
    "eager": "enforce_eager",
}
# Names that mean nothing to today's vLLM, or that Plumbline sets elsewhere: why, and what to do.
REFUSED = {
    "swap_space": "vLLM has not swapped since its engine V1 (a request that finds no room is computed again): remove it; "
    "kv_offloading_size keeps blocks of the cache in main memory",
    "quantize": "how a model is quantised is what it was approved with: set model_quantization, or model_quantise to have it quantised",
    "max_seq_len": "the context is set by serving_max_model_len",
    "max_total_tokens": "the context is set by serving_max_model_len",
    "max_input_length": "vLLM has one bound for prompt and answer together: set serving_max_model_len, and the length of prompts by "
    "serving_prompt_maximum_characters",
    "max_batch_total_tokens": "the cache decides how many tokens are in flight: set max_num_seqs and max_num_batched_tokens",
    "max_seq_len_to_capture": "CUDA graphs are captured by the number of tokens in a step now: remove it, or set compilation_config",
    "max_context_len_to_capture": "CUDA graphs are captured by the number of tokens in a step now: remove it, or set compilation_config",
    "cuda_graph_sizes": "vLLM takes them in compilation_config as cudagraph_capture_sizes",
    "use_v2_block_manager": "vLLM has one block manager: remove it",
    "num_lookahead_slots": "vLLM sets them by speculative_config: remove it",
    "num_scheduler_steps": "vLLM schedules asynchronously instead: remove it",
    "multi_step_stream_outputs": "vLLM schedules asynchronously instead: remove it",
    "disable_async_output_proc": "vLLM schedules asynchronously: set async_scheduling to false instead",
    "preemption_mode": "vLLM only recomputes: remove it",
    "scheduler_delay_factor": "vLLM mixes prompts and answers in a step (chunked prefill): remove it",
    "engine_use_ray": "the engine is a process of its own: remove it",
    "worker_use_ray": "one machine needs no Ray: remove it, or set distributed_executor_backend",
    "device": "the engine is built for its device: set engine_kind",
    "task": "vLLM calls it runner and convert; a served model generates: remove it",
    "speculative_model": "vLLM takes it in speculative_config: {model: ..., num_speculative_tokens: ...}",
    "num_speculative_tokens": "vLLM takes it in speculative_config: {model: ..., num_speculative_tokens: ...}",
    "guided_decoding_backend": "vLLM takes it in structured_outputs_config: {backend: ...}",
    "rope_scaling": "vLLM takes it in hf_overrides: {rope_parameters: {...}}",
    "rope_theta": "vLLM takes it in hf_overrides: {rope_parameters: {rope_theta: ...}}",
    "enable_reasoning": "naming a reasoning_parser turns it on: remove it",
    "disable_log_requests": "requests are not logged unless enable_log_requests is set: remove it",
    "tokenizer_pool_size": "vLLM has no pool of tokenizers: remove it",
    "lora_extra_vocab_size": "vLLM has no such option: remove it",
    "fp16_no_grad_scale": "there never was such an option: remove it",
    "load_in_8bit": "an option of transformers: set model_quantise to rtn-w8a16",
    "load_in_4bit": "an option of transformers: set model_quantise to rtn-w4a16",
}
_COUNTS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_num_seqs", "max_num_batched_tokens", "block_size",
    "num_gpu_blocks_override",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The inventory's options by today's names, and what was carried over, as sentences."""

    values: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())

    def count(self, name: str) -> int | None:
        """A whole number of 1 or more; `None` where it is left to the plan."""
        value = self.values.get(name)
        return None if value is None else int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A switch."""
        value = self.values.get(name)
        return default if value is None else str(value).lower() in ("true", "yes", "1", "on")

    def size(self, name: str) -> float:
        """A number that may have a fraction; 0 where there is none."""
        try:
            return float(self.values.get(name) or 0)
        except (TypeError, ValueError):
            return 0.0


def read_options(given: Mapping[str, Any]) -> Options:
    """Bring options to today's names. Raises PlanError for those that are refused, set twice, or no numbers."""
    values: dict[str, Any] = {}
    notes = []
    for written, value in given.items():
        name = str(written).replace("-", "_")
        if name in REFUSED:
            raise PlanError(f"Expected options of today's vLLM in serving_options, found {written}: {REFUSED[name]}.")
        if name in RENAMED:
            notes.append(f"{written} is called {RENAMED[name]} in vLLM")
            name = RENAMED[name]
        if name in values:
            raise PlanError(
                f"Expected each of serving_options once, found {name} twice under different spellings: keep one."
            )
        values[name] = value
    for name in _COUNTS:
        if (value := values.get(name)) is not None:
            values[name] = _count(name, value)
    share = values.get("gpu_memory_utilization")
    if share is not None:
        try:
            values["gpu_memory_utilization"] = float(share)
        except (TypeError, ValueError):
            values["gpu_memory_utilization"] = 0.0
        if not 0 < values["gpu_memory_utilization"] <= 1:
            raise PlanError(
                f"Expected serving_options.gpu_memory_utilization as a fraction above 0 and up to 1, found {share!r}: correct it."
            )
    return Options(values, tuple(notes))


def _count(name: str, value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) < 1:
        raise PlanError(f"Expected serving_options.{name} as a whole number of 1 or more, found {value!r}: correct it.")
    return int(text)


def check_block_size(block: int | None, on_cpu: bool, uses_mla: bool) -> None:
    """Raise PlanError for blocks that the attention kernels do not take (get_supported_kernel_block_sizes of each backend)."""
    if block is None:
        return
    if on_cpu and uses_mla:
        raise PlanError(
            f"Expected serving_options without block_size for this model, found {block}: its attention takes blocks of 16 tokens on a CPU, "
            "whatever is asked for; remove it."
        )
    step = 32 if on_cpu else 16
    if block % step:
        raise PlanError(
            f"Expected serving_options.block_size as a multiple of {step}, which the attention kernels of "
            f"{'the CPU engine' if on_cpu else 'GPUs'} take, found {block}: remove it, for vLLM chooses it well."
        )
