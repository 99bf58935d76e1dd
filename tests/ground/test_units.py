"""Quantities at the door: exact in, exact out."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdev.ground.units import (
    exact,
    format_bandwidth,
    format_bytes,
    format_capacity,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_time,
    picoseconds,
    transmission_ps,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("80 GiB", 80 * 2**30),
        ("8 GB", 8 * 10**9),
        ("8GB", 8 * 10**9),
        (" 1.5 kB ", 1500),
        ("1.5 KB", 1500),
        ("0.5 KiB", 512),
        ("1e3 B", 1000),
        ("2 PiB", 2**51),
        (Decimal("4096.0"), 4096),
        (2**60, 2**60),
    ],
)
def test_bytes(text: object, size: int) -> None:
    assert parse_bytes(text) == size  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("300 GB/s", Fraction(300 * 10**9)),
        ("5.7 GB/s", Fraction(5_700_000_000)),
        ("100 Gbit/s", Fraction(12_500_000_000)),
        ("100 Gbps", Fraction(12_500_000_000)),
        ("1 bit/s", Fraction(1, 8)),
        ("1 GiB/s", Fraction(2**30)),
        (1, Fraction(1)),
        (0.1, Fraction(1, 10)),
    ],
)
def test_bandwidth(text: object, rate: Fraction) -> None:
    assert parse_bandwidth(text) == rate  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ps"),
    [
        (0, 0),
        ("12 us", 12_000_000),
        ("12 µs", 12_000_000),
        ("12 μs", 12_000_000),
        (12e-6, 12_000_000),
        (Decimal("12e-6"), 12_000_000),
        ("0.2 ms", 200_000_000),
        ("1 s", 10**12),
        (0.1, 10**11),
        ("1.5 ps", 2),
        ("0.000001 ps", 1),
    ],
)
def test_times_round_up_to_picoseconds(text: object, ps: int) -> None:
    assert picoseconds(parse_time(text)) == ps  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (parse_bytes, "12", None),
        (parse_bytes, "1.5", "must be a whole number of bytes, got 1.5"),
        (parse_bytes, -1, "must not be negative, got -1"),
        (parse_bytes, 2**60 + 1, r"is larger than 2\^60 bytes"),
        (parse_bytes, "8 gb", 'unknown unit "gb"'),
        (parse_bytes, "8 Gbit", 'unknown unit "Gbit"'),
        (parse_bytes, "eight", 'must be a number or a string like "80 GiB", got "eight"'),
        (parse_bytes, "", "must be a number or a string"),
        (parse_bytes, True, "must be a number, got True"),
        (parse_bytes, None, "must be a number, got None"),
        (parse_bandwidth, 0, "must be > 0, got 0"),
        (parse_bandwidth, "-5 GB/s", "must be > 0, got -5 GB/s"),
        (parse_bandwidth, "5 GB", 'unknown unit "GB"'),
        (parse_bandwidth, "1e300", "out of range"),
        (parse_bandwidth, "1e-50", "out of range"),
        (parse_time, float("nan"), "must be finite, got"),
        (parse_time, float("inf"), "must be finite, got"),
        (parse_time, Decimal("1e99"), "is out of range"),
        (parse_time, -1e-30, "must not be negative"),
        (parse_time, "\u0661 us", "must be a number or a string like"),  # an Arabic digit
        (parse_time, "5 min", 'unknown unit "min"'),
        (parse_time, 5e6, "is larger than 53 days"),
        (parse_time, [], r"must be a number, got \[\]"),
    ],
)
def test_what_is_no_quantity_is_refused(parse: object, value: object, message: str | None) -> None:
    if message is None:
        assert parse(value) == 12  # type: ignore[operator]
        return
    with pytest.raises(ValueError, match=message):
        parse(value)  # type: ignore[operator]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-12, max_value=1e6))
def test_a_float_means_its_shortest_decimal(value: float) -> None:
    assert exact(value) == Fraction(repr(value))


@given(st.integers(0, 2**60), st.fractions(Fraction(1, 10**6), 2**60))
def test_transmission_is_the_exact_quotient_rounded_up(size: int, bandwidth: Fraction) -> None:
    assert transmission_ps(size, bandwidth) == math.ceil(Fraction(size * 10**12) / bandwidth)


def test_formats_for_people() -> None:
    assert format_bytes(1.5 * 2**30) == "1.50 GiB"
    assert format_bytes(12) == "12 B"
    assert [
        format_capacity(size) for size in (80 * 2**30, 80 * 10**9, 15110 * 2**20, 11_370_000_001)
    ] == [
        "80 GiB",
        "80 GB",
        "15,110 MiB",
        "11.37 GB",
    ]
    assert format_seconds(0.01234) == "12.34 ms"
    assert format_seconds(3e-12) == "3 ps"
    assert format_bandwidth(300e9) == "300 GB/s"
    assert format_bandwidth(0.5) == "0.5 B/s"
