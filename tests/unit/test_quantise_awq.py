"""What is asked of AWQ before hours of calibration begin: enough text, in a form that is known."""

from __future__ import annotations

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_awq import samples, text_of


def test_pieces_are_spread_over_the_text() -> None:
    chosen = samples(list(range(100)), 5, 4)
    assert [piece[0] for piece in chosen] == [0, 20, 40, 60, 80]
    assert all(len(piece) == 4 for piece in chosen)


def test_fewer_pieces_than_wished_are_taken_whole() -> None:
    assert len(samples(list(range(40)), 64, 4)) == 10


def test_a_short_text_is_refused_with_what_is_needed() -> None:
    with pytest.raises(
        CheckpointError, match=r"has 31 tokens: expected at least 32 \(8 pieces of 4\), better 256; .*calibration_file"
    ):
        samples(list(range(31)), 64, 4)


def test_json_lines_and_plain_text() -> None:
    assert text_of('{"text": "a"}\n\n{"text": "b"}\n', "c.jsonl") == "a\n\nb"
    assert text_of('{"text": "a"}', "c.txt") == '{"text": "a"}'


@pytest.mark.parametrize("line", ["no json", '{"content": "a"}', "[1]"])
def test_a_line_without_text_is_named(line: str) -> None:
    with pytest.raises(CheckpointError, match=r"c\.jsonl, line 2: expected a JSON object with the field text"):
        text_of('{"text": "a"}\n' + line, "c.jsonl")
