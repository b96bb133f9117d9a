"""A served model beside its source, and what the gate makes of it: the damage that a checkpoint hides is told from rounding."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.likelihood import NAMES, measurements

VOCABULARY = 49152
UNIFORM = math.log(VOCABULARY)


def reference(nll: float = 2.2297, tokens: int = 431) -> dict[str, Any]:
    return {
        "token_ids": list(range(tokens)),
        "logprobs": [-nll] * (tokens - 1),
        "top": list(range(1, tokens)),
        "vocab_size": VOCABULARY,
    }


def served(nll: float, agreement: float = 1.0, tokens: int = 431) -> dict[str, Any]:
    same = round(agreement * (tokens - 1))
    top = [number if number <= same else -1 for number in range(1, tokens)]
    return {"token_ids": list(range(tokens)), "logprobs": [-nll] * (tokens - 1), "top": top}


@pytest.fixture(scope="module")
def rules(checkout: Path) -> dict[str, Any]:
    content = yaml.safe_load((checkout / "group_vars/all/gates.yml").read_text())
    return {name: content["gates_rules"][name] for name in NAMES}


def statuses(rules: dict[str, Any], measured: list[dict[str, Any]]) -> dict[str, str]:
    return {measurement["name"]: judge(measurement, rules).status for measurement in measured}


def compare(ours: dict[str, Any], source: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return measurements("m", source or reference(), ours, {"dtype": "bfloat16"}, "next")


def test_the_names_are_those_that_are_judged() -> None:
    assert tuple(measurement["name"] for measurement in compare(served(2.23))) == NAMES


@pytest.mark.parametrize(("nll", "agreement"), [(2.2297, 1.0), (2.2305, 0.984), (2.2286, 0.998)])
def test_rounding_passes(rules: dict[str, Any], nll: float, agreement: float) -> None:
    measured = compare(served(nll, agreement))
    assert set(statuses(rules, measured).values()) == {"OK"}
    assert all(not measurement.get("cause") for measurement in measured)


# Measured on SmolLM2-135M-Instruct in float32 with one thing damaged (docs/model.md).
@pytest.mark.parametrize(
    ("damage", "nll", "agreement"),
    [
        ("weights off by 3 %", 2.3058, 0.851),
        ("first layer without keys", 3.8289, 0.381),
        ("middle layer without attention output", 2.2967, 0.884),
        ("last layer without keys", 2.2508, 0.944),
        ("last layer without attention output", 2.2381, 0.905),
        ("two layers swapped", 4.1148, 0.344),
        ("query rows in llama.cpp's order", 8.2676, 0.009),
        ("embedding zero", 10.8027, 0.0),
        ("embedding shifted by one", 9.0697, 0.074),
        ("final norm lost", 12.4667, 0.049),
    ],
)
def test_damage_fails(rules: dict[str, Any], damage: str, nll: float, agreement: float) -> None:
    assert "CRITICAL" in statuses(rules, compare(served(nll, agreement))).values(), damage


def test_equal_logits_are_named(rules: dict[str, Any]) -> None:
    measured = {measurement["name"]: measurement for measurement in compare(served(UNIFORM, 0.0))}
    assert "every token is equally likely, not so in its source" in measured["model_likelihood"]["cause"]
    assert "tie_word_embeddings" in measured["model_likelihood"]["cause"]
    found = statuses(rules, list(measured.values()))
    assert found["model_likelihood"] == found["model_information"] == found["model_agreement"] == "CRITICAL"


def test_a_source_that_is_nonsense_itself_is_found_out(rules: dict[str, Any]) -> None:
    measured = compare(served(UNIFORM), reference(UNIFORM))
    found = statuses(rules, measured)
    assert found["model_likelihood"] == "OK"
    assert found["model_information"] == "CRITICAL"
    assert "its source too" in measured[2]["cause"]


def test_better_than_its_source_is_another_model(rules: dict[str, Any]) -> None:
    assert statuses(rules, compare(served(2.1)))["model_likelihood"] == "UNKNOWN"


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_probabilities_that_are_none(rules: dict[str, Any], bad: float) -> None:
    ours = served(2.23)
    ours["logprobs"][7] = bad
    found = statuses(rules, compare(ours))
    assert found["model_tokenizer"] == "OK"
    assert {found[name] for name in NAMES[1:]} == {"UNKNOWN"}


def test_another_tokenizer(rules: dict[str, Any]) -> None:
    ours = served(2.23)
    ours["token_ids"][5] = 99
    measured = compare(ours)
    found = statuses(rules, measured)
    assert found["model_tokenizer"] == "CRITICAL"
    assert "at token 5: 99 instead of 5" in measured[0]["cause"]
    assert found["model_agreement"] == "UNKNOWN"


def test_likelihoods_compare_though_the_tokens_are_more() -> None:
    # Twice as many tokens, each with half the information: the text is as likely as before.
    ours = served(2.2297 / 2, tokens=861)
    likelihood = compare(ours)[1]
    assert likelihood["value"] == pytest.approx(likelihood["limit"])
