# ruff: noqa: PLC0415 - vLLM and torch are there on a GPU machine only
"""The Yuan plugin on a real GPU, CUDA graphs on, beside the plain reference in float64. By hand on a GPU machine, in the engine's Python:

    PYTHONPATH=engine_plugins/yuan python -m pytest -c /dev/null --rootdir . --noconftest -s -q tests/gpu/test_yuan_gpu.py

Needs vLLM, torch, pytest, safetensors and the plugin's entry point. Prints one line of figures a case; docs/measurements/yuan-h200.md keeps
what came out. Random models of the real layout; prompts of 1, 2, 3, 17 and 300 tokens, 64 decoded tokens, alone and mixed, in chunks,
after preemption, and with 4-bit weights.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# Steps of 64 tokens are many here: so small a model must meet experts of four bits that are turned back, too.
os.environ.setdefault("PLUMBLINE_YUAN_MANY_TOKENS", "64")

torch = pytest.importorskip("torch", reason="needs the engine's Python")
pytest.importorskip("vllm", reason="needs the engine's Python")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or "YUAN_TEST_DRY" in os.environ), reason="needs a GPU"),
]
ROOT = Path(__file__).resolve().parents[2]
for place in (ROOT, ROOT / "engine_plugins/yuan", ROOT / "bench"):
    sys.path.insert(0, str(place))

LENGTHS = (1, 2, 3, 17, 300)
DECODED = 64
# For a dry run without a GPU.
DRY: dict[str, Any] = {"enforce_eager": True} if "YUAN_TEST_DRY" in os.environ else {}
SMALL_GRAPHS = {"cudagraph_capture_sizes": [1, 2, 4, 8]}
# |vLLM - reference| / |reference| of a position's logits. In float32 (Triton told not to use tf32) every position must hold.
# With fewer bits a near tie between two experts of a random model goes the other way in some layer of one position in a few, and what it
# leaves in the cache is seen by later positions: there the median must hold. A dense model has no ties.
BOUNDS = {"float32": 1e-3, "float16": 1e-1, "bfloat16": 1e-1}
SHARE = {"float32": 1.0, "float16": 0.5, "bfloat16": 0.5}


def checkpoint(directory: Path, kind: str, dtype: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a random model; returns its configuration and the tensors as they were written."""
    from safetensors.torch import save_file
    from yuan_reference import checkpoints, configs

    config = {**configs.get(kind), "torch_dtype": str(dtype).removeprefix("torch.")}
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in checkpoints.make_tensors(config, seed=3).items()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return config, tensors


class Engine:
    """vLLM on a directory; gives the log-probabilities of every position it computed."""

    def __init__(self, directory: Path, dtype: str, vocab: int, **options: Any) -> None:
        import vllm

        self.vllm = vllm
        self.vocab = vocab
        self.llm = vllm.LLM(
            model=str(directory),
            dtype=dtype,
            skip_tokenizer_init=True,
            max_model_len=512,
            max_num_seqs=8,
            max_logprobs=vocab,
            gpu_memory_utilization=options.pop("gpu_memory_utilization", 0.05),
            compilation_config=SMALL_GRAPHS,
            disable_log_stats=True,
            **{**options, **DRY},
        )
        self.preempted = 0
        self.cached: list[int] = []
        scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request

        def counted(*arguments: Any, **more: Any) -> Any:
            self.preempted += 1
            return preempt(*arguments, **more)

        scheduler._preempt_request = counted

    def answers(self, prompts: Sequence[Sequence[int]], decoded: int = DECODED) -> list[tuple[list[int], Any]]:
        """For each prompt its decoded tokens, and their log-probabilities [decoded, vocab]."""
        asked = self.vllm.SamplingParams(
            temperature=0.0, max_tokens=decoded, ignore_eos=True, logprobs=self.vocab, detokenize=False
        )
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        results = []
        self.cached = []
        for answer in self.llm.generate(given, asked, use_tqdm=False):
            output = answer.outputs[0]
            self.cached.append(answer.num_cached_tokens or 0)
            rows = torch.full((len(output.token_ids), self.vocab), float("nan"), dtype=torch.float64)
            for position, entry in enumerate(output.logprobs):
                for token, told in entry.items():
                    rows[position, token] = told.logprob
            results.append((list(output.token_ids), rows))
        return results

    def close(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


def prompts(vocab: int, lengths: Sequence[int] = LENGTHS, seed: int = 5) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in lengths]


def errors(reference: Any, prompt: Sequence[int], tokens: Sequence[int], rows: Any) -> Any:
    """Relative error of each decoded position's logits, up to the constant that a softmax does not see; not a number is infinite."""
    logits = reference.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :].double()
    wanted = logits - logits.mean(-1, keepdim=True)
    given = rows - rows.mean(-1, keepdim=True)
    return torch.nan_to_num((given - wanted).norm(dim=-1) / wanted.norm(dim=-1), nan=float("inf"))


def reference_of(config: dict[str, Any], tensors: dict[str, Any]) -> Any:
    from yuan_reference.model import YuanReference

    return YuanReference(config, tensors, dtype=torch.float64)


def judged(name: str, dtype: str, reference: Any, asked: list[list[int]], answers: list[tuple[list[int], Any]]) -> None:
    found = [errors(reference, prompt, *answer) for prompt, answer in zip(asked, answers)]
    told = " ".join(f"{len(prompt)}:{value.median():.1e}/{value.max():.1e}" for prompt, value in zip(asked, found))
    print(f"\n{name:40} length:median/worst {told}", flush=True)
    for prompt, value in zip(asked, found):
        assert torch.quantile(value, SHARE[dtype]) <= BOUNDS[dtype], f"{name}, prompt of {len(prompt)}"


