"""The parts of the recorded steps of one rank whose gradients DistributedDataParallel reduces, on a CPU.

There the script's own thread computes all of a step, so what it does is a sequence: waits for batches, the forward
pass, the backward pass with the moment each gradient is ready, the wait for the collective, copies of buckets back into
gradients, the optimizer. Calls that start a collective stand in the backward pass; they are taken out of it, and their
time is kept beside it, because other buckets make others.

As long as a collective is in flight the backend's threads want the cores too, and a backward pass computes more slowly.
How much so follows from the time that its thread computed (facts, `backward_cpu_ns`): what the pass lasts beyond that,
it lost while collectives were in flight. Those parts are taken to be that much shorter without. Passes are noisy: the
less was in flight, the more it is taken to be what it usually is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import Missing
from dptune.trace.columns import Columns
from dptune.trace.kernels import RANGE_CATEGORIES
from dptune.whatif.cpu.model import Pass, RankStep
from dptune.whatif.cpu.operator_calls import OperatorCalls, operator_calls

EVALUATE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_START = "c10d::allreduce_"
_COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
LOADER = "enumerate(DataLoader)#"
_FORWARD = "DistributedDataParallel.forward"
_IN_FLIGHT = "gloo:"
# Of a thread that shares its core with the two that communicate for a process group of gloo. What a pass lost beyond
# that, it lost to something else: a step of 25 ms on one host seemed to be slowed 8 times in one rank and not in the
# other, and smaller buckets to cost it 17 ms; they cost 2.
_MOST_SLOWDOWN = 3.0
# As if besides so much of each backward pass had been in flight and computed so slowly. In 17 ranks' recordings with
# collectives in flight for 30 % of backward passes and more it was 1.03 to 2.0, the median 1.3; what a pass seems to
# lose is off by some 3 % of it. Without this, a bucket that left when all was computed gave, by noise, a slowdown of 3,
# and smaller buckets were to save 0 to 11 % of the step: they saved 24.
_USUAL_SLOWDOWN, _USUAL_WEIGHT = 1.3, 0.1


@dataclass(frozen=True)
class Timeline:
    """The steps of one rank as recorded, and the median time, ns, that starting one collective takes on its thread.

    `copy_ns` is what copying buckets back takes in a pass, the median; 0 where gradients are views of the buckets.
    `slowdown`: how many times as long backward passes compute while a collective is in flight; the steps are without
    it. `calls` is what calling operators takes. `others` are the collectives of a step outside of backward passes,
    `others_ns` what they take; medians. `durations_ns` is how long each step took. `tails` are, for each pass, the
    collectives that began once it had computed: how many, and how long all of them took.
    """

    steps: tuple[RankStep, ...]
    start_ns: float
    copy_ns: float
    slowdown: float
    calls: OperatorCalls = field(default_factory=OperatorCalls)
    others: float = 0.0
    others_ns: float = 0.0
    durations_ns: tuple[int, ...] = ()
    tails: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class _Backward:
    """One backward pass, in times of the trace: where it begins and ends, and when its gradients are ready.

    `resumed_ns` is where the step goes on after it, `follows_ns` where it went on before it; `inner_ns` are starts and
    ends of what accumulates gradients, `hooked_ns` the same with the hooks on them.
    """

    began_ns: int
    ended_ns: int
    follows_ns: int
    resumed_ns: int
    loader_ns: int
    copied_ns: int
    communicates: bool
    hooked_ns: tuple[Ints, Ints]
    inner_ns: tuple[Ints, Ints]


@dataclass(frozen=True, eq=False)
class _Rank:
    """The rows of a rank's trace that show the parts, and when collectives were started and in flight."""

    columns: Columns
    evaluated: Ints
    hooked: Ints
    accumulated: Ints
    starts: Ints
    copies: Ints
    loader: Ints
    forward: Ints
    operators: Ints
    flights: Ints
    starting: Intervals
    flying: Intervals

    @classmethod
    def of(cls, columns: Columns) -> _Rank:
        def rows(named: str, categories: frozenset[str] | None = None) -> Ints:
            return columns.rows(categories, lambda name: name == named)

        starts = rows(_START)
        flights = columns.rows(None, lambda name: name.startswith(_IN_FLIGHT))
        evaluated = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(EVALUATE))
        operators = columns.rows({"cpu_op"})
        if len(evaluated):
            operators = operators[columns.thread[operators] == columns.thread[evaluated[0]]]
        starting = Intervals.union(columns.ts_ns[starts], columns.ends(starts))
        return cls(
            columns,
            evaluated=evaluated,
            hooked=rows(EVALUATE + _ACCUMULATE, RANGE_CATEGORIES),
            accumulated=rows(_ACCUMULATE, RANGE_CATEGORIES),
            starts=starts,
            copies=rows(_COPY),
            loader=columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(LOADER)),
            forward=rows(_FORWARD, RANGE_CATEGORIES),
            operators=operators,
            flights=flights,
            starting=starting,
            flying=Intervals.union(columns.ts_ns[flights], columns.ends(flights)) - starting,
        )

    def backwards(self, step: Step) -> list[_Backward]:
        """The backward passes of a step, in order."""
        ts, end = self.columns.ts_ns, self.columns.end_ns
        evaluated = self._within(self.evaluated, step.start_ns, step.end_ns)
        if not len(evaluated):
            return []
        forward = self._within(self.forward, step.start_ns, step.end_ns)
        starts = borders(ts[evaluated], ts[forward])
        passes = []
        follows = step.start_ns
        for first, last in zip(starts, [*starts[1:], len(evaluated)], strict=True):
            pass_rows = evaluated[first:last]
            began, ended = int(ts[pass_rows[0]]), int(end[pass_rows].max())
            following = int(ts[evaluated[last]]) if last < len(evaluated) else step.end_ns
            copied = self._within(self.copies, began, following)
            hooked, inner = (self._within(rows, began, ended) for rows in (self.hooked, self.accumulated))
            started = self._within(self.starts, began, ended)
            # Gradients that are views of the buckets are not copied back: the last collective shows where it resumes.
            flown = self._within(self.flights, began, following)[: len(started)]
            resumed = max([ended, *end[copied].tolist(), *end[flown].tolist()])
            passes.append(
                _Backward(
                    began_ns=began,
                    ended_ns=ended,
                    follows_ns=follows,
                    resumed_ns=resumed,
                    loader_ns=int(self.columns.dur_ns[self._within(self.loader, follows, began)].sum()),
                    copied_ns=int(self.columns.dur_ns[copied].sum()),
                    communicates=len(started) > 0,
                    hooked_ns=(ts[hooked], end[hooked]),
                    inner_ns=(ts[inner], end[inner]),
                )
            )
            follows = resumed
        return passes

    def parted(self, backward: _Backward, slowdown: float) -> Pass:
        """The parts of a pass, as if nothing had been in flight."""

        def computed(times_ns: Ints) -> list[float]:
            since = np.concatenate(([backward.began_ns], times_ns))
            starting, flying = (spans.before(since) - spans.before(since[:1]) for spans in (self.starting, self.flying))
            lost = (1 - 1 / slowdown) * flying
            found: list[float] = ((since - backward.began_ns) - starting - lost)[1:].tolist()
            return found

        def lasting(spans: tuple[Ints, Ints]) -> float:
            return sum(computed(spans[1])) - sum(computed(spans[0]))

        (backward_ns,) = computed(np.array([backward.ended_ns]))
        return Pass(
            loader_ns=backward.loader_ns,
            forward_ns=backward.began_ns - backward.follows_ns - backward.loader_ns,
            backward_ns=backward_ns,
            ready_ns=tuple(computed(backward.hooked_ns[1])) if backward.communicates else (),
            hooks_ns=max(0.0, lasting(backward.hooked_ns) - lasting(backward.inner_ns))
            if backward.communicates
            else 0.0,
            sent_ns=self._sent_ns(backward),
        )

    def _sent_ns(self, backward: _Backward) -> float:
        """What is in flight in the forward pass before."""
        flown = self._within(self.flights, backward.follows_ns, backward.began_ns)
        ends = np.minimum(self.columns.ends(flown), backward.began_ns)
        return float(Intervals.union(self.columns.ts_ns[flown], ends).total_ns)

    def slowdown(self, steps: Sequence[Sequence[_Backward]], computed_ns: float) -> float:
        """From the median time of a step that the thread computed in its backward passes."""
        lasted, beside = [], []
        for step in steps:
            began, ended = (
                np.array([getattr(backward, name) for backward in step]) for name in ("began_ns", "ended_ns")
            )
            lasted.append(int((ended - began).sum()) + sum(backward.copied_ns for backward in step))
            beside.append(int(self.flying.lengths(began, ended).sum()))
        flew = float(np.median(beside))
        lost = float(np.median(lasted)) - computed_ns
        computed = min(flew, max(flew - lost, flew / _MOST_SLOWDOWN))
        usual = _USUAL_WEIGHT * float(np.median(lasted))
        return (flew + usual) / (computed + usual / _USUAL_SLOWDOWN)

    def tail(self, backward: _Backward) -> tuple[int, int]:
        """The collectives that begin once a pass has computed: how many, and how long all of them take."""
        flown = self._within(self.flights, backward.ended_ns, backward.resumed_ns)
        if not backward.communicates or not len(flown):
            return 0, 0
        return len(flown), int(self.columns.end_ns[flown].max() - self.columns.ts_ns[flown[0]])

    def others(self, steps: Sequence[Step], found: Mapping[int, Sequence[_Backward]]) -> dict[str, float]:
        """What is in flight in the steps outside of their backward passes: how many, and how long."""
        counts, lengths = [], []
        for step in steps:
            flown = self._within(self.flights, step.start_ns, step.end_ns)
            for backward in found[step.number]:
                begun = self.columns.ts_ns[flown]
                flown = flown[(begun < backward.began_ns) | (begun >= backward.resumed_ns)]
            counts.append(len(flown))
            lengths.append(Intervals.union(self.columns.ts_ns[flown], self.columns.ends(flown)).total_ns)
        return {"others": float(np.median(counts)), "others_ns": float(np.median(lengths))}

    def _within(self, rows: Ints, start_ns: int, end_ns: int) -> Ints:
        """Rows that begin in [start, end), in order of time."""
        ts = self.columns.ts_ns[rows]
        rows = rows[(ts >= start_ns) & (ts < end_ns)]
        return rows[np.argsort(self.columns.ts_ns[rows], kind="stable")]

    def calling(self, steps: Sequence[Sequence[_Backward]]) -> OperatorCalls:
        """The operators of the passes; waits for a batch, and what is in flight before backward, lie between none."""
        backwards = [backward for step in steps for backward in step]
        follows_ns, began_ns = (
            np.array([getattr(backward, name) for backward in backwards], dtype=np.int64)
            for name in ("follows_ns", "began_ns")
        )
        rows = np.concatenate((self.loader, self.flights))
        rows = rows[Intervals.union(follows_ns, began_ns).hold(self.columns.ts_ns[rows])]
        waits, loading = (
            Intervals.union(self.columns.ts_ns[chosen], self.columns.ends(chosen)) for chosen in (rows, self.loader)
        )
        spans = [[(backward.follows_ns, backward.ended_ns) for backward in step] for step in steps]
        return operator_calls(self.columns, self.operators, loading, waits, spans)


