"""Which cause a low memory bandwidth is given, by what the run and the DIMMs tell."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.memory_causes import probable_cause

UNEVEN = {"sockets": [{"socket": 1, "channel_bytes_smallest": 8 << 30, "channel_bytes_largest": 16 << 30}]}


@pytest.mark.parametrize(
    ("conditions", "dimm", "expected"),
    [
        ({"threads": 8, "cpu_quota": 2.0}, None, "a quota leaves 2 processors to 8 threads; else look at the BIOS"),
        ({"threads": 8, "load_average_before": 3.25}, None, "other programs were at work (load average 3.25)"),
        ({"notes": ["some threads could not be pinned to their processors: x"]}, None, "threads could not be pinned"),
        ({"non_temporal_stores": False}, None, "plain stores"),
        ({}, UNEVEN, "the channels of socket 1 hold unequal memory"),
        ({}, None, "look at the BIOS"),
    ],
)
def test_what_is_known_of_the_run_is_named(
    conditions: dict[str, Any], dimm: dict[str, Any] | None, expected: str
) -> None:
    assert expected in probable_cause(conditions, dimm)


def test_without_a_sign_of_anything_nothing_is_blamed() -> None:
    calm = {"threads": 8, "cpu_quota": 8.0, "load_average_before": 0.1, "non_temporal_stores": True}
    assert probable_cause(calm, {}).startswith("look at the BIOS")