@pytest.mark.parametrize(("kind", "dtype"), [("m32", "float32"), ("m32", "float16"), ("dense", "bfloat16")])
def test_alone_mixed_and_again(tmp_path: Path, kind: str, dtype: str) -> None:
    config, tensors = checkpoint(tmp_path / "model", kind, getattr(torch, dtype))
    engine = Engine(tmp_path / "model", dtype, config["vocab_size"])
    try:
        reference, asked = reference_of(config, tensors), prompts(config["vocab_size"])
        judged(f"{kind} {dtype} mixed", dtype, reference, asked, engine.answers(asked))
        # One by one after the mixed batch: the state of the requests before must not be found.
        alone = [engine.answers([prompt])[0] for prompt in asked]
        judged(f"{kind} {dtype} alone", dtype, reference, asked, alone)
        # The comparison must be able to fail: one of the filter's taps exchanged is another model.
        swapped = dict(tensors)
        swapped["model.layers.0.self_attn.lf_gate.conv1.weight"] = tensors[
            "model.layers.0.self_attn.lf_gate.conv1.weight"
        ].flip(2)
        wrong = float(errors(reference_of(config, swapped), asked[-1], *alone[-1]).median())
        print(f"{kind} {dtype} taps exchanged: {wrong:.1e}")
        assert wrong > 2 * BOUNDS[dtype]
    finally:
        engine.close()


def test_chunks_and_preemption(tmp_path: Path) -> None:
    config, tensors = checkpoint(tmp_path / "model", "m32", torch.float32)
    # Steps of 64 tokens: prompts of 300 come in pieces, beside the others' decoding. So few blocks that not all requests fit at once.
    engine = Engine(
        tmp_path / "model",
        "float32",
        config["vocab_size"],
        max_num_batched_tokens=64,
        enable_chunked_prefill=True,
        num_gpu_blocks_override=int(os.environ.get("YUAN_TEST_BLOCKS", "60")),
        enable_prefix_caching=False,
    )
    try:
        asked = prompts(config["vocab_size"], (300, 17, 200, 3, 250, 1, 300, 2))
        answers = engine.answers(asked, decoded=128)
        judged("m32 float32 chunks of 64, few blocks", "float32", reference_of(config, tensors), asked, answers)
        print(f"preempted {engine.preempted} times, {engine.llm.llm_engine.vllm_config.cache_config.block_size=}")
        assert engine.preempted > 0
    finally:
        engine.close()


def test_prefix_caching(tmp_path: Path) -> None:
    config, tensors = checkpoint(tmp_path / "model", "m32", torch.float32)
    engine = Engine(tmp_path / "model", "float32", config["vocab_size"], enable_prefix_caching=True)
    try:
        reference, (long, other) = reference_of(config, tensors), prompts(config["vocab_size"], (400, 90))
        block = engine.llm.llm_engine.vllm_config.cache_config.block_size
        judged("m32 float32, nothing cached", "float32", reference, [long], engine.answers([long], decoded=16))
        # The same again, a part of it with another end, and that beside the whole: the filter's state must be that of the block's end.
        for asked in ([long], [long[:300] + other], [long, long[:300] + other, other]):
            answers = engine.answers(asked, decoded=16)
            judged(f"m32 float32, {engine.cached} cached", "float32", reference, asked, answers)
        print(f"blocks of {block}")
        assert sum(engine.cached) > 0
    finally:
        engine.close()


def test_four_bits(tmp_path: Path) -> None:
    # Of bench/: it writes the rounded values as the source's dtype as well, which is what the reference must be given.
    spec = importlib.util.spec_from_file_location("quantised_load", ROOT / "bench/quantised_load.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    checkpoint(tmp_path / "model", "m32", torch.bfloat16)
    config, tensors = bench.loaded(tmp_path / "model")
    made = bench.plan([spec for spec, _ in tensors.values()], bench.scheme("rtn-w4a16", 32))
    assert sum(".experts." in tensor.name for tensor in made.quantised) == 4 * 8 * 2
    packed = bench.rounded(tensors, made)[0]
    bench.write(tmp_path / "packed", bench.configured(config, made), packed)
    engine = Engine(tmp_path / "packed", "float16", config["vocab_size"])
    try:
        asked = prompts(config["vocab_size"])
        reference = reference_of(config, values_of(bench, packed, made))
        judged("m32 W4A16 mixed", "float16", reference, asked, engine.answers(asked))
        judged("m32 W4A16 alone", "float16", reference, asked, [engine.answers([prompt])[0] for prompt in asked])
    finally:
        engine.close()


def values_of(bench: Any, packed: Any, made: Any) -> dict[str, Any]:
    """What the packed checkpoint says, unrounded: integers times scales in float64, and the rest as it lies."""
    values: dict[str, Any] = {}
    for name, (tensor, data) in packed.items():
        if tensor.dtype == "BF16" and not name.endswith("_scale"):
            values[name] = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(tensor.shape).double()
    for tensor in made.quantised:
        parts = {new.name.rsplit("_", 1)[1]: packed[new.name] for new in bench.becomes(tensor, made.scheme)}
        words = bench.np.frombuffer(parts["packed"][1], dtype="<i4").reshape(parts["packed"][0].shape)
        scales = bench.np.frombuffer(parts["scale"][1], dtype="<u2").reshape(parts["scale"][0].shape)
        factor = bench.np.repeat(bench.scales_as_float(scales, "BF16"), made.scheme.group, axis=1)
        whole = bench.unpacked(words, made.scheme.bits, tensor.shape[1]).astype("f8") * factor.astype("f8")
        values[tensor.name] = torch.from_numpy(whole)
    return values
