"""The longest stretches in which a device ran nothing, and how far the host runs ahead of it."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import GapFigures, LaunchFigures, Measured, Missing, short_name
from dptune.measured.naming import cut
from dptune.present.amounts import Hole, number, percent, shown, times
from dptune.present.lines import Line, heading, labelled, wrapped
from dptune.present.step_classes import NAMES

_AT_MOST = 5
_LEAST_SHARE = 0.001  # of a step: shorter gaps are one sentence


def gaps(report: Report, width: int) -> Iterator[Line]:
    """Each gap with its causes, what lies before and after it, and what the host was in."""
    measured = report.measured
    yield from heading("Longest gaps (traced times)", width)
    try:
        found = measured.gaps
    except Missing as missing:
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    if not found:
        yield from wrapped("None: no device was idle inside a step.", width, "  ")
    step_ns = measured.traced_step_ns if found else 0
    worth = [gap for gap in found[:_AT_MOST] if gap.length_ns >= _LEAST_SHARE * step_ns]
    for gap in worth:
        yield from wrapped(where(gap), width, "  ", "    ")
        for label, words in around(gap):
            yield from labelled(label, words, width, column=9, indent="    ", role="dim")
    if found and not worth:
        longest = f"{number(found[0].length_ns / 1e6)} ms on rank {found[0].rank} in step {found[0].step}"
        words = f"None takes {percent(_LEAST_SHARE)} of a step; the longest lasts {longest}."
        yield from wrapped(words, width, "  ")
    yield from ahead(measured, width)


def ahead(measured: Measured, width: int) -> Iterator[Line]:
    """How far the host runs ahead of the device; nothing where that is not known."""
    launching = measured.known("launching")
    if launching is not None:
        yield from wrapped(_ahead(launching), width, "  ")


def where(gap: GapFigures) -> str:
    """How long it is, of which rank and step, and why."""
    return f"{number(gap.length_ns / 1e6)} ms  rank {gap.rank}, step {gap.step}: {causes(gap)}"


def causes(gap: GapFigures) -> str:
    """Why the device was idle, the longest cause first: `host 64.7 %, launching 35.3 %`."""
    ordered = sorted(gap.causes_ns, key=lambda cause: -gap.causes_ns[cause])
    shares = [(NAMES[f"{cause}_idle_ns"], gap.causes_ns[cause] / gap.length_ns) for cause in ordered]
    return ", ".join(f"{name} {percent(share)}" for name, share in shares)


def around(gap: GapFigures) -> list[tuple[str, str]]:
    """What ran before and after it, and what the host was in, each with its label."""
    before, after, meanwhile = (gap.known(name) for name in ("before", "after", "meanwhile"))
    first = "" if before else " (the first operation)"
    end = ("before", f"{short_name(after)}{first}") if after else ("at", "the end of the step")
    found = [
        ("after", short_name(before)) if before else None,
        end,
        ("host in", cut(meanwhile)) if meanwhile else None,
    ]
    return [pair for pair in found if pair is not None]


def _ahead(launching: LaunchFigures) -> str:
    latency = shown(lambda: launching.latency_median_ns, lambda ns: f"{number(ns / 1e3)} us")
    took = "" if isinstance(latency, Hole) else f"; their launch latency is {latency} (median)"
    median = launching.queue_median
    ahead = f"{times(median)} operation{'' if median == 1 else 's'}"
    return (
        f"The host runs {ahead} ahead of the device (median); "
        f"{percent(launching.empty_share)} of operations were launched while the device was idle{took}."
    )
