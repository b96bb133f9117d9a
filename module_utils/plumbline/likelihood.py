"""Compare a served model with its source on a known text: would it answer as it should?

A checkpoint can load without a word and answer nonsense (a tied embedding dropped, rows in another order, weights of another model).
Nothing but its likelihood tells: mean log-probability of each token of a text given the tokens before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# So near to ln(size of the vocabulary), the model finds every token equally likely.
_UNIFORM_TOLERANCE = 0.02
NOT_ITS_SOURCE = "the model loads but is not its source"
NAMES = ("model_tokenizer", "model_likelihood", "model_information", "model_agreement")


def measurements(
    scope: str,
    reference: Mapping[str, Any],
    served: Mapping[str, Any],
    conditions: Mapping[str, Any],
    next_command: str,
) -> list[dict[str, Any]]:
    """What the gate judges, see NAMES.

    The likelihood is the geometric mean of the probabilities of the text's tokens, exp(mean log-probability), and its limit is the
    source's. Both are taken per token of the source, so that they compare even where the tokenizers differ. The information needs no
    source, so that one which is nonsense itself is found out: the part of a uniform guess's uncertainty, ln(vocabulary), that the model
    takes away. It is near 0 for equal or random logits and above 0.5 for a language model on plain text in its language.
    """
    tokens_agree = list(reference["token_ids"]) == list(served["token_ids"])
    count = len(reference["logprobs"])
    source_nll = -math.fsum(reference["logprobs"]) / count
    told = {
        **conditions,
        "tokens": count + 1,
        "vocabulary": reference["vocab_size"],
        "source_nll": round(source_nll, 5),
    }
    common = {"scope": scope, "next_command": next_command}
    tokenizer = {
        "name": "model_tokenizer",
        "value": tokens_agree,
        "expected": True,
        "conditions": {**told, "served_tokens": len(served["token_ids"])},
        "cause": "" if tokens_agree else _first_difference(reference["token_ids"], served["token_ids"]),
        **common,
    }
    if not served["logprobs"] or not all(math.isfinite(value) for value in served["logprobs"]):
        reason = "the engine gave probabilities that are not finite: a weight is damaged, or the dtype cannot hold the activations"
        broken = [{"name": name, "error": reason, "conditions": told, **common} for name in NAMES[1:]]
        return [tokenizer, *broken]
    nll = -math.fsum(served["logprobs"]) / count
    told["served_nll"] = round(nll, 5)
    likelihood = {
        "name": "model_likelihood",
        "value": math.exp(-nll),
        "unit": "fraction",
        "statistic": f"geometric mean over {count} tokens",
        "limit": math.exp(-source_nll),
        "limit_source": f"the source of the model in {reference.get('computed_in', 'transformers, float32')}",
        "conditions": told,
        "cause": _cause(nll, source_nll, int(reference["vocab_size"])),
        **common,
    }
    information = {
        "name": "model_information",
        "value": 1 - nll / math.log(reference["vocab_size"]),
        "unit": "fraction",
        "statistic": "1 - mean(-ln p) / ln(vocabulary)",
        "conditions": told,
        "cause": _cause(nll, source_nll, int(reference["vocab_size"])),
        **common,
    }
    agreement: dict[str, Any] = {"name": "model_agreement", "conditions": told, **common}
    if tokens_agree:
        same = sum(1 for ours, theirs in zip(served["top"], reference["top"]) if ours == theirs)
        agreement.update(
            {
                "value": same / count,
                "unit": "fraction",
                "statistic": f"fraction of {count} positions with the same most likely token",
            }
        )
    else:
        agreement["error"] = "the tokenizers differ, so that positions cannot be compared"
    return [tokenizer, likelihood, information, agreement]


def _cause(nll: float, source_nll: float, vocabulary: int) -> str:
    uniform = math.log(vocabulary)
    if abs(nll - uniform) < _UNIFORM_TOLERANCE * uniform:
        whose = "its source too" if abs(source_nll - uniform) < _UNIFORM_TOLERANCE * uniform else "not so in its source"
        return (
            f"every token is equally likely, {whose} (mean -ln p {nll:.2f}, ln {vocabulary} is {uniform:.2f}): the embedding or the output "
            "matrix is missing or zero; look at tie_word_embeddings and model.embed_tokens.weight"
        )
    if abs(nll - source_nll) < 0.01 * source_nll:
        return ""
    return (
        f"{NOT_ITS_SOURCE} (mean -ln p {nll:.2f} against {source_nll:.2f}): "
        "tensors are missing, damaged or in another order"
    )


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
    for position, (one, other) in enumerate(zip(ours, theirs)):
        if one != other:
            return f"the converted tokenizer differs from the source's at token {position}: {other} instead of {one}"
    return f"the converted tokenizer gives {len(theirs)} tokens, the source's {len(ours)}"
