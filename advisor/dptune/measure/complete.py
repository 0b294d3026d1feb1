"""Losses that only comparing ranks shows: a stream that one lacks, times of another unit, unrecorded communication,
an unprofiled device.

A rank lacks a stream of another rank where it ran nothing like it on any stream (streams have other numbers on each
rank): none of its kernels by name, while all further ranks ran them; or, of two ranks, no compute or no communication
at all; or nothing on a device. With ranks that call collectives, or train a data-parallel module, communication is
expected on each; of such a module not where every recorded backward pass was under `no_sync`, or past it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from dptune.measure.device.communicating import collective_operators
from dptune.measure.once import once_for_each
from dptune.measure.records.parts import RanByName
from dptune.measure.views import RankView, light_views, with_loss
from dptune.measured import Loss
from dptune.measured.collectives import UNKNOWN, kind_of
from dptune.trace.kernels import HOST_COLLECTIVE_PREFIXES, OPTIMIZER_STEP_NAME, RANGE_CATEGORIES, Work
from dptune.trace.run import Run

_ALIKE = 0.9  # of the operations of a stream
_OTHER_UNIT = 100  # times as long: no two devices of one run are as far apart
_LEAST = 3  # operations of a stream: fewer may be of one rank alone, as what it logs
_DATA_PARALLEL = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward", "FSDP::")
_NO_TRANSFER = ("barrier", UNKNOWN)


@once_for_each
def complete_views(run: Run) -> tuple[RankView, ...]:
    """Every rank of a run, by its events or by its record, as `complete` leaves them."""
    seen = {rank_view.rank: rank_view for rank_view in light_views(run)}
    views = [
        seen[rank.rank] if rank.digest is None else replace(cast(RankView, rank.digest), rank=rank.rank)
        for rank in run.every_rank
    ]
    return tuple(complete(views, run.world_size))


def complete(views: Sequence[RankView], world_size: int | None) -> list[RankView]:
    """The ranks, of which those that lack what the others show have no steps, and say why."""
    ranks = max(world_size or 1, len(views))
    ran = {view.rank: view.record.ran if view.record else ran_by_name(view) for view in views if not view.losses_fatal}
    with_streams = {rank: each for rank, each in ran.items() if each.streams}
    across_ranks = {**_other_unit(with_streams), **_without_stream(with_streams), **_without_device(ran)}
    found = []
    for view in views:
        loss = across_ranks.get(view.rank)
        if loss is None and view.rank in ran and ranks > 1:
            loss = ran[view.rank].uncommunicated
        if loss is not None and view.trace.partial:  # the end of the file is missing: the profiler lost nothing
            what = loss.text.rpartition(": ")[0] or loss.text
            loss = loss.model_copy(update={"text": f"its trace breaks off: {what}"})
        found.append(view if loss is None else with_loss(view, loss))
    return found


def ran_by_name(view: RankView) -> RanByName:
    """What a rank ran, of which other ranks may show that it lacks something."""
    streams = _streams(view)
    return RanByName(
        streams=streams,
        labels={queue: view.columns.queue_label(queue) for queue in streams},
        works=frozenset(kind for device in view.devices for kind in np.unique(device.operations.work).tolist()),
        usual_ns=_usual_ns(view),
        uncommunicated=_without_communication(view),
    )


def _streams(view: RankView) -> dict[int, Counter[str]]:
    """By stream the operations of each name; streams of other devices of the rank with those of the first."""
    columns, found = view.columns, dict[int, Counter[str]]()
    for device in view.devices:
        operations = device.operations
        if operations.on_cpu:
            continue
        queues = columns.queue[operations.rows]
        for queue in np.unique(queues).tolist():
            ids, count = np.unique(columns.name_id[operations.rows[queues == queue]], return_counts=True)
            names = zip((columns.names[at] for at in ids.tolist()), count.tolist(), strict=True)
            found.setdefault(queue, Counter()).update(dict(names))
    return found


def _usual_ns(view: RankView) -> dict[str, float]:
    """The median duration of each compute kernel by name; those that take no time are left out."""
    columns, found = view.columns, dict[str, float]()
    for device in view.devices:
        operations = device.operations
        rows = operations.rows[(operations.work == Work.COMPUTE) & (columns.dur_ns[operations.rows] > 0)]
        names, took = columns.name_id[rows], columns.dur_ns[rows]
        order = np.lexsort((took, names))
        ids, first, count = np.unique(names[order], return_index=True, return_counts=True)
        middle = took[order][first + (count - 1) // 2].tolist()
        found.update(zip((columns.names[at] for at in ids.tolist()), middle, strict=True))
    return found


def _share(stream: Counter[str], ran: RanByName) -> float:
    """The share of the operations of a stream that the rank ran as often by name, on whatever stream."""
    names = sum(ran.streams.values(), Counter[str]())
    return (stream & names).total() / stream.total()


def _without_stream(ran: Mapping[int, RanByName]) -> dict[int, Loss]:
    having = Counter(work for each in ran.values() for work in each.works)
    found = {}
    for rank in ran if len(ran) > 1 else ():
        if text := _lacking(rank, ran, having):
            found[rank] = Loss(code="device-stream-missing", fatal=True, text=text)
    return found


def _without_device(ran: Mapping[int, RanByName]) -> dict[int, Loss]:
    """Ranks with the host's operators only, where others ran something on a device."""
    others = sum(bool(each.streams) for each in ran.values())
    text = "it has nothing that ran on a device, but other ranks have: it was profiled without its device"
    lost = Loss(code="device-unprofiled", fatal=True, text=text)
    return {rank: lost for rank, each in ran.items() if others and each.works and not each.streams}


