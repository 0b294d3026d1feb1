"""What the device runs: how many kernels, of what kind, and those with the most time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import KernelFigures, KernelTime, Measured, Missing
from dptune.present.amounts import Hole, number, percent, shown, times
from dptune.present.lines import Line, heading, labelled, wrapped
from dptune.present.table import Cell, Column, table

# What every second name begins with: it would take the room of what distinguishes them.
_SPACES = re.compile(r"^void |\bat::native::|\(anonymous namespace\)::")
_LEAST = 20  # characters of a name that are shown on a page too narrow for all of it


def kernels(report: Report, width: int) -> Iterator[Line]:
    """The kernels of the steps; of a run on CPUs the operators."""
    measured = report.measured
    try:
        found = measured.kernels
    except Missing as missing:
        yield from heading("Kernels", width)
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    title = "Kernels" if found.counted == "kernels" else "CPU operators by self time"
    yield from heading(f"{title}{of_recording(measured)} (traced times)", width)
    for label, text in _summary(measured, found):
        yield from labelled(label, text, width, column=18, indent="  ")
    yield from table(columns(measured, found), [row(kernel) for kernel in found.top], width)
    yield from wrapped(words(measured, found), width, "  ", role="dim")


def of_recording(measured: Measured) -> str:
    """What a title adds where figures are not of steps."""
    return " in the whole recording" if measured.tables_of == "recording" else ""


def columns(measured: Measured, found: KernelFigures) -> tuple[Column, ...]:
    """Headings of the cells of `row`."""
    return (
        Column(found.counted.removesuffix("s"), right=False, least=_LEAST),
        Column("kind", right=False),
        Column("calls" if measured.tables_of == "recording" else "per step"),
        Column("median us"),
        Column("share"),
    )


def words(measured: Measured, found: KernelFigures) -> str:
    """What the columns mean."""
    if measured.tables_of == "recording":
        nested = "" if found.counted == "kernels" else " us and share exclude nested operators."
        return f"Calls: of one rank; share: of the recording.{nested}"
    if found.counted == "kernels":
        return (
            "Per step: calls of one rank; share: of the step. Overlapping kernels are counted once; compute takes "
            "precedence over communication."
        )
    return "Per step: calls of one rank; us and share (of the step) exclude nested operators."


def _summary(measured: Measured, found: KernelFigures) -> Iterator[tuple[str, str]]:
    short = shown(lambda: found.short_share, lambda share: f"; {percent(share)} of them are shorter than 10 us")
    median = number(found.median_ns / 1e3)
    whole = measured.tables_of == "recording"
    of = "of the recording" if whole else "of the step"
    count = times(found.per_step) if whole else f"{times(found.per_step)} per step"
    yield (
        "Calls" if whole else found.counted.capitalize(),
        f"{count}, median {median} us{short if isinstance(short, str) else ''}",
    )
    kinds = found.known("kinds_ns")
    if kinds is None:
        return
    most = sorted(kinds.items(), key=lambda item: -item[1])
    waits = measured.known("world_size") != 1
    note = {"communication": " (waiting included)"} if waits else {}
    shares = (f"{kind} {percent(time_ns / found.total_ns)}{note.get(kind, '')}" for kind, time_ns in most)
    yield "Time by kind", ", ".join(shares)
    yield "Tensor cores", str(shown(lambda: measured.matmul.tensor_core_share, lambda s: f"{percent(s)} {of}"))
    unclear = "of kernel time is in matrix kernels whose names do not show their precision"
    yield "Unclassified", str(shown(lambda: measured.matmul.unclassified_share, lambda s: f"{percent(s)} {unclear}"))
    yield "Launch-bound", str(shown(lambda: found.launch_bound_share, lambda share: f"{percent(share)} {of}"))
    queue = shown(
        lambda: measured.launching.queue_median,
        lambda ahead: f"{times(ahead)} operation{'' if ahead == 1 else 's'} ahead of the device (median)",
    )
    yield "Host", str(queue)


def row(kernel: KernelTime) -> list[Cell]:
    """Cells of one kernel or operator."""
    return [
        _SPACES.sub("", kernel.name),
        shown(lambda: kernel.kind),
        times(kernel.calls_per_step),
        shown(lambda: kernel.median_ns, lambda ns: number(ns / 1e3)),
        percent(kernel.step_share),
    ]
