"""What the gate hears of a quantised model, and what its bounds make of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.likelihood import NAMES
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.likelihood import measurements as compare
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.likelihood_run import skipped
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_quality import (
    EVERY_NAME,
    measurements,
    named,
    names,
)

from tests.unit.test_likelihood import reference, served


def quantised(bits: int = 4, **changes: Any) -> dict[str, Any]:
    told = {
        "method": f"rtn-w{bits}a16",
        "bits": bits,
        "group": 128,
        "source_weight_bytes": 80_000_000_000,
        "weight_bytes": 22_000_000_000,
        "rounding_error": 1.003,
        "rounding_error_at": "model.layers.0.mlp.experts.0.w1.weight",
    }
    return {**told, **changes}


@pytest.fixture(scope="module")
def rules(checkout: Path) -> dict[str, Any]:
    content = yaml.safe_load((checkout / "group_vars/all/gates.yml").read_text())
    return {name: content["gates_rules"][name] for name in EVERY_NAME}


def test_a_model_that_is_not_quantised_is_judged_as_before() -> None:
    assert names(None) == NAMES
    measured = compare("m", reference(), served(2.23), {}, "next")
    assert named(measured, None) == measured


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_measured_is_what_is_expected_on_record(bits: int) -> None:
    told = quantised(bits)
    measured = named(compare("m", reference(), served(2.23), {}, "next"), told) + measurements("m", told, None, {})
    assert {one["name"] for one in measured} == set(names(told))
    assert f"model_agreement_w{bits}a16" in names(told)
    assert {one["name"] for one in skipped(Path("/models/m/r"), "check mode", told)} == set(names(told))


# Ratio of the perplexities, agreement; the last two lines are SmolLM2-135M-Instruct (docs/model.md).
@pytest.mark.parametrize(
    ("bits", "ratio", "agreement", "verdicts"),
    [
        (4, 1.03, 0.93, ("OK", "OK")),
        (4, 1.08, 0.88, ("WARN", "WARN")),
        (4, 1.0, 0.84, ("OK", "CRITICAL")),
        (4, 0.9, 0.95, ("UNKNOWN", "OK")),
        (8, 1.02, 0.95, ("WARN", "WARN")),
        (8, 1.05, 0.93, ("CRITICAL", "CRITICAL")),
        (8, 1.0052, 0.9763, ("OK", "OK")),
        (4, 1.3977, 0.6422, ("CRITICAL", "CRITICAL")),
    ],
)
def test_bounds_by_format(
    rules: dict[str, Any], bits: int, ratio: float, agreement: float, verdicts: tuple[str, str]
) -> None:
    measured = named(
        compare("m", reference(tokens=1729), served(2.2297 + math.log(ratio), agreement, tokens=1729), {}, "next"),
        quantised(bits),
    )
    found = {one["name"]: judge(one, rules).status for one in measured}
    assert (found[f"model_likelihood_w{bits}a16"], found[f"model_agreement_w{bits}a16"]) == verdicts


def test_the_cause_fits_the_format() -> None:
    measured = compare("m", reference(), served(3.0), {}, "next")
    assert "tensors are missing" in measured[1]["cause"]
    four = named(measured, quantised())
    assert "4 bits cost this model so much (mean -ln p 3.00 against 2.23)" in four[1]["cause"]
    assert "tensors are missing" not in four[2]["cause"]
    equal = named(compare("m", reference(), served(math.log(49152)), {}, "next"), quantised())
    assert "every token is equally likely" in equal[1]["cause"]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [({}, "OK"), ({"rounding_error": 2.0}, "CRITICAL"), ({"rounding_error": float("inf")}, "UNKNOWN")],
)
def test_the_rounding_is_judged(rules: dict[str, Any], change: dict[str, Any], verdict: str) -> None:
    measured = measurements("m", quantised(**change), None, {})
    assert judge(measured[0], rules).status == verdict
    assert "experts.0.w1" in measured[0]["cause"]


def test_awq_has_no_nearest() -> None:
    assert "AWQ" in measurements("m", quantised(rounding_error=None), None, {})[0]["skipped"]


@pytest.mark.parametrize(("weight_bytes", "verdict"), [(22e9, "OK"), (70e9, "WARN"), (81e9, "CRITICAL")])
def test_a_model_that_gains_nothing_is_told(rules: dict[str, Any], weight_bytes: float, verdict: str) -> None:
    fraction = measurements("m", quantised(weight_bytes=int(weight_bytes)), None, {})[1]
    assert judge(fraction, rules).status == verdict


def test_tokens_of_the_cache() -> None:
    said = {"cache_tokens": 250_000, "cache_bytes_per_token": 393_216, "cache_takes_the_rest": True}
    cache = measurements("m", quantised(), ({}, said), {})[2]
    assert cache["value"] == 250_000
    assert cache["conditions"]["gained_tokens"] == 58_000_000_000 // 393_216
    measured = measurements("m", quantised(), ({"cache_tokens": 100_000}, said), {})[2]
    assert measured["conditions"]["gained_tokens"] == 150_000
    assert "the engine's own figure" in measured["conditions"]["gained_by"]
    on_a_processor = measurements("m", quantised(), ({}, {**said, "cache_takes_the_rest": False}), {})[2]
    assert "a size of its own" in on_a_processor["skipped"]
    assert "did not load" in measurements("m", quantised(), None, {})[2]["skipped"]
