"""Times as a trace writes them, to whole nanoseconds.

Kineto writes microseconds: an integer since the epoch, or a decimal offset to `baseTimeNanoseconds`, or a string. Read
as float64, an offset of four million seconds has lost its nanoseconds already, so the digits are read as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

LIMIT_NS = 2**62  # the difference of any two times then fits int64 too; the epoch in nanoseconds is 2**60.6
_DIGITS = 16  # more digits of whole microseconds, and 1000 times the number may not fit 64 bits
_COMMA, _POINT, _ZERO = b",.0"
_EXACT = Context(prec=10_000)  # no digit is rounded away before the nanosecond is


def nanoseconds(text: bytes) -> int | None:
    """Whole nanoseconds of a JSON number or string of microseconds; half a nanosecond goes to the even one.

    None where the text is no finite number (absent, null, NaN) or lies beyond LIMIT_NS.
    """
    text = text.strip(b'" \t\r\n')
    whole, _, fraction = text.partition(b".")
    digits = whole.removeprefix(b"-")
    if len(fraction) <= 3 and len(digits) <= 19 and digits.isdigit() and (not fraction or fraction.isdigit()):
        value = int(digits) * 1000 + int((fraction + b"000")[:3])
        if len(digits) < len(whole):
            value = -value
    else:
        try:
            digits_only = text.replace(b"_", b"?").decode("ascii")  # Python allows 1_000
            exact = _EXACT.multiply(Decimal(digits_only), Decimal(1000))
            value = int(exact.to_integral_value(ROUND_HALF_EVEN)) if exact.adjusted() < 30 else LIMIT_NS + 1
        except (ArithmeticError, ValueError):  # of decimal, of int and of decoding
            return None
    return value if -LIMIT_NS <= value <= LIMIT_NS else None


def all_nanoseconds(texts: Sequence[Raw]) -> NDArray[np.int64] | None:
    """`nanoseconds` of many JSON numbers, int64, shape (len(texts),); None where one of them needs it.

    Numbers of one length with the point at one place, as all times of a trace are, are read column by column.
    """
    count = len(texts)
    if not count:
        return np.zeros(0, dtype=np.int64)
    joined = np.frombuffer(b",".join([*texts, b""]), dtype=np.uint8)
    width, rest = divmod(len(joined), count)
    if not rest:
        grid = joined.reshape(count, width)
        if (grid[:, -1] == _COMMA).all():
            return _numbers(grid[:, :-1])
    commas = np.flatnonzero(joined == _COMMA)
    if len(commas) != count:
        return None
    starts = np.concatenate(([0], commas[:-1] + 1))
    lengths = commas - starts
    found = np.empty(count, dtype=np.int64)
    for length in np.unique(lengths).tolist():
        chosen = lengths == length
        numbers = _numbers(joined[starts[chosen][:, None] + np.arange(length)])
        if numbers is None:
            return None
        found[chosen] = numbers
    return found


def _numbers(grid: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """Numbers of one length, a row each: digits, and a point with one to three decimals at one place or none."""
    width = grid.shape[1]
    points = np.flatnonzero(grid[0] == _POINT).tolist() if width else []
    decimals = width - 1 - points[0] if points else 0
    columns = [at for at in range(width) if at not in points]
    if len(points) > 1 or decimals > 3 or not 0 < len(columns) - decimals <= _DIGITS or (points and not decimals):
        return None
    if points and (grid[:, points[0]] != _POINT).any():
        return None
    digits = np.ascontiguousarray(grid.T)[columns] - np.uint8(_ZERO)  # what is no digit wraps around to above 9
    if (digits > 9).any():
        return None
    value = np.zeros(len(grid), dtype=np.int64)
    for column in digits:
        value *= 10
        value += column
    value *= 10 ** (3 - decimals)
    return None if (value.view(np.uint64) > LIMIT_NS).any() else value


def short_nanoseconds(microseconds: Sequence[float]) -> NDArray[np.int64] | None:
    """Durations that were decoded as float64 to whole nanoseconds, int64; None where rounding cannot be sure.

    The product with 1000 is off by at most half a unit in the last place of either factor; where it lies farther than
    that from the middle between two nanoseconds, both round to the same one.
    """
    us = np.fromiter(microseconds, dtype=np.float64, count=len(microseconds))
    with np.errstate(over="ignore"):
        ns = us * 1000.0
    if not (np.abs(ns) <= LIMIT_NS).all():
        return None
    whole = np.rint(ns)
    doubt = np.spacing(np.abs(us)) * 500.0 + np.spacing(np.abs(ns))
    if (np.abs(np.abs(ns - whole) - 0.5) <= doubt).any() or (doubt >= 0.5).any():
        return None
    return whole.astype(np.int64)
