"""Times as a trace writes them, to whole nanoseconds.

Kineto writes microseconds: an integer since the epoch, or a decimal offset to `baseTimeNanoseconds`, or a string. Read
as float64, an offset of four million seconds has lost its nanoseconds already, so the digits are read as text.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

INT64_MAX = 2**63 - 1
LIMIT_NS = 2**62  # the difference of any two times then fits int64 too; the epoch in nanoseconds is 2**60.6


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
            exact = Decimal(text.decode("ascii")) * 1000
            value = int(exact.to_integral_value(ROUND_HALF_EVEN)) if exact.adjusted() < 30 else LIMIT_NS + 1
        except (ArithmeticError, ValueError):  # of decimal, of int and of decoding
            return None
    return value if -LIMIT_NS <= value <= LIMIT_NS else None
