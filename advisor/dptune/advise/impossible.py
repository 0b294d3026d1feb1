"""Figures outside what hardware can do: other processes caused them, or the trace is wrong. They support no advice.

Each bound leaves a wide margin around what known hardware does, so that nothing plausible is refused.

- An elementwise optimizer reads and writes a few values for each parameter. Memory slower than 0.25 GB/s is in no
  machine that trains (DDR3-800, of 2007, moves 6.4 GB/s per channel; swapping to a disk is slower, and is no
  optimizer's fault), and calling its operators tensor by tensor, traced, took 0.15 ms of CPU time per tensor here
  (AdamW without foreach, 50 tensors). Above the sum of 2 ms per tensor and the bytes at that rate something else held
  it up.
- No collective moves more bytes per link than 4 TB/s on a GPU (NVLink 5 gives 0.9 TB/s in each direction, and in-switch
  reduction at most doubles the figure) or 1 TB/s through the memory of a host (12 channels of DDR5-6400 give 0.6 TB/s).
- No copy between host and device exceeds 1 TB/s (NVLink-C2C gives 0.45 TB/s), and none on one device 20 TB/s (HBM3e
  gives 8 TB/s).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advise.limits import milliseconds
from dptune.finding import Finding
from dptune.measured import Measured, digits
from dptune.runfile.facts import Facts

ELEMENTWISE = frozenset(
    ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)
VALUES = 7  # Adam reads parameter, gradient and two moments, and writes three of them
VALUE_BYTES = 8
SLOWEST_GB_PER_S = 0.25
TENSOR_NS = 2_000_000
FASTEST_LINK_GB_PER_S = {"cpu": 1_000.0}
FASTEST_GPU_LINK_GB_PER_S = 4_000.0
FASTEST_COPY_GB_PER_S = {"h2d": 1_000.0, "d2h": 1_000.0, "p2p": 4_000.0, "d2d": 20_000.0}

OPTIMIZER, COLLECTIVES, COPIES = "optimizer-implausible", "collectives-implausible", "copies-implausible"


def findings(measured: Measured, facts: Sequence[Facts]) -> Iterator[Finding]:
    """A finding for each figure beyond its bound."""
    yield from _optimizer(measured, facts)
    yield from _collectives(measured)
    yield from _copies(measured)


def longest_optimizer_ns(parameters: int, tensors: int) -> float:
    """Longer than this no step of an elementwise optimizer takes on a CPU that it has to itself."""
    return tensors * TENSOR_NS + parameters * VALUE_BYTES * VALUES / SLOWEST_GB_PER_S


def _optimizer(measured: Measured, facts: Sequence[Facts]) -> Iterator[Finding]:
    phases = {phase.phase: phase for phase in measured.known("phases") or []}
    spent_ns = phases["optimizer"].known("host_ns") if "optimizer" in phases else None
    steps = sum(len(device.steps) for rank in measured.ranks for device in rank.devices)
    if measured.known("device_kind") != "cpu" or spent_ns is None or not steps:
        return
    optimizers = [rank.optimizers for rank in facts]
    if (
        not optimizers
        or not all(optimizers)
        or any(optimizer_facts.name not in ELEMENTWISE for optimizer in optimizers for optimizer_facts in optimizer)
    ):
        return
    if any(rank.fsdp for rank in facts):
        return  # each operator on a sharded tensor goes through Python
    each_ns = spent_ns / steps
    largest_optimizers = max(optimizers, key=lambda some: sum(optimizer_facts.parameters for optimizer_facts in some))
    parameters, tensors = (
        sum(getattr(optimizer_facts, name) for optimizer_facts in largest_optimizers)
        for name in ("parameters", "parameter_tensors")
    )
    most_ns = longest_optimizer_ns(parameters, tensors)
    if not parameters or each_ns <= most_ns:
        return
    text = (
        f"the optimizer took {milliseconds(each_ns)} per traced step to update {digits(parameters / 1e6)} million "
        f"parameters, which takes less than {milliseconds(most_ns)} even with {SLOWEST_GB_PER_S} GB/s of memory "
        "bandwidth: something else held it up, for example other processes or swapping"
    )
    yield Finding(code=OPTIMIZER, level="unjudgeable", text=text)


def _collectives(measured: Measured) -> Iterator[Finding]:
    most = FASTEST_LINK_GB_PER_S.get(measured.known("device_kind") or "", FASTEST_GPU_LINK_GB_PER_S)
    rows = [figures for figures in measured.known("collectives") or [] if figures.known("busbw_gb_per_s") is not None]
    fastest = max(rows, key=lambda row: row.busbw_gb_per_s, default=None)
    if fastest is not None and fastest.busbw_gb_per_s > most:
        text = (
            f"{fastest.kind} of {fastest.message_bytes:,} bytes shows {fastest.busbw_gb_per_s:,.0f} GB/s, more than "
            f"any link carries ({most:,.0f} GB/s): its sizes or times are wrong in the trace"
        )
        yield Finding(code=COLLECTIVES, level="partial", text=text)


def _copies(measured: Measured) -> Iterator[Finding]:
    rows = [figures for figures in measured.known("copies") or [] if figures.known("large_gb_per_s") is not None]
    for row in rows:
        most = FASTEST_COPY_GB_PER_S.get(row.direction)
        if most is not None and row.large_gb_per_s > most:
            text = (
                f"{row.direction} copies show {row.large_gb_per_s:,.0f} GB/s, more than any hardware gives "
                f"({most:,.0f} GB/s): their sizes or times are wrong in the trace"
            )
            yield Finding(code=COPIES, level="partial", text=text)
            return
