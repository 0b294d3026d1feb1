"""DDP's reducer in a program: gradients as they become ready, and the collectives that reduce them in buckets.

A gradient is ready when the last kernel is over that its AccumulateGrad node or one before it launched on the compute
stream; a bucket is reduced when its last gradient is ready on every rank and the bucket before it has been reduced. So
other buckets are other collectives between the same gradients and the same kernels that use the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dptune.measure.communication.purposes import GRADIENTS, issuers, purposes
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Ints, Mask
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.runfile.communication import DdpFacts
from dptune.trace.kernels import RANGE_CATEGORIES, Work

Places = Mapping[tuple[int, str, int], int]  # of items: by rank, what the item is, and row
_OF_SMALLEST = 0.98  # of the time of the smallest kernel: what does not grow with a gradient
_OF_DDP = re.compile(r"DistributedDataParallel\.forward$|distributed(::|\.ddp\.)reducer::")
# Kernels that move gradients between buckets and tensors, which a pass that reduces nothing does not launch.
_MOVES = re.compile(r"torch::distributed::reducer::(mul_out|copy_)$|torch\.distributed\.ddp\.reducer::copy_bucket")


@dataclass(frozen=True)
class Bucket:
    """A recorded collective of gradients: the number of its last gradient, and the places of its items by rank."""

    last: int
    message: int
    begins: Mapping[int, int]
    ends: Mapping[int, int]

    def moved(self, places: Sequence[int]) -> Bucket:
        """The same where each item has another place."""
        begins, ends = ({rank: places[item] for rank, item in items.items()} for items in (self.begins, self.ends))
        return Bucket(self.last, self.message, begins, ends)


@dataclass(frozen=True)
class Reduction:
    """What one backward pass of all ranks reduces.

    `gradient_bytes` are in the order in which gradients become ready, `ready` by rank and gradient the place of the end
    of the kernel that makes it so, `called` that of the call that launched this kernel. `moves` are the ends of kernels
    that copy gradients into buckets and back, `calls` those that launch them and the collectives. `step` is the number
    of the step.
    """

    step: int
    gradient_bytes: tuple[int, ...]
    ready: Mapping[int, tuple[int, ...]]
    called: Mapping[int, tuple[int, ...]]
    buckets: tuple[Bucket, ...]
    moves: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()

    @property
    def in_order(self) -> bool:
        """Whether each bucket is reduced with a gradient of its own: none was complete before an earlier bucket."""
        lasts = [bucket.last for bucket in self.buckets]
        return all(earlier < later for earlier, later in pairwise(lasts))

    def moved(self, places: Sequence[int]) -> Reduction:
        """The same where each item has another place."""
        ready, called = (
            {rank: tuple(places[item] for item in items) for rank, items in by_rank.items()}
            for by_rank in (self.ready, self.called)
        )
        buckets = tuple(bucket.moved(places) for bucket in self.buckets)
        moves, calls = (tuple(places[item] for item in items) for items in (self.moves, self.calls))
        return Reduction(self.step, self.gradient_bytes, ready, called, buckets, moves, calls)


@dataclass(frozen=True)
class Matched:
    """A collective that was matched on all its ranks: its operations (rank, row), and the number of its message.

    That is NO_MESSAGE where its size is unknown.
    """

    operations: tuple[tuple[int, int], ...]
    message: int
    kind: str
    message_bytes: int


@dataclass(frozen=True)
class _Pass:
    """The gradients of one backward pass of one rank: rows of the kernels, and which each collective waits for.

    `reduced` are rows of collectives, with the number of the last gradient of each; `calls` of the calls that launch
    them and what moves gradients. `copying_ns` is how long each gradient was copied into its bucket, if all were.
    """

    step: int
    kernels: tuple[int, ...]
    launches: tuple[int, ...]
    reduced: tuple[tuple[int, int], ...]
    moves: tuple[int, ...]
    calls: tuple[int, ...]
    copying_ns: tuple[int, ...] = ()


def reductions(
    devices: Iterable[tuple[RankView, DeviceView]],
    matched_by_row: Mapping[tuple[int, int], Matched],
    places: Places,
    ddp: DdpFacts | None,
    replayed: AbstractSet[int],
) -> list[Reduction]:
    """The passes that reduce gradients on all ranks alike; none where ranks differ or a collective was not matched.

    That is of the `replayed` steps, by number. A trace may start or end in another pass: those that are alike are in
    the result. `matched_by_row`: the matched collectives by rank and row.
    """
    by_rank = {view.rank: _by_step(view, device) for view, device in devices if ddp or _has_ddp(view)}
    found: list[Reduction] = []
    for step in dict.fromkeys(step for steps in by_rank.values() for step in steps):
        passes = [steps.get(step, []) for steps in by_rank.values()]
        several = zip(*passes, strict=True) if len({len(of_rank) for of_rank in passes}) == 1 else ()
        of_step = [_reduction(dict(zip(by_rank, each, strict=True)), matched_by_row, places, ddp) for each in several]
        known = [reduction for reduction in of_step if reduction is not None]
        if step in replayed and len(known) < max(map(len, passes)):
            return []
        found += known
    return found


def _by_step(view: RankView, device: DeviceView) -> dict[int, list[_Pass]]:
    """The passes of a rank by the number of their step, in order of time."""
    found: dict[int, list[_Pass]] = {}
    for backward in _passes(view, device):
        found.setdefault(backward.step, []).append(backward)
    return found


def _has_ddp(view: RankView) -> bool:
    return len(view.columns.rows(RANGE_CATEGORIES, _OF_DDP.search)) > 0


def _passes(view: RankView, device: DeviceView) -> Iterator[_Pass]:
    """The passes of one rank that reduce gradients, in order of time."""
    host, columns = HostEvents(view), view.columns
    operations, issued_by = device.operations, issuers(view, device)
    launched = issued_by != UNLAUNCHED
    communicating = (operations.work == Work.COMMUNICATION) & launched
    meant = purposes(columns, issued_by) == GRADIENTS
    collectives = operations.rows[communicating & meant]
    issuing = issued_by[communicating & meant]
    computing = launched & ~communicating & (columns.dur_ns[operations.rows] > 0)
    order = np.argsort(columns.ts_ns[issued_by[computing]], kind="stable")
    kernels, launches = operations.rows[computing][order], issued_by[computing][order]
    called_ns = columns.ts_ns[launches]
    moving = _moving(view, launches)
    numbers, reducing = _numbers(host, host.gradients), _numbers(host, issuing)
    for number in np.unique(reducing, axis=0):
        gradients = host.gradients[(numbers == number).all(axis=1)]
        chosen = (reducing == number).all(axis=1)
        at = np.searchsorted(called_ns, columns.ends(gradients), side="left") - 1
        if not len(gradients) or (at < 0).any():
            continue
        in_order = np.argsort(columns.ts_ns[issuing[chosen]], kind="stable")
        last = np.searchsorted(columns.ts_ns[gradients], columns.ts_ns[issuing[chosen][in_order]], side="right") - 1
        moved = moving & (_numbers(host, launches) == number).all(axis=1)
        yield _Pass(
            step=view.steps[int(number[0])].number if number[0] != OUTSIDE else OUTSIDE,
            kernels=tuple(kernels[at].tolist()),
            launches=tuple(launches[at].tolist()),
            reduced=tuple(zip(collectives[chosen][in_order].tolist(), last.tolist(), strict=True)),
            moves=tuple(kernels[moved].tolist()),
            calls=(*launches[moved].tolist(), *issuing[chosen].tolist()),
            copying_ns=tuple(columns.dur_ns[kernels[at]].tolist()) if moving[at].all() else (),
        )


def _numbers(host: HostEvents, rows: Ints) -> np.ndarray:
    """For each row its step, as an index, OUTSIDE where there is none, and its backward pass."""
    bounds = [(step.start_ns, step.end_ns) for step in host.view.steps]
    starts, ends = np.array(bounds, dtype=np.int64).reshape(-1, 2).T
    time_ns = host.columns.ts_ns[rows]
    steps = np.searchsorted(starts, time_ns, side="right") - 1
    inside = (steps >= 0) & (time_ns < ends[steps]) if len(ends) else steps >= 0
    return np.stack((np.where(inside, steps, OUTSIDE), host.pass_of(rows)), axis=1)


def _moving(view: RankView, launches: Ints) -> Mask:
    """Which launches copy gradients into buckets or back."""
    columns = view.columns
    ranges = Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, _MOVES.match))
    moving: Mask = ranges.at(columns.thread[launches], columns.ts_ns[launches]) != NOWHERE
    return moving


def _reduction(
    passes: Mapping[int, _Pass],
    matched_by_row: Mapping[tuple[int, int], Matched],
    places: Places,
    ddp: DdpFacts | None,
) -> Reduction | None:
    """The same pass of all ranks; None where they reduced other buckets, or not all of them were matched."""
    first = next(iter(passes.values()))
    lasts = [last for _, last in first.reduced]
    if any(
        [last for _, last in each.reduced] != lasts or len(each.kernels) != len(first.kernels)
        for each in passes.values()
    ):
        return None
    buckets, sizes = [], []
    for number, last in enumerate(lasts):
        rows = {rank: each.reduced[number][0] for rank, each in passes.items()}
        matched = {matched_by_row.get((rank, row)) for rank, row in rows.items()}
        collective = matched.pop()
        if matched or collective is None or collective.kind != "all_reduce":
            return None
        sizes.append(collective.message_bytes)
        begins = {rank: places[rank, "begin", row] for rank, row in rows.items()}
        ends = {rank: places[rank, "end", row] for rank, row in rows.items()}
        buckets.append(Bucket(last, collective.message, begins, ends))
    copying = [each.copying_ns for each in passes.values()]
    copying_ns = [sum(of_ranks) for of_ranks in zip(*copying, strict=True)] if all(copying) else []
    gradient_bytes = sizes_of_gradients(len(first.kernels), lasts, sizes, ddp, copying_ns)
    return Reduction(
        first.step,
        gradient_bytes,
        {rank: tuple(places[rank, "end", row] for row in each.kernels) for rank, each in passes.items()},
        {rank: tuple(places[rank, "call", row] for row in each.launches) for rank, each in passes.items()},
        tuple(buckets),
        tuple(places[rank, "end", row] for rank, each in passes.items() for row in each.moves),
        tuple(places[rank, "call", row] for rank, each in passes.items() for row in each.calls),
    )


def sizes_of_gradients(
    count: int, lasts: Sequence[int], sizes: Sequence[int], ddp: DdpFacts | None, copying_ns: Sequence[int]
) -> tuple[int, ...]:
    """Bytes of each gradient, in the order in which they become ready; `lasts` and `sizes` are those of their buckets.

    As recorded; else parts of a bucket by how long each gradient was copied beyond the smallest; else equal ones.
    """
    if ddp is not None and len(ddp.grad_ready_order) == count and ddp.gradient_sizes:
        return tuple(ddp.gradient_sizes[index] for index in ddp.grad_ready_order)
    least_ns = min(copying_ns, default=0)
    weights = [ns - _OF_SMALLEST * least_ns for ns in copying_ns] if least_ns else [1.0] * count
    parts: list[float] = []
    for last, size in zip(lasts, sizes, strict=True):
        of_bucket = weights[len(parts) : last + 1]
        parts += [size * weight / sum(of_bucket) for weight in of_bucket]
    return tuple(map(round, [*parts, *[0.0] * (count - len(parts))]))