def timeline(view: RankView, computed_ns: float) -> Timeline:
    """The parts of a rank's steps, from the median time of a step that its thread computed in backward passes.

    Raises Missing where the trace does not tell them.
    """
    if view.no_steps:
        raise Missing(view.no_steps)
    rank = _Rank.of(view.columns)
    if not len(rank.hooked):
        raise Missing("gradient-ready times are unknown: the trace has no AccumulateGrad events")
    found = {step.number: rank.backwards(step) for step in view.steps}
    steps = [step for step in view.steps if found[step.number]]
    if not steps:
        raise Missing("no recorded step has a backward pass")
    slowdown = rank.slowdown([found[step.number] for step in steps], computed_ns)
    parts = [
        RankStep(
            tuple(rank.parted(backward, slowdown) for backward in found[step.number]),
            step.end_ns - found[step.number][-1].resumed_ns,
        )
        for step in steps
    ]
    copied = [sum(backward.copied_ns for backward in found[step.number]) for step in steps]
    synchronised = max(sum(backward.communicates for backward in found[step.number]) for step in steps)
    return Timeline(
        steps=tuple(parts),
        start_ns=float(np.median(view.columns.dur_ns[rank.starts])) if len(rank.starts) else 0.0,
        copy_ns=float(np.median(copied)) / max(1, synchronised),
        calls=rank.calling([found[step.number] for step in steps]),
        slowdown=slowdown,
        **rank.others(steps, found),
        durations_ns=tuple(step.end_ns - step.start_ns for step in steps),
        tails=tuple(tail for step in steps for backward in found[step.number] if (tail := rank.tail(backward))[0]),
    )


def borders(evaluated_ns: Ints, forward_ns: Ints) -> list[int]:
    """Where each backward pass begins among the evaluated functions: the first, those after another forward pass."""
    after = np.searchsorted(evaluated_ns, forward_ns)
    return sorted({0, *(int(at) for at in after if 0 < at < len(evaluated_ns))})
