"""Physical limits, computed from what a machine says of itself. Bandwidths are bytes per second of one direction.

No product has a figure of its own here: everything follows from rates, widths and encodings of the standards.
"""

from __future__ import annotations

# PCI Express Base Specification, sections on encoding: 8b/10b for 2.5 and 5 GT/s, 128b/130b from 8 to 32 GT/s. From
# 64 GT/s on the bits are not encoded, but travel in FLITs of 256 bytes of which 236 carry TLPs (6 DLP, 8 CRC, 6 FEC).
_ENCODING_8B10B = 8 / 10
_ENCODING_128B130B = 128 / 130
_ENCODING_FLIT = 236 / 256

PCIE_SPEEDS_GTS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Giga-transfers per second of a lane, generation 1 to 7; the index is the register's code less one."""

# What a posted write of up to 256 bytes and more costs beside its payload: header of 4 DW, and below 64 GT/s framing
# and sequence number (4 bytes) and LCRC (4 bytes) as well.
_TLP_OVERHEAD_BYTES = 24
_TLP_OVERHEAD_FLIT_BYTES = 16

_DDR_BUS_BYTES = 8


def pcie_encoding(speed_gts: float, flit: bool = False) -> float:
    """The share of the transferred bits that can carry transaction-layer packets at a speed in GT/s.

    `flit`: the link runs in FLIT mode, which a link of generation 6 may keep at a lower speed too.
    """
    line = _ENCODING_8B10B if speed_gts < 8 else _ENCODING_128B130B if speed_gts < 64 else 1.0
    return line * _ENCODING_FLIT if flit or speed_gts >= 64 else line


def pcie_bandwidth(speed_gts: float, lanes: int, flit: bool = False) -> float:
    """Bytes per second that a link of that speed (GT/s) and width can carry in one direction, headers included."""
    return speed_gts * 1e9 / 8 * lanes * pcie_encoding(speed_gts, flit)


def pcie_payload_bandwidth(speed_gts: float, lanes: int, max_payload_bytes: int, flit: bool = False) -> float:
    """Bytes per second of data that memory writes of the largest payload leave of `pcie_bandwidth`.

    Flow control and acknowledgements take some more, so a copy reaches about 0.95 of this.
    """
    overhead = _TLP_OVERHEAD_FLIT_BYTES if flit or speed_gts >= 64 else _TLP_OVERHEAD_BYTES
    return pcie_bandwidth(speed_gts, lanes, flit) * max_payload_bytes / (max_payload_bytes + overhead)


def pcie_bandwidth_text(speed_gts: float, lanes: int, flit: bool = False) -> str:
    """How `pcie_bandwidth` came about, for a person: `16 GT/s x 16 lanes x 128/130`."""
    if flit or speed_gts >= 64:
        encoding = "236/256" if speed_gts >= 64 else "128/130 x 236/256" if speed_gts >= 8 else "8/10 x 236/256"
    else:
        encoding = "128/130" if speed_gts >= 8 else "8/10"
    return f"{speed_gts:g} GT/s x {lanes} lanes x {encoding} / 8"


def dram_channel_bandwidth(speed_mts: float, data_width_bits: int = 64) -> float:
    """Bytes per second of one memory channel: mega-transfers per second times the data width (8 bytes for DDR3/4/5).

    DDR5 splits a module into two sub-channels of 32 bits; the sum is the same 8 bytes.
    """
    return speed_mts * 1e6 * (data_width_bits / 8 if data_width_bits else _DDR_BUS_BYTES)


def decode_bytes_per_token(
    active_parameters: float, bytes_per_parameter: float, kv_bytes_per_context_token: float = 0, context_tokens: int = 0
) -> float:
    """Bytes that must be read to decode one token of one request: every active weight once, and its KV cache."""
    return active_parameters * bytes_per_parameter + kv_bytes_per_context_token * context_tokens


def decode_tokens_per_second(
    memory_bandwidth: float, weight_bytes: float, kv_bytes_per_request: float = 0, batch: int = 1
) -> float:
    """The most tokens per second that *batch* requests together can decode, were nothing but memory slow.

    A step reads the weights once for the whole batch and every request's own KV cache. `memory_bandwidth` in bytes
    per second; 0 bytes to read is an error of the caller.
    """
    step_bytes = weight_bytes + batch * kv_bytes_per_request
    if step_bytes <= 0:
        raise ValueError("decode_tokens_per_second: expected the bytes that one step reads, found none")
    return batch * memory_bandwidth / step_bytes
