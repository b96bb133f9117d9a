"""The fused-MoE tuner: which shape a model has, what is tried, what is chosen, and what lies on the disk afterwards."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import moe_tuning_run
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.moe_tune_plan import (
    BATCH_SIZES,
    Config,
    NotTunable,
    Shape,
    candidates,
    file_text,
    key_of,
    shape_of,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.moe_tune_search import (
    Found,
    measurements,
    search,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.moe_tuning_run import Wish, tune
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import Done, run_worker

GPUS = moe_tuning_run._gpus
M32 = Shape(32, 8192, 2048, 2)
YUAN: dict[str, Any] = {
    "architectures": ["YuanForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "use_moe": True,
    "torch_dtype": "bfloat16",
    "moe_config": {"moe_num_experts": 32, "moe_top_k": 2, "ffn_hidden_size": 8192},
}
STOCK = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "SPLIT_K": 1,
    "num_warps": 4,
    "num_stages": 4,
}


@pytest.mark.parametrize(
    ("config", "parallel", "shape"),
    [
        (YUAN, 1, M32),
        (YUAN, 4, Shape(32, 2048, 2048, 2)),
        (
            {
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
                "intermediate_size": 6144,
                "hidden_size": 2048,
            },
            2,
            Shape(128, 384, 2048, 8),
        ),
        (
            {
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "intermediate_size": 14336,
                "hidden_size": 4096,
                "dtype": "float16",
            },
            1,
            Shape(8, 14336, 4096, 2, "float16"),
        ),
        (
            {
                "text_config": {
                    "num_experts": 4,
                    "num_experts_per_tok": 1,
                    "moe_intermediate_size": 64,
                    "hidden_size": 32,
                }
            },
            1,
            Shape(4, 64, 32, 1),
        ),
    ],
    ids=["yuan", "yuan over four", "qwen3_moe", "mixtral", "inside another"],
)
def test_the_shape_is_what_one_process_holds(config: dict[str, Any], parallel: int, shape: Shape) -> None:
    assert shape_of(config, parallel) == shape


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"hidden_size": 8, "intermediate_size": 16}, "no experts"),
        ({**YUAN, "use_moe": False}, "no experts"),
        ({**YUAN, "quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors.*Marlin"),
    ],
)
def test_a_model_without_anything_to_tune_says_why(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotTunable, match=reason):
        shape_of(config, 1)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide the experts' width 8192"):
        shape_of(YUAN, 3)
    with pytest.raises(ValueError, match="not all of"):
        shape_of({"num_experts": 4, "hidden_size": 8}, 1)


@pytest.mark.parametrize("tokens", BATCH_SIZES)
def test_candidates_fit_the_gpu_and_are_few(tokens: int) -> None:
    tried = candidates(M32, tokens)
    assert 10 <= len(tried) <= 100
    assert len({key_of(config) for config in tried}) == len(tried)
    for config in tried:
        rows, columns, depth = (config[f"BLOCK_SIZE_{axis}"] for axis in "MNK")
        assert (rows + columns) * depth * 2 * config["num_stages"] <= 227 * 1024
        assert 2048 % depth == 0


def test_a_smaller_gpu_gets_smaller_tiles() -> None:
    small = candidates(M32, 4096, 99 * 1024)
    assert 0 < len(small) < len(candidates(M32, 4096))


class FakeBench:
    """Times by a formula: BLOCK_SIZE_N 128 with 3 stages is best, `wrong` computes something else, `refused` does not run."""

    def __init__(self, gain: float = 1.3, wrong: Sequence[tuple[int, ...]] = (), refused: bool = False) -> None:
        self.gain, self.wrong, self.refused = gain, set(wrong), refused
        self.measured: list[tuple[int, tuple[int, ...]]] = []
        self.prepared: set[tuple[int, tuple[int, ...]]] = set()
        self.now = 0.0
        self.kept: set[int] = set()

    def clock(self) -> float:
        return self.now

    def prepare(self, wanted: Sequence[tuple[int, Config]], deadline: float) -> None:
        self.prepared |= {(tokens, key_of(config)) for tokens, config in wanted}

    def stock(self, tokens: int) -> Config:
        return dict(STOCK)

    def _time(self, config: Config) -> float:
        if key_of(config) == key_of(STOCK):
            return 1.0
        off = (
            abs(config["BLOCK_SIZE_N"] - 128) / 128
            + abs(config["num_stages"] - 3)
            + config["num_warps"] / 64
            + config["BLOCK_SIZE_K"] / 4096
        )
        return 1.0 / self.gain + off

    def seconds(self, tokens: int, config: Config, repeats: int) -> float | None:
        assert (tokens, key_of(config)) in self.prepared
        self.kept.add(tokens)
        self.now += 0.001
        self.measured.append((tokens, key_of(config)))
        return None if self.refused else self._time(config)

    def duel(self, tokens: int, one: Config, other: Config) -> tuple[list[float], list[float]]:
        return [self._time(one)] * 3, [self._time(other)] * 3

    def difference(self, tokens: int, one: Config, other: Config) -> float:
        return float("nan") if key_of(one) in self.wrong else 1e-3

    def forget(self, tokens: int) -> None:
        self.kept.discard(tokens)


def searched(bench: FakeBench, sizes: Sequence[int] = (1, 32, 128, 4096), budget: float = 1e9) -> list[Found]:
    return search(bench, M32, sizes, deadline=budget, shared_memory_bytes=227 * 1024, tolerance=1e-2, clock=bench.clock)


def test_the_fastest_wins_and_its_gain_is_told() -> None:
    bench = FakeBench(gain=2.0)
    found = searched(bench)
    assert [entry.tokens for entry in found] == [1, 32, 128, 4096]
    best = found[1]
    assert (best.config["BLOCK_SIZE_N"], best.config["num_stages"]) == (128, 3)
    assert best.gain > 1.5
    assert not bench.kept
    told = measurements(M32, found, {"gpu": "x"})
    assert told[1]["scope"] == "E=32,N=8192,K=2048,top2 batch 32"
    assert told[1]["value"] == round(best.gain, 4)


def test_sizes_with_the_same_candidates_share_the_work() -> None:
    bench = FakeBench()
    found = searched(bench, (8, 16, 24, 32, 48, 64, 96))
    counts = {entry.tokens: entry.measured for entry in found}
    assert counts[8] == counts[32] == counts[96] == len(candidates(M32, 32))
    assert all(counts[size] <= 24 for size in (16, 24, 48, 64))


def test_stock_stays_where_nothing_is_better() -> None:
    for bench in (FakeBench(gain=0.5), FakeBench(gain=1.01), FakeBench(refused=True)):
        for entry in searched(bench, (32,)):
            assert entry.config == STOCK
            assert entry.gain == 1.0
            assert entry.note


def test_a_configuration_that_computes_something_else_is_refused() -> None:
    winner = searched(FakeBench(gain=2.0), (32,))[0].config
    entry = searched(FakeBench(gain=2.0, wrong=[key_of(winner)]), (32,))[0]
    assert key_of(entry.config) != key_of(winner)
    everything = FakeBench(gain=2.0, wrong=[key_of(config) for config in candidates(M32, 32)])
    entry = searched(everything, (32,))[0]
    assert entry.config == STOCK
    assert "differs from stock by nan" in entry.note


def test_time_that_runs_out_leaves_stock_and_says_so() -> None:
    found = searched(FakeBench(gain=2.0), (1, 32, 4096), budget=0.04)
    assert any("time budget" in entry.note for entry in found)
    assert all(entry.config for entry in found)
    nothing = searched(FakeBench(gain=2.0), (1, 32), budget=0.0)
    assert all(entry.config == STOCK and "before this batch size" in entry.note for entry in nothing)


def test_the_file_is_what_vllm_reads() -> None:
    text = file_text({32: STOCK, 1: {**STOCK, "BLOCK_SIZE_N": 32}}, "3.6.0")
    assert list(text) == ["triton_version", "1", "32"]
    assert text["1"]["BLOCK_SIZE_N"] == 32
    assert {int(size) for size in text if size.isdigit()} == {1, 32}


RESULT = {
    "file_name": "E=32,N=8192,device_name=NVIDIA_H200.json",
    "found": [
        Found(1, dict(STOCK), dict(STOCK)).as_dict(),
        Found(32, {**STOCK, "num_warps": 8}, dict(STOCK), 1.4, [2.0], [1.0]).as_dict(),
    ],
    "conditions": {"gpu": "NVIDIA H200", "vllm": "0.26.0", "triton": "3.6.0"},
    "seconds": 12.5,
}


@pytest.fixture
def wish(tmp_path: Path) -> Wish:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(YUAN))
    return Wish(sys.executable, tmp_path / "model", 1, [1, 32], 60, tmp_path / "out")


def machine(wish: Wish, monkeypatch: pytest.MonkeyPatch, gpu: str = "NVIDIA H200", version: str = "0.26.0") -> None:
    """A node with this GPU, whose engine holds this vLLM."""
    root = wish.model.parent
    shutil.rmtree(root / "engine", ignore_errors=True)
    (root / f"engine/lib/python3.12/site-packages/vllm-{version}.dist-info").mkdir(parents=True)
    vars(wish)["engine_python"] = str(root / "engine/bin/python")
    (root / "gpus/0000:00:06.0").mkdir(parents=True, exist_ok=True)
    (root / "gpus/0000:00:06.0/information").write_text(f"Model: \t\t {gpu}\nIRQ:   \t\t 16\n")
    monkeypatch.setattr(moe_tuning_run, "_gpus", functools.partial(GPUS, root / "gpus"))


def answering(monkeypatch: pytest.MonkeyPatch, result: dict[str, Any]) -> list[dict[str, Any]]:
    jobs = []

    def run(python: str, module: str, needs: Sequence[str], job: str, **more: Any) -> Done:
        jobs.append({**json.loads(job), "module": module})
        return Done(result, 0)

    monkeypatch.setattr(moe_tuning_run, "run_worker", run)
    return jobs


def test_files_are_kept_and_the_second_run_changes_nothing(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = answering(monkeypatch, RESULT)
    machine(wish, monkeypatch)
    first = tune(wish)
    assert first.changed
    assert jobs[0]["shape"] == M32.as_dict()
    content = json.loads((wish.output / RESULT["file_name"]).read_text())
    assert content["32"]["num_warps"] == 8
    again = tune(wish)
    assert (again.changed, again.recorded, len(jobs)) == (False, True, 1)
    assert again.measurements == first.measurements
    # Other batch sizes, or a file that somebody changed, are measured again.
    content["32"]["num_warps"] = 4
    (wish.output / str(RESULT["file_name"])).write_text(json.dumps(content))
    assert tune(wish).changed
    assert tune(Wish(**{**vars(wish), "batch_sizes": [1, 32, 64]})).changed
    assert len(jobs) == 3


@pytest.mark.parametrize("damage", ["[]", "{", '{"file_name": 3}', '{"file_name": "../../model/config.json"}'])
def test_a_damaged_record_counts_for_nothing(wish: Wish, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    jobs = answering(monkeypatch, RESULT)
    machine(wish, monkeypatch)
    tune(wish)
    for path in wish.output.glob(f"*{moe_tuning_run.METADATA}"):
        path.write_text(damage)
    assert not tune(wish).recorded
    assert len(jobs) == 2


@pytest.mark.parametrize(("gpu", "version"), [("NVIDIA H100", "0.26.0"), ("NVIDIA H200", "0.33.0")])
def test_another_gpu_or_vllm_is_measured_anew(
    wish: Wish, monkeypatch: pytest.MonkeyPatch, gpu: str, version: str
) -> None:
    jobs = answering(monkeypatch, RESULT)
    machine(wish, monkeypatch)
    tune(wish)
    machine(wish, monkeypatch, gpu, version)
    assert tune(wish).changed
    assert len(jobs) == 2


def test_what_is_shipped_is_taken_without_a_measurement(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = answering(monkeypatch, RESULT)
    machine(wish, monkeypatch)
    shutil.copytree(Path(__file__).parents[2] / "data/moe_configs/vllm-0.26.0", wish.output)
    outcome = tune(Wish(**{**vars(wish), "batch_sizes": list(BATCH_SIZES)}))
    assert outcome.recorded
    assert not jobs
    assert {entry["name"] for entry in outcome.measurements} == {"moe_tuning_gain"}
    assert all(entry["value"] >= 1.0 for entry in outcome.measurements)


def test_check_mode_measures_and_writes_nothing(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = answering(monkeypatch, RESULT)
    outcome = tune(wish, check_mode=True)
    assert outcome.changed
    assert "check mode" in outcome.measurements[0]["skipped"]
    assert not jobs
    assert not wish.output.exists()


def test_without_a_gpu_or_experts_it_is_skipped_with_the_reason(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"skipped": "The engine sees no NVIDIA GPU."})
    outcome = tune(wish)
    assert (outcome.changed, outcome.files, outcome.skipped) == (False, [], "The engine sees no NVIDIA GPU.")
    assert not wish.output.exists()
    (wish.model / "config.json").write_text('{"hidden_size": 64}')
    assert "no experts" in tune(wish).skipped


def test_a_python_without_the_engine_is_skipped(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests' own Python, for real: it has neither torch nor vLLM. As this user, who can read it.
    monkeypatch.setattr(moe_tuning_run, "run_worker", functools.partial(run_worker, unprivileged=False))
    outcome = tune(wish)
    assert "lacks what the tuner measures with" in outcome.skipped


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "could not be read"),
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"num_experts": 4}', "not all of"),
    ],
)
def test_a_damaged_model_is_one_sentence(wish: Wish, content: str | None, said: str) -> None:
    path = wish.model / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(CheckpointError, match=said):
        tune(wish)
