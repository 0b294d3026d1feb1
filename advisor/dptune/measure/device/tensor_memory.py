"""Where the memory of tensors goes in a step: each allocation by the phase it is made in and the one it is freed in.

Source: `[memory]` events of torch.profiler with `profile_memory=True`, one for each allocation and each free, with its
address. Allocations are recorded on the host as it asks for them, on GPUs too, so the ranges of the host around them
say what they are for:

| made | freed | it is |
|---|---|---|
| in a range of FSDP | in the pass | a gathered unit, a buffer of a collective |
| in the backward pass | after it | a gradient |
| in the backward pass | in it | a temporary; as large as a parameter: of its gradient |
| before it | in it or later | an activation |
| before it | before it | a temporary |
| in the optimizer's step | - | the optimizer's |

A backend's own thread frees the copies that a collective works on (gloo does), and the profiler of a CPU sees only the
script's thread: what is allocated in a collective or an all-gather and never freed counts until the next collective.
It may be gone before, or live until the one after that.

An activation or a temporary grows with the batch, nothing else does. The peak is the highest of all moments of the
step; which one it is depends on how much each part weighs, so the highest is kept for each of several weights.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from typing import Literal

import numpy as np

from dptune.measure.device.phases import host_phases
from dptune.measure.device.primitives import cpu_primitives
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import BlockMemory, CpuPrimitives, MemoryMoment, TensorMemory
from dptune.runfile.tensors import TensorFacts
from dptune.trace.columns import NONE, Columns
from dptune.trace.kernels import RANGE_CATEGORIES
from dptune.trace.vendors import CPU, types_of

NO_ALLOCATIONS = "no window recorded the allocations of a whole step"
_NO_TOTAL = "on a CPU torch counts allocations only from the start of the recording"
_SHARDING = re.compile(r"FSDP::|FullyShardedDataParallel\.")
_PARTS = ("activation", "temporary", "weight", "gradient", "optimizer", "sharding", "carried")
_ACTIVATION, _TEMPORARY, _WEIGHT, _GRADIENT, _OPTIMIZER, _SHARDS, _CARRIED = range(len(_PARTS))
# Weights of parts for which the highest moment is kept: batches from none to 64 times, gradients, and the rest.
_BATCHES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 64.0)
_OTHERS = (0.0, 0.5, 1.0)
_PASSED = (0.0, 0.1, 0.25, 0.5, 0.75)  # of the gradients: the highest moment after each
_UNSEEN = re.compile(r"c10d::|FSDP::all_gather\b")  # allocations in these may be freed by another thread
_COLLECTIVE = re.compile(r"c10d::")
_HALVES = (1, 2)  # casts of weights to 16 bits are half as large as the parameter
_NEVER = np.iinfo(np.int64).max
_BLOCK = r"nn\.Module: (?:FSDP)?{}_\d+$"  # fully_shard makes a class of its own of each


def tensor_memory(light: RankView | None, detailed: RankView | None, facts: TensorFacts | None) -> TensorMemory | None:
    """The last whole step whose allocations were recorded; None where there is none."""
    windows: tuple[tuple[Literal["detailed", "light"], RankView | None], ...] = (
        ("detailed", detailed),
        ("light", light),
    )
    for window, view in windows:
        if view is None or not view.steps or not len(view.trace.memory):
            continue
        if (found := _of_window(window, view, facts)) is not None:
            return found
    return None


def _of_window(window: Literal["light", "detailed"], view: RankView, facts: TensorFacts | None) -> TensorMemory | None:
    device = view.devices[0].operations.device if view.devices else "cpu"
    phases = host_phases(view.columns)
    if isinstance(phases, str):
        return None
    events = _Allocations.of(view, device)
    step = next((step for step in reversed(view.steps) if events.covers(step)), None)
    if step is None:
        return None
    optimizing = phases.optimizing.within(step.start_ns, step.end_ns)
    backward = phases.going_back.within(step.start_ns, step.end_ns) - optimizing
    if not len(backward):
        return None
    sharding = _ranges(view.columns, _SHARDING)
    events.free_unseen(view.columns)
    sizes = {} if facts is None else dict.fromkeys(facts.parameter_sizes)
    parts = events.parts(backward, optimizing, sharding, sizes)
    moments = _moments(events, parts, step, backward, optimizing)
    total = events.before(step)
    blocks, after_ns = _blocks(view.columns, events, parts, step, backward, facts.block if facts else "")
    of_loss = (events.made_ns >= after_ns) & (events.made_ns < backward.start_ns[0]) & (parts == _ACTIVATION)
    return TensorMemory.of(
        {"start_bytes": (None if device == "cpu" else total, _NO_TOTAL)},
        rank=view.rank,
        device=device,
        window=window,
        step=step.number,
        moments=moments,
        blocks=blocks,
        loss_bytes=int(events.size[of_loss].sum()),
        primitives=cpu_primitives(view) if device == "cpu" else CpuPrimitives(),
    )


class _Allocations:
    """The allocations of one device in order of time: when each is made and freed, with its size.

    What is freed and was allocated before the first event has a negative `made_ns`; what is not freed `_NEVER`.
    """

    def __init__(self, time_ns: Ints, size: Ints, address: Ints, total: Ints) -> None:
        self.time_ns, self.change, self.total = time_ns, size, total
        made = size >= 0
        order = np.argsort(address, kind="stable")  # a block is allocated and freed in turn
        before, after = order[:-1], order[1:]
        pair = made[before] & ~made[after] & (address[before] == address[after])
        freed_ns = np.where(made, _NEVER, time_ns)
        freed_ns[before[pair]] = time_ns[after[pair]]
        counted = np.ones(len(size), dtype=np.bool_)
        counted[after[pair]] = False
        self.made_ns, self.freed_ns = np.where(made, time_ns, -1)[counted], freed_ns[counted]
        self.size = np.abs(size)[counted]
        self.gone_ns = self.made_ns - 1  # of what another thread frees: when it is gone at the latest

    @classmethod
    def of(cls, view: RankView, device: str) -> _Allocations:
        """Those of one device of a rank."""
        kept = view.trace.memory
        kind, _, index = device.partition(":")
        chosen = np.isin(kept.device_type, types_of(kind))
        if kind != CPU and len(np.unique(kept.device[chosen])) > 1:
            chosen &= kept.device == int(index or 0)
        rows = np.flatnonzero(chosen & (kept.address != NONE))
        rows = rows[np.argsort(kept.ts_ns[rows], kind="stable")]
        return cls(kept.ts_ns[rows], kept.size_bytes[rows], kept.address[rows], kept.allocated_bytes[rows])

    def free_unseen(self, columns: Columns) -> None:
        """Let what was allocated for a collective, and is never freed, live until the next collective starts."""
        calls = np.sort(columns.ts_ns[columns.rows(RANGE_CATEGORIES, _COLLECTIVE.match)])
        unseen = (self.freed_ns == _NEVER) & _ranges(columns, _UNSEEN).hold(self.made_ns)
        following = np.searchsorted(calls, self.made_ns[unseen], side="right")
        self.freed_ns[unseen] = np.append(calls, _NEVER)[following]
        self.gone_ns[unseen] = np.append(calls, [_NEVER, _NEVER])[following + 1]

    def unseen_at(self, time_ns: int) -> int:
        """Bytes that may be alive at a moment or not: another thread frees them, which the trace does not show."""
        return int(self.size[(self.made_ns <= time_ns) & (time_ns < self.gone_ns)].sum())

    def covers(self, step: Step) -> bool:
        """Whether the step has allocations with addresses."""
        inside = slice(*np.searchsorted(self.time_ns, [step.start_ns, step.end_ns]).tolist())
        return inside.stop > inside.start and len(self.made_ns) > 0

    def before(self, step: Step) -> int | None:
        """What is allocated as the step starts; None where the trace has no totals."""
        at = int(np.searchsorted(self.time_ns, step.start_ns))
        if at < len(self.total) and self.total[at] != NONE:
            return int(self.total[at] - self.change[at])
        return None

    def parts(self, backward: Intervals, optimizing: Intervals, sharding: Intervals, sizes: Collection[int]) -> Ints:
        """What each allocation is for, as a number of `_PARTS`; `sizes`: bytes of parameters."""
        first_back, last_back = int(backward.start_ns[0]), int(backward.end_ns[-1])
        in_back, in_step = backward.hold(self.made_ns), optimizing.hold(self.made_ns)
        found = np.where(self.freed_ns < first_back, _TEMPORARY, _ACTIVATION)
        found[in_back] = np.where(self.freed_ns[in_back] > last_back, _GRADIENT, _TEMPORARY)
        widths = np.array([size // part for size in sizes for part in _HALVES], dtype=np.int64)
        found[(found == _TEMPORARY) & np.isin(self.size, widths)] = _WEIGHT
        sharded = sharding.hold(self.made_ns)
        found[sharded] = np.where(in_back[sharded] & (self.freed_ns[sharded] > last_back), _GRADIENT, _SHARDS)
        found[in_step] = _OPTIMIZER
        return found.astype(np.int64)


def _moments(
    events: _Allocations, parts: Ints, step: Step, backward: Intervals, optimizing: Intervals
) -> list[MemoryMoment]:
    """The highest moments of a step, each once, the fullest first."""
    made_inside = (events.made_ns >= step.start_ns) & (events.made_ns < step.end_ns)
    freed_inside = (events.freed_ns >= step.start_ns) & (events.freed_ns < step.end_ns)
    carried = freed_inside & ~made_inside
    time_ns = np.concatenate((events.made_ns[made_inside], events.freed_ns[freed_inside]))
    change = np.concatenate((events.size[made_inside], -events.size[freed_inside]))
    part = np.concatenate((parts[made_inside], np.where(carried, _CARRIED, parts)[freed_inside]))
    order = np.argsort(time_ns, kind="stable")
    time_ns = time_ns[order]
    levels = np.zeros((len(_PARTS), len(order) + 1), dtype=np.int64)  # before the first change nothing is added
    levels[part[order], np.arange(1, len(order) + 1)] = change[order]
    np.cumsum(levels, axis=1, out=levels)
    (updating,) = np.nonzero(optimizing.hold(time_ns))
    moments = [
        _moment(
            levels[:, at],
            _phase(at, time_ns, backward, optimizing),
            events.unseen_at(int(time_ns[at - 1])) if at else 0,
        )
        for at in _places(levels, updating)
    ]
    return sorted(moments, key=lambda moment: -moment.rise_bytes)


def _places(levels: Ints, updating: Ints) -> set[int]:
    """The columns of `levels` that are highest: by several weights of the parts; after each share of the gradients, of
    what grows with the batch; and in the optimizer's step, whose changes are `updating`.
    """
    found = set()
    for batch, gradient, other in itertools.product(_BATCHES, _OTHERS, _OTHERS):
        weights = np.ones(len(_PARTS))
        weights[[_ACTIVATION, _TEMPORARY]] = batch
        weights[[_GRADIENT, _CARRIED]] = gradient
        weights[[_WEIGHT, _SHARDS, _OPTIMIZER]] = other
        found.add(int(np.argmax(weights @ levels)))
    computed = levels[_GRADIENT] / max(1, int(levels[_GRADIENT].max()))
    scaled = levels[_ACTIVATION] + levels[_TEMPORARY]
    for share in _PASSED:
        (after,) = np.nonzero(computed > share)
        if len(after):
            found.add(int(after[0] + np.argmax(scaled[after[0] :])))
    if len(updating):
        found.add(int(updating[np.argmax(levels[:, updating + 1].sum(axis=0))] + 1))
    return found


def _moment(levels: Ints, phase: Literal["forward", "backward", "optimizer"], unseen: int) -> MemoryMoment:
    sizes = {f"{part}_bytes": int(size) for part, size in zip(_PARTS, levels, strict=True)}
    return MemoryMoment(phase=phase, unseen_bytes=unseen, **sizes)


def _phase(
    at: int, time_ns: Ints, backward: Intervals, optimizing: Intervals
) -> Literal["forward", "backward", "optimizer"]:
    moment = time_ns[max(0, at - 1) : max(1, at)]
    if optimizing.hold(moment).any():
        return "optimizer"
    return "backward" if backward.hold(moment).any() else "forward"


def _ranges(columns: Columns, pattern: re.Pattern[str]) -> Intervals:
    rows = columns.rows(RANGE_CATEGORIES, pattern.match)
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))


def _blocks(
    columns: Columns, events: _Allocations, parts: Ints, step: Step, backward: Intervals, block: str
) -> tuple[list[BlockMemory], int]:
    """What each block saves in its forward pass, by the range of its module, and when the last one ends.

    `block` is the name of its class.
    """
    if not block:
        return [], _NEVER
    rows = columns.rows(PYTHON_CATEGORIES, re.compile(_BLOCK.format(re.escape(block))).match)
    first_back = int(backward.start_ns[0])
    found, after_ns = [], _NEVER
    for row in rows[np.argsort(columns.ts_ns[rows], kind="stable")].tolist():
        start_ns, end_ns = int(columns.ts_ns[row]), int(columns.ends(np.array([row]))[0])
        if not step.start_ns <= start_ns < first_back:
            continue
        saved = (events.made_ns >= start_ns) & (events.made_ns < end_ns) & (events.freed_ns > end_ns)
        saved &= parts == _ACTIVATION
        after_ns = end_ns
        if saved.any():
            found.append(
                BlockMemory(saved_bytes=int(events.size[saved].sum()), output_bytes=int(events.size[saved][-1]))
            )
    return found, after_ns
