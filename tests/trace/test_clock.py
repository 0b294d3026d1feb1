from decimal import ROUND_HALF_EVEN, Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.trace.kineto.clock import LIMIT_NS, all_nanoseconds, nanoseconds


@given(st.decimals(min_value=-(10**15), max_value=10**15, allow_nan=False, places=9))
def test_any_decimal_is_read_to_the_nanosecond(microseconds: Decimal):
    expected = int((microseconds * 1000).to_integral_value(ROUND_HALF_EVEN))
    assert nanoseconds(f"{microseconds:f}".encode()) == expected
    assert nanoseconds(f'"{microseconds:f}"'.encode()) == expected


@given(st.integers(min_value=0, max_value=LIMIT_NS))
def test_every_nanosecond_survives(time_ns: int):
    assert nanoseconds(b"%d.%03d" % (time_ns // 1000, time_ns % 1000)) == time_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"4364669458343.908", 4364669458343908),  # float64 is off by 29 ps here, and by 64 ns at 1.7e15
        (b"1790857026000000.123", 1790857026000000123),
        (b"1.5e3", 1_500_000),
        (b"-0.5", -500),
        (b"0.0005", 0),  # half a nanosecond, to the even one
        (b"0.0015", 2),
        (b" 7 ", 7000),
        (b'"12.25"', 12250),
    ],
)
def test_forms_seen_in_traces(text: bytes, expected: int):
    assert nanoseconds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"NaN",
        b"-inf",
        b'""',
        b"1.2.3",
        b"1e400",
        b"1e9999999",
        b"9223372036854775807",
        b"\xff",
        b"{}",
        b"9" * 5000,
    ],
)
def test_what_is_no_time_is_none(text: bytes):
    assert nanoseconds(text) is None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([b"1.5", b"20.25", b"7"], [1500, 20250, 7000]),
        ([b"1.5", b'"1,5"'], None),
        ([b"1", b"[1,2]", b"33"], None),
        ([b".5", b".6"], None),
    ],
)
def test_many_numbers_at_once_or_none(texts: list[bytes], expected: list[int] | None):
    found = all_nanoseconds([msgspec.Raw(text) for text in texts])
    assert (None if found is None else found.tolist()) == expected
