"""Losses that only comparing ranks shows: a stream that one lacks, times of another unit, unrecorded communication.

A rank lacks a stream of another rank where it ran nothing like it on any stream (streams have other numbers on each
rank): none of its kernels by name, while all further ranks ran them; or, of two ranks, no compute or no communication
at all. With ranks that call collectives, or train a data-parallel module, communication is expected on each; of such a
module not where every recorded backward pass was under `no_sync`, or past it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dptune.measure.device.communicating import collective_operators
from dptune.measure.views import RankView, with_loss
from dptune.measured import Loss
from dptune.measured.collectives import UNKNOWN, kind_of
from dptune.trace.kernels import HOST_COLLECTIVE_PREFIXES, OPTIMIZER_STEP_NAME, RANGE_CATEGORIES, Work

_ALIKE = 0.9  # of the operations of a stream
_OTHER_UNIT = 100  # times as long: no two devices of one run are as far apart
_LEAST = 3  # operations of a stream: fewer may be of one rank alone, as what it logs
_DATA_PARALLEL = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward", "FSDP::")
_NO_TRANSFER = ("barrier", UNKNOWN)


def complete(views: Sequence[RankView], world_size: int | None) -> list[RankView]:
    """The ranks, of which those that lack what the others show have no steps, and say why."""
    ranks = max(world_size or 1, len(views))
    ran = [each for each in (_Ran(view) for view in views if not view.losses_fatal) if each.streams]
    across_ranks = {**_other_unit(ran), **_without_stream(ran)}
    found = []
    for view in views:
        loss = across_ranks.get(view.rank)
        if loss is None and not view.losses_fatal and ranks > 1:
            loss = _without_communication(view)
        found.append(view if loss is None else with_loss(view, loss))
    return found


@dataclass(frozen=True, eq=False)
class _Ran:
    """What a rank ran on its device, by name and by class."""

    view: RankView

    @cached_property
    def streams(self) -> dict[int, Counter[str]]:
        """By stream the operations of each name; streams of other devices of the rank with those of the first."""
        columns, found = self.view.columns, dict[int, Counter[str]]()
        for device in self.view.devices:
            operations = device.operations
            if operations.on_cpu:
                continue
            queues = columns.queue[operations.rows]
            for queue in np.unique(queues).tolist():
                ids, count = np.unique(columns.name_id[operations.rows[queues == queue]], return_counts=True)
                names = zip((columns.names[at] for at in ids.tolist()), count.tolist(), strict=True)
                found.setdefault(queue, Counter()).update(dict(names))
        return found

    @cached_property
    def names(self) -> Counter[str]:
        """The operations of each name, on all streams."""
        return sum(self.streams.values(), Counter[str]())

    @cached_property
    def works(self) -> frozenset[int]:
        """All classes of operations."""
        return frozenset(kind for device in self.view.devices for kind in np.unique(device.operations.work).tolist())

    @cached_property
    def usual_ns(self) -> dict[str, float]:
        """The median duration of each compute kernel by name; those that take no time are left out."""
        columns, found = self.view.columns, dict[str, float]()
        for device in self.view.devices:
            operations = device.operations
            rows = operations.rows[(operations.work == Work.COMPUTE) & (columns.dur_ns[operations.rows] > 0)]
            names, took = columns.name_id[rows], columns.dur_ns[rows]
            order = np.lexsort((took, names))
            ids, first, count = np.unique(names[order], return_index=True, return_counts=True)
            middle = took[order][first + (count - 1) // 2].tolist()
            found.update(zip((columns.names[at] for at in ids.tolist()), middle, strict=True))
        return found

    def has(self, stream: Counter[str]) -> float:
        """The share of the operations of a stream that the rank ran as often by name, on whatever stream."""
        return (stream & self.names).total() / stream.total()


def _without_stream(ranks: list[_Ran]) -> dict[int, Loss]:
    found = {}
    for rank in ranks:
        others = [other for other in ranks if other is not rank]
        if others and (text := _lacking(rank, others)):
            found[rank.view.rank] = Loss(code="device-stream-missing", fatal=True, text=text)
    return found


def _other_unit(ranks: list[_Ran]) -> dict[int, Loss]:
    """Ranks whose kernels take `_OTHER_UNIT` times more or less than the same kernels on most ranks."""
    if len(ranks) < 2:
        return {}
    names = set.intersection(*(set(each.usual_ns) for each in ranks))
    if not names:
        return {}
    usual = {name: sorted(each.usual_ns[name] for each in ranks)[len(ranks) // 2] for name in names}
    found = {}
    for rank in ranks:
        of_usual = float(np.median([rank.usual_ns[name] / usual[name] for name in names]))
        if not 1 / _OTHER_UNIT < of_usual < _OTHER_UNIT:
            times = f"{1 / of_usual:,.0f} times shorter" if of_usual < 1 else f"{of_usual:,.0f} times longer"
            text = f"its kernels are {times} than the same kernels on other ranks: their durations are in another unit"
            found[rank.view.rank] = Loss(code="device-events-misdated", fatal=True, text=text)
    return found


def _lacking(rank: _Ran, others: list[_Ran]) -> str:
    """Which stream a rank lacks that all others have; "" for none."""
    for work, noun in ((Work.COMPUTE, "compute"), (Work.COMMUNICATION, "communication")):
        if int(work) not in rank.works and all(int(work) in other.works for other in others):
            return f"it has no {noun} kernel, but every other rank has: the profiler lost a stream"
    if len(others) < 2:
        return ""
    first, rest = others[0], others[1:]
    for queue, stream in first.streams.items():
        total = stream.total()
        if (
            total >= _LEAST
            and rank.has(stream) <= 1 - _ALIKE
            and all(other_rank.has(stream) >= _ALIKE for other_rank in rest)
        ):
            label = first.view.columns.queue_label(queue)
            where = f"stream {label} of rank {first.view.rank} ({total:,} operations)"
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
