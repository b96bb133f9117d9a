"""What the gate judges of a quantised model beside its source: quality lost, memory gained. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .likelihood import NAMES, NOT_ITS_SOURCE

# Rounding to 4 bits costs more than to 8, and both more than bfloat16: other names, other bounds. By name and bits.
_RENAMED = {
    ("model_likelihood", 4): "model_likelihood_w4a16",
    ("model_likelihood", 8): "model_likelihood_w8a16",
    ("model_agreement", 4): "model_agreement_w4a16",
    ("model_agreement", 8): "model_agreement_w8a16",
}
_MORE = ("model_rounding_error", "model_weight_fraction", "model_cache_tokens")
EVERY_NAME = (*NAMES, *_RENAMED.values(), *_MORE)
# What a manifest says of how its model was quantised, None for one that is not.
Quantised = Optional[Mapping[str, Any]]


def names(quantised: Quantised) -> tuple[str, ...]:
    """Names of all measurements of a model."""
    if not quantised:
        return NAMES
    return (*(_RENAMED.get((name, quantised["bits"]), name) for name in NAMES), *_MORE)


def named(measured: Sequence[Mapping[str, Any]], quantised: Quantised) -> list[dict[str, Any]]:
    """Measurements of likelihood.measurements under the names whose rules fit the format, with a cause that does."""
    bits = quantised["bits"] if quantised else 0
    return [
        {**_caused(measurement, bits), "name": _RENAMED[measurement["name"], bits]}
        if (measurement["name"], bits) in _RENAMED
        else _caused(measurement, bits)
        for measurement in measured
    ]


def _caused(measurement: Mapping[str, Any], bits: int) -> dict[str, Any]:
    """What would be damage in full precision may be what rounding costs, since every weight is known to be the nearest or AWQ's."""
    cause = measurement.get("cause", "")
    if not bits or not cause.startswith(NOT_ITS_SOURCE):
        return dict(measurement)
    told = measurement["conditions"]
    return {
        **measurement,
        "cause": f"{bits} bits cost this model so much (mean -ln p {told['served_nll']:.2f} against {told['source_nll']:.2f}), "
        "or the engine's kernel computes otherwise than it should: take AWQ, a smaller group, or W8A16",
    }


def measurements(
    scope: str,
    quantised: Mapping[str, Any],
    said: tuple[Mapping[str, Any], Mapping[str, Any]] | None,
    conditions: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Rounding, size and cache. `said`: the source's reference and what the engine said of itself, None where it did not load."""
    told = {**conditions, **{key: quantised[key] for key in ("method", "bits", "group")}}
    return [
        _rounding(scope, quantised, told),
        {
            "name": "model_weight_fraction",
            "scope": scope,
            "value": quantised["weight_bytes"] / quantised["source_weight_bytes"],
            "unit": "fraction",
            "statistic": "bytes of the weights over those of the source's",
            "conditions": {
                **told,
                "weight_bytes": quantised["weight_bytes"],
                "source_weight_bytes": quantised["source_weight_bytes"],
            },
        },
        _cache(scope, quantised, said, told),
    ]


def _rounding(scope: str, quantised: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    common = {"name": "model_rounding_error", "scope": scope, "conditions": told}
    error = quantised.get("rounding_error")
    if error is None:
        return {
            **common,
            "skipped": "AWQ changes the weights before it rounds them, so that the source's do not say what is nearest",
        }
    where = quantised.get("rounding_error_at", "")
    return {
        **common,
        "value": error,
        "unit": "fraction",
        "statistic": "of half a step, the worst of all quantised weights",
        "cause": f"the integers or scales of {where} are not those of its weights",
    }


def _cache(
    scope: str,
    quantised: Mapping[str, Any],
    said: tuple[Mapping[str, Any], Mapping[str, Any]] | None,
    told: Mapping[str, Any],
) -> dict[str, Any]:
    common = {"name": "model_cache_tokens", "scope": scope}
    if said is None:
        return {**common, "skipped": "the engine did not load the model", "conditions": told}
    source, served = said
    if not served.get("cache_takes_the_rest"):
        reason = "this engine's cache has a size of its own, whatever the weights leave"
        return {**common, "skipped": reason, "conditions": told}
    per_token = served["cache_bytes_per_token"]
    if "cache_tokens" in source:
        gained, gained_by = served["cache_tokens"] - source["cache_tokens"], "the engine's own figure for the source"
    else:
        gained = (quantised["source_weight_bytes"] - quantised["weight_bytes"]) // per_token
        gained_by = "bytes of weights saved over bytes of a token in the cache"
    return {
        **common,
        "value": served["cache_tokens"],
        "unit": "count",
        "statistic": "tokens that the key/value cache holds, as the engine says at its start",
        "conditions": {
            **told,
            "cache_bytes_per_token": per_token,
            "gained_tokens": gained,
            "gained_by": gained_by,
        },
    }
