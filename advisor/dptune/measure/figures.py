"""A run -> every figure that a rule may read."""

from __future__ import annotations

from dptune.measure import (
    accounts,
    accumulation,
    arrivals,
    collectives,
    copies,
    feeding,
    gaps,
    launching,
    matmul,
    platform,
    steptime,
)
from dptune.measure.across import Across, across, host_of
from dptune.measure.views import RankView, view
from dptune.measured import Measured, RankFigures
from dptune.runfile.facts import Facts
from dptune.trace.run import RankTrace, Run


def measure(run: Run) -> Measured:
    """All figures of a run; one that could not be measured says why under `missing`."""
    facts = list(run.facts.values())
    views = [_view(rank, run.facts.get(rank.rank)) for rank in run.ranks]
    stepped = [own for own in views if not own.no_steps]
    together = across(run, views)
    waits = {rank: feeding.waits(run.facts.get(rank), _of(views, rank)) for rank in _ranks(run)}
    account = accounts.total([device for rank in together.devices.values() for device in rank])
    no_steps = next((own.no_steps for own in views if own.no_steps), "no trace was recorded")
    alone = arrivals.NEVER if together.arrivals else arrivals.ALONE
    samples, no_samples = accumulation.samples_per_step(facts, run.world_size)
    backend, no_backend = platform.backend(facts, views)
    device_kind, no_device = platform.device_kind(facts, views)
    figures = {
        "world_size": (run.world_size, "neither the recording nor the traces say how many ranks the run had"),
        "backend": (backend, no_backend),
        "device_kind": (device_kind, no_device),
        "samples_per_step": (samples, no_samples),
        "account": (account, no_steps),
        "collectives": (
            collectives.collectives(together.calls, together.exchanges, stepped) if stepped else None,
            no_steps,
        ),
        "straggler": (arrivals.straggler(together.arrivals, account), no_steps if account is None else alone),
        "gaps": (gaps.gaps(together.spent) if stepped else None, no_steps),
        "launching": (
            launching.launching((own, device) for own, device, _ in together.spent),
            "no call that launched an operation was recorded: it computes on a CPU, or the trace lacks them",
        ),
        "copies": (copies.copies(stepped) if stepped else None, no_steps),
    }
    return Measured(
        **{name: value for name, (value, _) in figures.items()},
        missing={name: why for name, (value, why) in figures.items() if value is None},
        step=steptime.step_time(facts, views),
        ranks=[_rank(rank, run, together, waits[rank]) for rank in _ranks(run)],
        input=feeding.input_figures(list(waits.values()), run.facts.values()),
        accumulation=accumulation.accumulation(facts),
        matmul=matmul.matmul(views, next((own.device for own in facts if own.device), None)),
    )


def _ranks(run: Run) -> list[int]:
    return sorted({rank.rank for rank in run.ranks} | set(run.facts))


def _of(views: list[RankView], rank: int) -> RankView | None:
    return next((own for own in views if own.rank == rank), None)


def _view(rank: RankTrace, facts: Facts | None) -> RankView:
    return view(rank.rank, rank.lean, facts.window("lean") if facts else None)


def _rank(rank: int, run: Run, together: Across, waits: tuple[float, float, bool] | str) -> RankFigures:
    facts = run.facts.get(rank)
    trace = next((one for one in run.ranks if one.rank == rank), None)
    devices = together.devices.get(rank, [])
    listed = trace.lean.devices if trace else ()
    index = int(devices[0].device.split(":")[1]) if devices and ":" in devices[0].device else None
    own = next((device.name for device in listed if device.index == index), "")
    name = (facts.device.name if facts and facts.device else None) or own
    clock = together.clocks.get(rank)
    unclocked = "it shares no collective with the first rank, and no host that is known"
    figures = {
        "host": (host_of(run, rank), "the recording does not name the host"),
        "device_name": (name or None, "the recording does not name the device"),
        "unprofiled_median_ns": (
            steptime.median(steptime.durations(facts.window("unprofiled") if facts else None)),
            "no unprofiled step was recorded",
        ),
        "loader_wait_share": (None, waits) if isinstance(waits, str) else (waits[0], ""),
        "clock_ahead_ns": (clock.ahead_ns if clock else None, unclocked),
        "clock_residual_ns": (
            clock.residual_ns if clock else None,
            "no collective was read on this rank and the first" if clock else unclocked,
        ),
        "arrival": (together.arrivals.get(rank), arrivals.ALONE),
    }
    return RankFigures(
        rank=rank,
        **{figure: value for figure, (value, _) in figures.items()},
        missing={figure: why for figure, (value, why) in figures.items() if value is None},
        source=trace.source if trace else "",
        partial=trace.lean.partial if trace else "",
        events=trace.lean.events if trace else 0,
        devices=devices,
    )
