"""A histogram of durations with a bounded relative error, mergeable and cheap to fill: Gil Tene's HDR histogram.

Values are whole microseconds. Buckets hold 2,048 equally wide steps up to 2,048 us and 1,024 for each doubling beyond, which
keeps three significant digits (a value is off by at most 1/2,048). The text form is HdrHistogram's V2, compressed, in base64: every
reader of that format (Java, Go, C, Python) opens it. Source of the layout: HdrHistogram's AbstractHistogram, `encodeIntoByteBuffer`.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

PERCENTILE_METHOD = (
    "linear interpolation between order statistics (Hyndman and Fan type 7, as numpy and vLLM use), each taken from an"
    " HDR histogram of three significant digits in microseconds"
)
_DIGITS = 3
_HALF_BITS = 10  # of 2,048 steps, the lower half belongs to the bucket below
_STEPS = 2 << _HALF_BITS
_MOST = 24 * 3600 * 1_000_000
"""A day, in microseconds. What takes longer is counted as a day."""
_COOKIE = 0x1C849303 | 0x10
_COMPRESSED_COOKIE = 0x1C849304 | 0x10
_HEAD = struct.Struct(">iiiiqqd")


class Histogram:
    """Counts of durations. Seconds go in and come out."""

    def __init__(self) -> None:
        """Start empty."""
        self._counts: Counter[int] = Counter()
        self._sum = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration. What is below zero, as clocks may make it, counts as zero."""
        self._sum += seconds
        self._counts[_index(round(seconds * 1e6))] += 1

    def record_all(self, seconds: Iterable[float]) -> None:
        """Count many durations."""
        values = list(seconds)
        self._sum += sum(values)
        self._counts.update([_index(round(value * 1e6)) for value in values])

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self._counts.values())

    @property
    def mean(self) -> float:
        """Mean in seconds, exact but after `decode`, where it is that of the buckets; 0 when empty."""
        return self._sum / self.count if self._counts else 0.0

    @property
    def maximum(self) -> float:
        """The longest duration in seconds, to three digits; 0 when empty."""
        return _seconds(max(self._counts)) if self._counts else 0.0

    def percentile(self, percent: float) -> float:
        """Return a percentile in seconds, see `PERCENTILE_METHOD`.

        :raises ValueError: when nothing was counted, or for a percentage outside 0 to 100.
        """
        return self.percentiles([percent])[0]

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Return several percentiles in seconds, in one pass.

        :raises ValueError: when nothing was counted, or for a percentage outside 0 to 100.
        """
        if not self._counts:
            raise ValueError("a percentile needs at least one sample")
        if any(not 0 <= percent <= 100 for percent in percents):
            raise ValueError(f"a percentile is between 0 and 100, not {list(percents)}")
        last = self.count - 1
        positions = [last * percent / 100 for percent in percents]
        wanted = [int(position) for position in positions]
        found = self._at(sorted({*wanted, *(min(rank + 1, last) for rank in wanted)}))
        return [
            found[rank] + (found[min(rank + 1, last)] - found[rank]) * (position - rank)
            for position, rank in zip(positions, wanted)
        ]

    def spread(self, most: int) -> list[float]:
        """Return at most `most` evenly spaced order statistics in seconds, extremes included, for a plot."""
        count = self.count
        if count <= 1:
            return [self.maximum] * count
        kept = min(count, most)
        ranks = [round(index * (count - 1) / (kept - 1)) for index in range(kept)]
        found = self._at(ranks)
        return [found[rank] for rank in ranks]

    def _at(self, ranks: Sequence[int]) -> dict[int, float]:
        """Return the value at each of some ascending ranks, counted from 0."""
        found: dict[int, float] = {}
        buckets = iter(sorted(self._counts.items()))
        seen, seconds = 0, 0.0
        for rank in ranks:
            while seen <= rank:
                index, count = next(buckets)
                seen += count
                seconds = _seconds(index)
            found[rank] = seconds
        return found

    def add(self, other: Histogram) -> None:
        """Count all that another histogram has counted."""
        self._counts.update(other._counts)
        self._sum += other._sum

    def encode(self) -> str:
        """Return the histogram as text: HdrHistogram V2, compressed, base64."""
        payload = bytearray()
        before = -1
        for index, count in sorted(self._counts.items()):
            if index > before + 1:
                _write_number(payload, before + 1 - index)  # so many empty buckets, as a negative number
            _write_number(payload, count)
            before = index
        head = _HEAD.pack(_COOKIE, len(payload), 0, _DIGITS, 1, _MOST, 1.0)
        packed = zlib.compress(head + payload)
        return base64.b64encode(struct.pack(">ii", _COMPRESSED_COOKIE, len(packed)) + packed).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Histogram:
        """Return the histogram that a text stands for.

        :raises ValueError: when it is not HdrHistogram V2 of three digits that starts at 1.
        """
        try:
            raw = base64.b64decode(text, validate=True)
            cookie, length = struct.unpack_from(">ii", raw)
            plain = zlib.decompress(raw[8 : 8 + length])
            inner, size, shift, digits, lowest, _, ratio = _HEAD.unpack_from(plain)
        except (binascii.Error, struct.error, zlib.error) as error:
            raise ValueError(f"a histogram in HdrHistogram's V2 form was expected: {error}") from error
        found = (cookie, inner, shift, digits, lowest, ratio)
        if found != (_COMPRESSED_COOKIE, _COOKIE, 0, _DIGITS, 1, 1.0):
            raise ValueError(f"a histogram V2 of {_DIGITS} digits from 1 was expected, {found} was found")
        result = cls()
        result._fill(plain[_HEAD.size : _HEAD.size + size])
        return result

    def _fill(self, payload: bytes) -> None:
        place, index = 0, 0
        while place < len(payload):
            number, place = _read_number(payload, place)
            if number < 0:
                index -= number
            else:
                if number:
                    self._counts[index] = number
                    self._sum += number * _seconds(index)
                index += 1


def _index(value: int) -> int:
    if value < _STEPS:
        return value if value > 0 else 0
    value = min(value, _MOST)
    shift = value.bit_length() - _HALF_BITS - 1
    return (shift << _HALF_BITS) + (value >> shift)


def _seconds(index: int) -> float:
    """Return the middle of a bucket in seconds."""
    if index < _STEPS:
        return index / 1e6
    shift = (index >> _HALF_BITS) - 1
    low = (index - (shift << _HALF_BITS)) << shift
    return (low + ((1 << shift) - 1) / 2) / 1e6


def _write_number(out: bytearray, number: int) -> None:
    """Append a number in ZigZag LEB128 of at most 9 bytes, whose ninth holds 8 bits."""
    rest = (number << 1) ^ (number >> 63)
    for _ in range(8):
        if rest < 0x80:
            out.append(rest)
            return
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest & 0xFF)


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for part in range(9):
        if place >= len(data):
            raise ValueError("a histogram in HdrHistogram's V2 form was expected, it is cut off")
        byte = data[place]
        place += 1
        if part == 8:
            value |= byte << 56
        else:
            value |= (byte & 0x7F) << (7 * part)
            if byte < 0x80:
                break
    return (value >> 1) ^ -(value & 1), place
