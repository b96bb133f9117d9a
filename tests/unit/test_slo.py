"""A service level that arithmetic refutes is refused, with the arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import slo
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gate_rules import validate_rules
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge

SOUND = {
    "prompt_tokens": 512,
    "completion_tokens": 128,
    "decode_tokens_per_second": 42,
    "request_rate_per_second": 4,
    "time_to_first_token_p50_seconds": 0.3,
    "time_to_first_token_p99_seconds": 0.9,
    "end_to_end_latency_p50_seconds": 3.5,
    "end_to_end_latency_p90_seconds": 4.0,
    "end_to_end_latency_p99_seconds": 5.0,
    "minimum_throughput_tokens_per_second": 400,
    "maximum_error_fraction": 0.001,
}


def test_a_sound_slo_makes_sound_rules() -> None:
    assert slo.validate_slo(SOUND) == []
    assert validate_rules(slo.rules_of_slo(SOUND)) == []


def test_the_shipped_slo_and_rules_are_sound(checkout: Path) -> None:
    shipped = yaml.safe_load((checkout / "group_vars/all/gates.yml").read_text())
    assert slo.validate_slo(shipped["gates_slo"]) == []
    assert validate_rules(shipped["gates_rules"]) == []


def test_128_tokens_at_42_tokens_a_second_within_860_ms() -> None:
    problems = slo.validate_slo(
        {
            "prompt_tokens": 128,
            "completion_tokens": 128,
            "decode_tokens_per_second": 42,
            "end_to_end_latency_p99_seconds": 0.86,
        }
    )
    assert problems == [
        "gates_slo contradicts itself: 128 tokens at 42 tokens/s take 3.024 s, so no request can end within "
        "end_to_end_latency_p99_seconds 0.86 (860 ms); promise fewer tokens, a faster decode or a longer latency"
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"end_to_end_latency_p50_seconds": 4.5},
            "p50_seconds 4.5 (4.5 s) lies above end_to_end_latency_p90_seconds 4 (4 s)",
        ),
        ({"time_to_first_token_p50_seconds": 1.0}, "lies above time_to_first_token_p99_seconds 0.9 (900 ms)"),
        ({"time_to_first_token_p99_seconds": 2.5}, "5.524 s in all are more than end_to_end_latency_p99_seconds 5"),
        ({"minimum_throughput_tokens_per_second": 600}, "ask for 512 tokens/s"),
        ({"warn_at": 1.1}, "warn_at is a fraction"),
        ({"warn_at": 0}, "warn_at is a fraction"),
        ({"maximum_error_fraction": 5}, "maximum_error_fraction is a fraction"),
        ({"completion_tokens": 0}, "completion_tokens must be a whole number of 1 or more"),
        ({"completion_tokens": 12.5}, "completion_tokens must be a whole number"),
        ({"decode_tokens_per_second": "fast"}, "decode_tokens_per_second must be a number, 'fast' was found"),
        ({"decode_tokens_per_second": 0}, "decode_tokens_per_second must be above zero"),
        ({"end_to_end_latency_p99_seconds": float("nan")}, "must be a number"),
        ({"end_to_end_p99": 1}, "end_to_end_p99 is unknown"),
    ],
)
def test_what_is_wrong_is_named(change: dict, words: str) -> None:
    problems = slo.validate_slo({**SOUND, **change})
    assert problems
    assert words in problems[0]


def test_what_is_missing_is_named() -> None:
    assert slo.validate_slo({}) == ["gates_slo: prompt_tokens is missing", "gates_slo: completion_tokens is missing"]
    assert slo.validate_slo([1]) == ["gates_slo: a mapping was expected, list was found"]


@pytest.mark.parametrize(
    ("name", "value", "unit", "status"),
    [
        ("end_to_end_latency_p99", 4.4, "s", "OK"),
        ("end_to_end_latency_p99", 4.6, "s", "WARN"),
        ("end_to_end_latency_p99", 5.1, "s", "CRITICAL"),
        ("end_to_end_latency_p99", 5100, "ms", "UNKNOWN"),
        ("time_to_first_token_p90", 99, "s", "OK"),  # no bound was promised: recorded
        ("output_tokens_per_second", 399, "tokens/s", "CRITICAL"),
        ("achieved_request_rate", 3.5, "requests/s", "CRITICAL"),
        ("achieved_request_rate", 3.7, "requests/s", "OK"),
        ("request_error_fraction", 0.0, "fraction", "OK"),
        ("request_error_fraction", 0.01, "fraction", "CRITICAL"),
    ],
)
def test_rules_of_the_slo(name: str, value: float, unit: str, status: str) -> None:
    check = judge({"name": name, "scope": "endpoint", "value": value, "unit": unit}, slo.rules_of_slo(SOUND))
    assert check.status == status
