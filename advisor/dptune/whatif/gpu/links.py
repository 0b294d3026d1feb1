"""The link of a program's collectives: measured, derived, or from too few sizes for a fit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from dptune.measured import Measured, Missing
from dptune.whatif.cpu.wire import Link
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.program import Program
from dptune.whatif.link import link_figures, link_of, link_range

ASSUMED = "the run's own collectives, with an assumed latency"
# Latency of an all-reduce between GPUs where the run's sizes are too few or too alike for a fit, and its range: between
# NVLink within a node and sockets. Assumed; it is at most half of what the quickest of the run's own takes.
_ALPHA_NS, _OTHER_ALPHAS_NS = 40e3, (10e3, 200e3)
_LARGEST_PART = 0.5
# All-reduces that take as long as a collective of the same message: a ring all-reduce is a reduce-scatter, then an
# all-gather.
_ALL_REDUCES = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5}


def linked(program: Program, measured: Measured) -> Program:
    """The program with its link, others that the data allow, and their source; as it is where no link is known."""
    try:
        figures = link_figures(measured)
    except Missing:
        return _assumed(program)
    return program.over(link_of(figures, "nccl"), tuple(link_range(figures)))


def relinked(program: Program) -> list[Program]:
    """The program with each of the other links that the data allow."""
    return [program.over(link) for link in program.other_links]


def _assumed(program: Program) -> Program:
    """With the rate at which messages were sent if the latency was as assumed."""
    exchanging = [program.edges[place] for place in program.places((Kind.EXCHANGE,))]
    took = {edge.message: edge.lag_ns for edges in exchanging for edge in edges if edge.kind == Kind.EXCHANGE}
    times = []
    for number, ns in took.items():
        message = program.messages[number]
        if ns > 0 and message.kind in _ALL_REDUCES:
            times.append((message.message_bytes, ns / _ALL_REDUCES[message.kind]))
    if not times:
        return program
    link, *others = (_through(times, alpha_ns) for alpha_ns in (_ALPHA_NS, *_OTHER_ALPHAS_NS))
    return program.over(link, tuple(others), ASSUMED)


def _through(times: Sequence[tuple[int, float]], alpha_ns: float) -> Link:
    """The link of this latency on which messages of these bytes take as long as they did, in the median."""
    alpha_ns = min(alpha_ns, _LARGEST_PART * min(ns for _, ns in times))
    return Link(alpha_ns, median(message_bytes / (ns - alpha_ns) for message_bytes, ns in times))
