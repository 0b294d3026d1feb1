"""Numbers as people say them, and what stands where a number could not be measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from dptune.measured import Measured, Missing
from dptune.measured.figure import decimals

T = TypeVar("T")

_ROUNDING = 1e-9  # by which sums of shares miss 1


class Hole(NamedTuple):
    """What stands in the place of a figure that could not be measured, or not be had in another way."""

    reason: str
    lack: str = "not measured"

    def __str__(self) -> str:
        return f"{self.lack}: {self.reason}"


def shown(read: Callable[[], T], write: Callable[[T], str] = str) -> str | Hole:
    """A figure written by `write`, or the hole with its reason."""
    try:
        return write(read())
    except Missing as missing:
        return Hole(missing.reason)


def number(value: float) -> str:
    """Three digits where they matter: 0.42, 4.20, 42.0, 420.1, 4,201."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.01:
        return "<0.01"
    return decimals(value)


def milliseconds(value: float) -> str:
    """A time in ms with its unit."""
    return f"{number(value)} ms"


def ns_as_ms(value: float) -> str:
    """Nanoseconds written in ms, without the unit (for a column that states it)."""
    return number(value / 1e6)


def percent(share: float) -> str:
    """A share between 0 and 1, in percent."""
    if share == 0:
        return "0 %"
    if abs(share) < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1 - _ROUNDING:
        return ">99.9 %"
    return "100 %" if abs(share - 1) <= _ROUNDING else f"{share * 100:.1f} %"


def data(size: int) -> str:
    """Bytes in the largest unit of 1024 that leaves a number of at least one."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    if units[0] == "bytes":
        return "1 byte" if size == 1 else f"{size} bytes"
    return f"{number(value)} {units[0]}"


def flops(value: float, unit: str = "FLOP") -> str:
    """Floating-point operations, or with "FLOP/s" a rate of them: `11.2 TFLOP`, `268.6 TFLOP/s`."""
    prefix, scale = next(((p, s) for p, s in (("P", 1e15), ("T", 1e12), ("G", 1e9)) if value >= s), ("M", 1e6))
    return f"{number(value / scale)} {prefix}{unit}"


def element_type(dtype: str) -> str:
    """An element type as vendors write it: `bf16`, `TF32`."""
    return dtype.replace("tf32", "TF32")


def times(value: float) -> str:
    """How often, as a whole number where it is one."""
    return f"{value:,.0f}" if value == round(value) else number(value)


def several(count: int, thing: str, things: str = "") -> str:
    """A count with its noun."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def between(low: str, high: str, unit: str) -> str:
    """An interval in words: 'up to 3 ms', '2 to 3 ms', '3 ms'."""
    if low == high:
        return f"{low} {unit}"
    return f"up to {high} {unit}" if low == "0" else f"{low} to {high} {unit}"


def step_milliseconds(measured: Measured, share: float) -> str | Hole:
    """A share of the step in ms, or why the step time is not known."""
    return shown(lambda: measured.milliseconds(share), milliseconds)


def extrapolated(measured: Measured) -> str:
    """`extrapolated from 1 of 300 ranks`, for a figure of all ranks; empty where all were read."""
    ranks, read = measured.known("world_size") or 0, len(measured.ranks)
    return f"extrapolated from {read:,} of {ranks:,} ranks" if ranks > read else ""


def in_unit(value: float | str, unit: str) -> str:
    """A figure in its unit: shares ("of a step") in percent, bytes in the unit that suits them."""
    if isinstance(value, float) and unit.startswith("of "):
        return f"{percent(value)} {unit}"
    if isinstance(value, int) and unit.startswith("bytes"):
        return data(value) + unit.removeprefix("bytes")
    counted = times if unit.startswith("per ") else number
    text = counted(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
    return f"{text} {unit}".rstrip()
