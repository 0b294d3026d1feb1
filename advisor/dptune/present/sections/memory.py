"""How full the memory of each device is, and what a step asks of it."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import MemoryFigures, Missing
from dptune.present.amounts import Hole, data, percent, several, shown, times
from dptune.present.lines import Line, heading, labelled, wrapped
from dptune.present.table import Cell, Column, table
from dptune.trace.vendors import DEFAULT, OF_KIND

_AT_MOST = 16
_COLUMNS = (
    Column("rank"),
    Column("device", right=False, least=6),
    Column("tensors"),
    Column("reserved"),
    Column("of all"),
    Column("unused"),
    Column("allocated"),
    Column("growth"),
    Column("mallocs"),
)
_WORDS = (
    "tensors: peak memory in tensors; reserved: peak memory held by torch's allocator, {basis}; of all: reserved as a "
    "share of the device; unused: part of reserved that no tensor used at the peak; allocated: sum of a step's "
    "allocations; growth: change of allocated memory from the end of one step to the end of the next, median (traced "
    "steps{window}); mallocs: {calls} calls per step, which can make the device wait."
)
_BASIS = {"run": "over the whole run", "steps": "in the traced steps"}
_WINDOW = {"detailed": ", detailed window", "light": ""}


def memory(report: Report, width: int) -> Iterator[Line]:
    """One row per rank and device."""
    yield from heading("Memory", width)
    try:
        found = report.measured.memory
    except Missing as missing:
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    calls = OF_KIND.get(report.measured.known("device_kind") or "", DEFAULT).allocating
    if all(figures.known("peak_allocated_bytes") is None for figures in found):
        peak = f"{Hole(found[0].missing['peak_allocated_bytes'])}."
        yield from labelled("peak memory", peak, width, column=13, indent="  ")
        for sentence in (_asked(found), _mallocs(found, calls)):
            yield from wrapped(sentence, width, "  ")
        return
    yield from table(_COLUMNS, [_row(figures) for figures in found[:_AT_MOST]], width)
    if len(found) > _AT_MOST:
        yield from wrapped(
            f"and {several(len(found) - _AT_MOST, 'more row')}: see --format json", width, "  ", role="dim"
        )
    window = next((figures.known("window") for figures in found if figures.known("window")), None)
    bases = list(dict.fromkeys(_BASIS[figures.basis] for figures in found))
    words = _WORDS.format(basis=" or ".join(bases), window=_WINDOW.get(window or "", ""), calls=calls)
    yield from wrapped(words, width, "  ", role="dim")


def _asked(found: list[MemoryFigures]) -> str:
    """What a step asks for, of the first rank whose allocations were recorded."""
    first = next((figures for figures in found if figures.known("window") is not None), None)
    if first is None:
        return ""
    return (
        f"Each step allocates {data(first.allocated_bytes_per_step)} in {times(first.allocations_per_step)} allocations"
        f" (rank {first.rank}{_WINDOW[first.window]}).{_growth(first)}"
    )


def _growth(figures: MemoryFigures) -> str:
    """How much more is allocated from the end of one step to the end of the next, and whether that is a leak."""
    growth, least = figures.known("growth_bytes_per_step"), figures.known("least_growth_bytes")
    if growth is None:
        return ""
    if not growth:
        return " Allocated memory does not grow from step to step (median)."
    if growth < 0:
        return f" Allocated memory shrinks by {data(-growth)} per step (median)."
    grows = f" Allocated memory grows by {data(growth)} per step (median)"
    if least is None:
        return f"{grows}; fewer than 4 consecutive steps were recorded, so this is no evidence of a leak."
    return f"{grows}, in every step." if least > 0 else f"{grows}, but not in every step."


def _mallocs(found: list[MemoryFigures], calls: str) -> str:
    """The one figure that needs no record of allocations, of the rank that has most of it."""
    known = [figures for figures in found if figures.known("malloc_share") is not None]
    if not known:
        return ""
    most = max(known, key=lambda one: one.malloc_share)
    if not most.malloc_calls_per_step:
        return f"The steps of rank {most.rank} call neither {calls.replace(' and ', ' nor ')}."
    return (
        f"{calls} calls: {times(most.malloc_calls_per_step)} per step, "
        f"{percent(most.malloc_share)} of the step (rank {most.rank})."
    )


def _row(figures: MemoryFigures) -> list[Cell]:
    return [
        str(figures.rank),
        figures.device,
        shown(lambda: figures.peak_allocated_bytes, data),
        shown(lambda: figures.peak_reserved_bytes, data),
        shown(lambda: figures.peak_share, percent),
        shown(lambda: figures.fragmentation, percent),
        shown(lambda: figures.allocated_bytes_per_step, data),
        shown(lambda: figures.growth_bytes_per_step, data),
        shown(lambda: figures.malloc_calls_per_step, times),
    ]
