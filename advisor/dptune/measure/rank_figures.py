"""The figures of one rank."""

from __future__ import annotations

from dptune.measure.across_ranks import Across, host_of
from dptune.measure.communication.arrivals import ALONE
from dptune.measure.device.matmul import listed
from dptune.measure.platform import identity
from dptune.measure.steps.input_wait import LoaderWait
from dptune.measure.steps.times import durations, median
from dptune.measured import Loss, RankFigures
from dptune.trace.run import Run


def rank_figures(rank: int, run: Run, together: Across, waits: LoaderWait | str, lost: list[Loss]) -> RankFigures:
    """The figures of that rank; one that could not be measured says why under `missing`.

    `waits`: its wait for input, or why there is none; `lost`: what of its trace is left out.
    """
    facts = run.facts.get(rank)
    trace = run.by_rank.get(rank)
    devices = together.devices.get(rank, [])
    used = [device.device for device in devices[:1]]
    device = listed(trace.light.devices, used) if trace and used else None
    name, capability = identity(facts, device)
    clock = together.clocks.get(rank)
    unclocked = "it shares no collective with the first rank, and no known host"
    unheard = "no collective was read on this rank and the first"
    if clock and clock.basis == "reference":
        unheard = "it is the rank that the others are compared with"
    figures = {
        "host": (host_of(run, rank), "the trace does not name the host"),
        "device_name": (name, "the recording does not name the device"),
        "compute_capability": (capability, "the recording has no compute capability of the device"),
        "untraced_median_ns": (
            median(durations(facts.window("untraced") if facts else None)),
            "no untraced step was recorded",
        ),
        "loader_wait_share": (None, waits) if isinstance(waits, str) else (waits.share, ""),
        "clock_ahead_ns": (clock.ahead_ns if clock else None, unclocked),
        "clock_residual_ns": (clock.residual_ns if clock else None, unheard if clock else unclocked),
        "arrival": (together.arrivals.get(rank), ALONE),
    }
    return RankFigures.of(
        figures,
        rank=rank,
        gpu_ranks=together.gpus.ranks.get(rank, []),
        source=trace.source if trace else "",
        partial=trace.light.partial if trace else "",
        events=trace.light.events if trace else 0,
        losses=lost,
        devices=devices,
    )