def _other_unit(ran: Mapping[int, RanByName]) -> dict[int, Loss]:
    """Ranks whose kernels take `_OTHER_UNIT` times more or less than the same kernels on most ranks."""
    if len(ran) < 2:
        return {}
    names = set.intersection(*(set(each.usual_ns) for each in ran.values()))
    if not names:
        return {}
    usual = {name: sorted(each.usual_ns[name] for each in ran.values())[len(ran) // 2] for name in names}
    found = {}
    for rank, each in ran.items():
        of_usual = float(np.median([each.usual_ns[name] / usual[name] for name in names]))
        if not 1 / _OTHER_UNIT < of_usual < _OTHER_UNIT:
            times = f"{1 / of_usual:,.0f} times shorter" if of_usual < 1 else f"{of_usual:,.0f} times longer"
            text = f"its kernels are {times} than the same kernels on other ranks: their durations are in another unit"
            found[rank] = Loss(code="device-events-misdated", fatal=True, text=text)
    return found


def _lacking(rank: int, ran: Mapping[int, RanByName], having: Mapping[int, int]) -> str:
    """Which stream a rank lacks that all others have; "" for none. `having`: on how many ranks a class of work ran."""
    for work, noun in ((Work.COMPUTE, "compute"), (Work.COMMUNICATION, "communication")):
        if int(work) not in ran[rank].works and having.get(int(work), 0) == len(ran) - 1:
            return f"it has no {noun} kernel, but every other rank has: the profiler lost a stream"
    if len(ran) < 3:
        return ""
    first = next(other for other in ran if other != rank)
    for queue, stream in ran[first].streams.items():
        total = stream.total()
        if (
            total >= _LEAST
            and _share(stream, ran[rank]) <= 1 - _ALIKE
            and all(_share(stream, ran[other]) >= _ALIKE for other in ran if other not in (rank, first))
        ):
            where = f"stream {ran[first].labels[queue]} of rank {first} ({total:,} operations)"
            return f"it has nothing of {where}, but every other rank has: the profiler lost a stream"
    return ""


def _without_communication(view: RankView) -> Loss | None:
    """Of a rank that calls collectives, or trains a data-parallel module, and has no operation that communicates."""
    columns = view.columns
    if not view.devices or any((device.operations.work == Work.COMMUNICATION).any() for device in view.devices):
        return None
    if any(name.startswith(HOST_COLLECTIVE_PREFIXES) for name in columns.names):
        return None  # gloo's, beside a device: then that is how the ranks communicate
    calls = _transfers(view)
    trains = len(columns.rows(RANGE_CATEGORIES, OPTIMIZER_STEP_NAME.match)) > 0
    forwards = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(_DATA_PARALLEL))
    if not calls and not (trains and len(forwards) and view.synchronises is not False):
        return None
    what = f"{calls:,} collective calls" if calls else "a data-parallel module is trained"
    text = f"{what}, but no communication was recorded: its share of the step is unknown"
    return Loss(code="communication-missing", fatal=True, text=text)


def _transfers(view: RankView) -> int:
    """Calls of collectives that move data between ranks: not barriers, waits, or those of a group of one rank."""
    columns, described = view.columns, view.trace.collectives
    operators = collective_operators(columns)
    named = operators[columns.named(lambda name: kind_of(name) not in _NO_TRANSFER, operators)]
    kinds = [kind_of(described.word(described.kind, at)) for at in range(len(described))]
    moving = np.array([kind not in _NO_TRANSFER for kind in kinds], dtype=np.bool_)
    if (described.group_size[moving] == 1).any() and not (described.group_size[moving] > 1).any():
        return 0
    return len(named) or int(np.isin(described.row[moving], operators).sum())
