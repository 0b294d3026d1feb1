"""The ranks side by side: their collectives matched, their clocks compared, and with that the accounts of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.communication.arrivals import Computing, arrivals
from dptune.measure.communication.calls import Collectives
from dptune.measure.communication.calls import calls as collective_calls
from dptune.measure.communication.clocks import Clock, matched
from dptune.measure.communication.collectives import heard
from dptune.measure.communication.lag import Track, comparable, lateness
from dptune.measure.communication.matching import MatchedCollective, RankCalls, match
from dptune.measure.communication.mesh_groups import in_mesh
from dptune.measure.communication.one_run import not_of_one_run
from dptune.measure.communication.waiting import splits
from dptune.measure.device.accounts import device_figures, device_timeline
from dptune.measure.device.phases import OPTIMIZER, DeviceTimeline, Phased, bounds, phased
from dptune.measure.device.timeline import Split, Timeline
from dptune.measure.intervals import Ints
from dptune.measure.shared_gpus import SharedGpus, shared_gpus
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.synchronous import uneven_clocks
from dptune.measure.views import DeviceView, RankView
from dptune.measured import ArrivalFigures, DeviceFigures, Loss
from dptune.trace.kernels import Work
from dptune.trace.run import Run


@dataclass(frozen=True, eq=False)
class MatchedCalls:
    """The collectives of all ranks, matched, and with that their clocks; dictionaries are by rank.

    `calls` are the collectives in steps, `ran` those of each device of each rank, outside the steps too.
    """

    calls: list[RankCalls]
    ran: Collectives
    collectives: list[MatchedCollective]
    clocks: dict[int, Clock]


@dataclass(frozen=True, eq=False)
class Across(MatchedCalls):
    """What else takes all ranks to know.

    `uneven`: clocks and collectives that are not of one synchronous job. `sharing`: the ranks on the GPU of each rank
    that shares it.
    """

    spent: list[tuple[RankView, DeviceView, Timeline]]
    devices: dict[int, list[DeviceFigures]]
    arrivals: dict[int, ArrivalFigures]
    compared: list[MatchedCollective]
    tracks: dict[tuple[int, str], Track]
    phased: Phased | str
    uneven: list[tuple[int, Loss]]
    gpus: SharedGpus


def matched_calls(run: Run, views: Sequence[RankView]) -> MatchedCalls:
    """Match the collectives of all ranks."""
    ran = {
        (view.rank, device.operations.device): in_mesh(
            view, device, collective_calls(view, device), run.facts.get(view.rank)
        )
        for view in views
        for device in view.devices
    }
    calls = [
        each
        for rank_view in views
        if not rank_view.no_steps
        for each in heard(rank_view, ran, run.by_rank.get(rank_view.rank), run.facts.get(rank_view.rank))
    ]
    hosts = {rank_view.rank: host_of(run, rank_view.rank) for rank_view in views}
    return MatchedCalls(calls, ran, *matched(calls, run.world_size, hosts))


def device_timelines(views: Iterable[RankView], collectives: Sequence[MatchedCollective]) -> Iterator[DeviceTimeline]:
    """What each device of each rank did when, rank by rank; nothing of a rank whose losses are fatal."""
    split = splits(collectives)
    for rank_view in views:
        for device in () if rank_view.losses_fatal else rank_view.devices:  # of what is lost, no share is true
            waited = split.get((rank_view.rank, device.operations.device), Split()).since(rank_view.base_ns)
            yield rank_view, device, device_timeline(rank_view, device, waited)


def across(run: Run, views: list[RankView], accounted: list[RankView] | None = None) -> Across:
    """Match the collectives of all ranks, then account for every device.

    `accounted` are the ranks with the steps that the accounts are of, where these are fewer.
    """
    accounted = views if accounted is None else accounted
    between = matched_calls(run, views)
    calls, collectives, found = between.calls, between.collectives, between.clocks
    tracks: dict[tuple[int, str], Track] = {}
    timelines: list[DeviceTimeline] = []
    devices: dict[int, list[DeviceFigures]] = {}
    for rank_view, device, spent in device_timelines(accounted, collectives):
        timelines.append((rank_view, device, spent))
        tracks[rank_view.rank, device.operations.device] = Track(rank_view.base_ns, spent)
        devices.setdefault(rank_view.rank, []).append(device_figures(device, spent))
    compared = comparable(collectives, found)
    late = lateness(compared, found, tracks)
    windowed = [each for each in timelines if each[0].whole and each[1].windows]
    phases = phased(windowed)
    computing = {
        rank_view.rank: _computing(rank_view, windowed, phases)
        for rank_view in accounted
        if rank_view.whole and rank_view.windows
    }
    return Across(
        calls,
        between.ran,
        collectives,
        found,
        timelines,
        devices,
        arrivals(compared, late, computing, {rank_view.rank for rank_view in accounted if not rank_view.whole}),
        compared,
        tracks,
        phases,
        [*not_of_one_run(calls, run.world_size), *uneven_clocks(match(calls, run.world_size, found)).items()],
        shared_gpus(run.facts, views, _hosts(run), _cards(run)),
    )


def _hosts(run: Run) -> dict[int, str | None]:
    """The host of each rank; where neither facts nor trace has it, the only host of run.json."""
    listed = run.record.hosts if run.record is not None else []
    only = listed[0] if len(listed) == 1 else None
    return {rank: host_of(run, rank) or only for rank in run.by_rank.keys() | run.facts}


def _cards(run: Run) -> dict[str, int]:
    """How many GPUs the recording has of each host."""
    return dict(Counter(card.host for card in run.record.cards)) if run.record is not None else {}


def host_of(run: Run, rank: int) -> str | None:
    """The machine that a rank ran on, by its facts or its trace."""
    facts, trace = run.facts.get(rank), run.by_rank.get(rank)
    return (facts.host if facts else "") or (trace.light.host if trace else "") or None


def known_hosts(run: Run) -> dict[int, str]:
    """The host of each rank that has a known one."""
    ranks = sorted(run.by_rank.keys() | run.facts)
    return {rank: host for rank in ranks if (host := host_of(run, rank))}


def _computing(rank_view: RankView, spent: Sequence[DeviceTimeline], phases: Phased | str) -> Computing:
    """What a rank computes in its steps: the means of a step, as ranks may have recorded fewer."""
    count, usual_ns, optimizer_ns, compute_ns = 0, 0.0, 0.0, 0
    for at, (view, device, timeline) in enumerate(spent):
        if view is rank_view:
            inside = (device.operations.work == Work.COMPUTE) & (device.launched_in != OUTSIDE)
            updating = (
                inside & (phases.operations[at] == OPTIMIZER) if not isinstance(phases, str) else ~inside & inside
            )
            count += int(inside.sum())
            compute_ns += int(timeline.classes["compute_ns"].lengths(*bounds(device.windows)).sum())
            usual_ns += _usual_ns(rank_view, device.operations.rows[inside & ~updating])
            optimizer_ns += _usual_ns(rank_view, device.operations.rows[updating])
    return Computing(
        operations=count / rank_view.windows,
        compute_ns=compute_ns / rank_view.windows,
        usual_ns=usual_ns / rank_view.windows,
        optimizer_ns=None if isinstance(phases, str) else optimizer_ns / rank_view.windows,
        on_cpu=all(device.operations.on_cpu for device in rank_view.devices),
    )


def _usual_ns(view: RankView, rows: Ints) -> float:
    """As many times the quick operations of each name (the quartile) as there are."""
    columns = view.columns
    names, durations = columns.name_id[rows], columns.dur_ns[rows]
    order = np.lexsort((durations, names))
    _, first, count = np.unique(names[order], return_index=True, return_counts=True)
    return float((durations[order][first + (count - 1) // 4] * count).sum())
