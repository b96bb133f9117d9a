"""Physical limits against figures of the standards."""

from __future__ import annotations

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.limits import (
    decode_bytes_per_token,
    decode_tokens_per_second,
    dram_channel_bandwidth,
    pcie_bandwidth,
    pcie_bandwidth_text,
    pcie_payload_bandwidth,
)


@pytest.mark.parametrize(
    ("speed", "lanes", "expected"),
    [
        (2.5, 1, 250e6),
        (5.0, 16, 8.0e9),
        (8.0, 16, 15.754e9),
        (16.0, 4, 7.877e9),
        (16.0, 16, 31.508e9),
        (32.0, 16, 63.015e9),
        # Generation 6: 128 GB/s raw, of which FLITs leave 236 of 256 bytes.
        (64.0, 16, 118.0e9),
        (128.0, 16, 236.0e9),
    ],
)
def test_pcie_bandwidth(speed, lanes, expected):
    assert pcie_bandwidth(speed, lanes) == pytest.approx(expected, rel=1e-4)


def test_flit_mode_at_a_lower_speed_pays_both():
    assert pcie_bandwidth(32.0, 16, flit=True) == pytest.approx(63.015e9 * 236 / 256, rel=1e-4)


def test_payload_is_less_than_the_link_and_grows_with_the_payload_size():
    small, large = pcie_payload_bandwidth(32.0, 16, 128), pcie_payload_bandwidth(32.0, 16, 512)
    assert small < large < pcie_bandwidth(32.0, 16)
    # 256 bytes of data in 280 on the wire: the 57.6 GB/s that copies to a Gen5 x16 GPU are quoted with.
    assert pcie_payload_bandwidth(32.0, 16, 256) == pytest.approx(57.6e9, rel=1e-3)
    assert pcie_payload_bandwidth(64.0, 16, 256) == pytest.approx(118e9 * 256 / 272, rel=1e-6)


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        (5.0, "5 GT/s x 16 lanes x 8/10 / 8"),
        (16.0, "16 GT/s x 16 lanes x 128/130 / 8"),
        (64.0, "64 GT/s x 16 lanes x 236/256 / 8"),
    ],
)
def test_the_source_says_how_it_came_about(speed, text):
    assert pcie_bandwidth_text(speed, 16) == text


def test_dram():
    assert 8 * dram_channel_bandwidth(3200) == pytest.approx(204.8e9)
    assert dram_channel_bandwidth(4800, 64) == pytest.approx(38.4e9)
    assert dram_channel_bandwidth(6400, 1024) == pytest.approx(819.2e9)


def test_decoding_is_bound_by_the_bytes_of_a_token():
    weights = decode_bytes_per_token(102e9, 2)
    assert decode_tokens_per_second(614.4e9, weights) == pytest.approx(3.01, rel=1e-2)
    # A batch reads the weights once; each request reads its own KV cache.
    assert decode_tokens_per_second(600e9, 20e9, 1e9, batch=10) == pytest.approx(10 * 600 / 30)
    assert decode_bytes_per_token(40e9, 1, 100_000, 2000) == pytest.approx(40.2e9)


def test_nothing_to_read_is_an_error():
    with pytest.raises(ValueError, match="expected the bytes"):
        decode_tokens_per_second(1e9, 0)
