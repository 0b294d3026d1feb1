"""A recorded run -> its step model, in untraced time.

The profiler slows what the script's thread does. By how much shows in what is recorded in the untraced window and in
the traced one alike: of backward passes the time that the thread computed, of the rest of a step but the wait for
batches its host time, for nothing is communicated in it. The collective itself is never scaled by it: it is by the
link, and slower beside compute by what the traced steps tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Protocol

from dptune.measure.steps.accumulation import samples_per_step
from dptune.measure.views import view
from dptune.measured import Measured, Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window
from dptune.trace.loading.plausible import PER_STEP
from dptune.trace.run import Run
from dptune.whatif.cpu.ddp import bucket_sizes, caps_of, ddp_of, low_rank_of
from dptune.whatif.cpu.latency import latency_of, seen
from dptune.whatif.cpu.model import Latency, Loading, RankStep, StepModel
from dptune.whatif.cpu.operator_calls import OperatorCalls
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.step_times import Stretch, computed_ns, loader_waits, stretched, untraced
from dptune.whatif.cpu.timeline import Timeline, timeline
from dptune.whatif.hosts import are_crowded, hosts_of
from dptune.whatif.link import link_figures, link_of

# Of a collective beside compute. What a whole step lacks shows little of it where ranks have cores of their own: in 40
# recordings over shaped links collectives in flight while all ranks computed took 0.9 to 1.1 times what the fit says,
# and what steps lacked said 1.0 to 1.5 and more. Of 32 changes predicted over such links effects were 3.0 % off in the
# mean with 1.2, and 3.2 with what the step says up to 1.5. Where ranks and threads share cores it is far more.
_BESIDE = 1.2
# What calling an operator takes on the slower rank of the runs that the constants of wrappers are from: 2.4 to 3.2 us.
# On the other it took 1.5 to 3.0 us: cores that share execution units are faster while one of them waits.
USUAL_CALL_NS = 2800.0
# Where ranks share the cores of one host with the threads that communicate, what is in flight waits for a core.
_MOST_BESIDE, _HALVINGS = 6.0, 6
# What a pass takes whatever the batch, besides what its thread takes between operators: calling one, so many times what
# one takes that only looks at memory in another way, or so long where a trace has none of those; and each byte of the
# parameters, which is read twice and whose gradient is written and added (torch 2.13, one core; models of 1.6, 2.7 and
# 4.0 MB, batches of 16 to 256 doubled: 1.3 to 2.7 ms more than operators' calls for 4.0 MB in three layers). Of a model
# of 33 kB with batches of 9, 94 and 98 % of what passes computed did not grow with 8 times the batch (on a machine that
# called operators half as quickly, and on one as quick as that); 1.5 us for each operator alone predicted 43 and 80 %.
# Operators that prepare samples on the same thread are not part of a pass: with them, 80 instead of 40 % of a
# convolutional model's passes did not grow, and for 8 times its batch 208 ms were predicted; it took 413 (without them
# the prediction was 262 to 497).
OPERATOR_VIEWS, OPERATOR_NS, PARAMETER_NS = 1.9, 1500.0, 0.45
ALL = slice(None)


@dataclass(frozen=True)
class Recorded:
    """What a run shows of its steps: the parts of the traced ones, and the facts, by rank.

    `crowded`: whether all ranks are on one host with no core but their own. `latency` is in the link's already.
    """

    facts: Mapping[int, Facts]
    timelines: Mapping[int, Timeline]
    ddp: DdpFacts
    link: Link
    samples: float | None
    crowded: bool = False
    latency: Latency = field(default_factory=Latency)

    def model(self, part: slice = ALL) -> StepModel:
        """The step model, from all steps or from a part of them."""
        passes = {tuple(len(step.passes) for step in rank_timeline.steps) for rank_timeline in self.timelines.values()}
        if len(passes) > 1:
            raise Missing("ranks run different numbers of backward passes in the same steps")
        facts = {rank: part_of(rank_facts, part) for rank, rank_facts in self.facts.items()}
        stretch = {rank: stretched(rank_facts) for rank, rank_facts in facts.items()}
        sizes = tuple(self.ddp.gradient_sizes[index] for index in self.ddp.grad_ready_order)
        copy_ns = median(
            rank_timeline.copy_ns / stretch[rank].backward for rank, rank_timeline in self.timelines.items()
        )
        traced = self._traced(part, sizes)
        others = round(median(rank_timeline.others for rank_timeline in self.timelines.values()))
        others_ns = {
            rank: rank_timeline.others_ns / stretch[rank].rest for rank, rank_timeline in self.timelines.items()
        }
        return replace(
            traced,
            steps={
                rank: _untraced(rank_timeline, part, stretch[rank], facts[rank])
                for rank, rank_timeline in self.timelines.items()
            },
            start_ns=median(
                rank_timeline.start_ns / stretch[rank].backward for rank, rank_timeline in self.timelines.items()
            ),
            copy_ns_per_byte=copy_ns / max(1, sum(sizes)),
            fixed_share=fixed_share(self.timelines, stretch, sum(sizes)),
            loading=loading_of(facts),
            samples=self.samples,
            low_rank=low_rank_of(self.ddp),
            dtype=next(iter(self.ddp.gradient_dtypes), None),
            hosts=hosts_of(self.facts),
            others=others,
            others_ns=others_ns,
            buffers_ns=_buffers_ns(self.ddp, next(iter(traced.steps.values()))[0], others, others_ns),
            wrapper_times=call_times(facts),
        )

    def _traced(self, part: slice, sizes: tuple[int, ...]) -> StepModel:
        """The model of the traced steps in their own time.

        All of it but the collective is as recorded, so where ranks share cores how much longer they took than it says
        gives by how much a collective is slower while ranks compute.
        """
        timelines = self.timelines.values()
        model = StepModel(
            steps={
                rank: rank_timeline.steps[part] or rank_timeline.steps for rank, rank_timeline in self.timelines.items()
            },
            gradient_bytes=sizes,
            caps=caps_of(self.ddp),
            link=self.link,
            start_ns=median(rank_timeline.start_ns for rank_timeline in timelines),
            copy_ns_per_byte=median(rank_timeline.copy_ns for rank_timeline in timelines) / max(1, sum(sizes)),
            slowdown=median(rank_timeline.slowdown for rank_timeline in timelines),
            latency=self.latency,
            least_cap_bytes=max((facts.least_bucket_bytes for facts in self.facts.values()), default=0),
        )
        if not self.crowded:
            return replace(model, beside=_BESIDE)
        took = median(
            median(rank_timeline.durations_ns[part] or rank_timeline.durations_ns) for rank_timeline in timelines
        )
        low, high = 1.0, _MOST_BESIDE
        if step_ns(model) >= took:
            return model
        for _ in range(_HALVINGS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if step_ns(replace(model, beside=middle)) < took else (low, middle)
        return replace(model, beside=(low * high) ** 0.5)


def read(run: Run, measured: Measured) -> Recorded:
    """What the run shows. Raises Missing with the reason where that is not enough for a model."""
    facts = facts_of(run, measured)
    ddp = ddp_of(facts[0])
    timelines = {}
    for rank in run.ranks:
        window = facts[rank.rank].window("light")
        timelines[rank.rank] = timeline(view(rank.rank, rank.light, window), computed_ns(window))
        _check(timelines[rank.rank], len(ddp.grad_ready_order), rank.rank)
    samples, _ = samples_per_step(list(run.facts.values()), run.world_size)
    figures = link_figures(measured)
    crowded = (ddp.backend or "gloo") == "gloo" and are_crowded(facts)
    link = link_of(figures, ddp.backend or "gloo")
    latency = latency_of(seen(timelines, bucket_sizes(ddp), link), figures, link, crowded)
    return Recorded(facts, timelines, ddp, latency.on(link), samples, crowded, latency)


def facts_of(run: Run, measured: Measured) -> dict[int, Facts]:
    """The facts of all ranks of a run on CPUs, by rank. Raises Missing where some lack, or have no untraced steps."""
    if not run.facts:
        raise Missing("untraced step times are unknown: they need a `dptune profile` recording")
    if measured.device_kind != "cpu":
        raise Missing("this step model is for CPU training")
    if {rank.rank for rank in run.ranks} != set(range(measured.world_size)):
        raise Missing(f"{len(run.ranks)} of {measured.world_size} ranks were read")
    lacking = sorted({rank.rank for rank in run.ranks} - run.facts.keys())
    if lacking:
        raise Missing(f"rank {lacking[0]} has a trace but no facts")
    facts = {rank.rank: run.facts[rank.rank] for rank in run.ranks}
    for rank_facts in facts.values():
        untraced(rank_facts)
    return facts


def call_times(facts: Mapping[int, Facts]) -> float:
    """How many times as long calling an operator takes as where the constants of wrappers are from; 1 if not known."""
    known = [rank_facts.call_ns for rank_facts in facts.values() if rank_facts.call_ns]
    return max(known) / USUAL_CALL_NS if known else 1.0


def _buffers_ns(ddp: DdpFacts, step: RankStep, others: int, others_ns: Mapping[int, float]) -> dict[int, float]:
    """What sending buffers takes of a forward pass, by rank, where passes communicate nothing else outside of backward.

    They travel in one broadcast, or one for each of two types.
    """
    sending = sum(bool(pass_.ready_ns) for pass_ in step.passes)
    if not (ddp.broadcast_buffers and ddp.buffer_bytes and sending) or others not in (sending, 2 * sending):
        return {}
    return {rank: ns / sending for rank, ns in others_ns.items()}


def part_of(facts: Facts, part: slice) -> Facts:
    """The facts with only a part of the steps of their untraced window."""
    return replace(
        facts, windows=[_cut(window, part) if window.name == "untraced" else window for window in facts.windows]
    )


def _cut(window: Window, part: slice) -> Window:
    """The window with a part of its steps: every list of them is cut alike."""
    lists = {field.name: getattr(window, field.name) for field in fields(window)}
    cut = {name: values[part] for name, values in lists.items() if name in PER_STEP and values}
    return replace(window, durations_ns=window.durations_ns[part], **cut)


class Parted(Protocol):
    """The recorded steps of a rank."""

    @property
    def steps(self) -> Sequence[RankStep]:
        """Its steps in their parts."""

    @property
    def calls(self) -> OperatorCalls:
        """What calling operators takes."""


def fixed_share(timelines: Mapping[int, Parted], stretch: Mapping[int, Stretch], total: int) -> float:
    """The part of forward and backward that grows with no batch: the median over ranks. `total`: gradients' bytes."""
    shares = []
    for rank, rank_timeline in timelines.items():
        computed = median(
            sum(pass_.forward_ns - pass_.sent_ns + pass_.backward_ns for pass_ in step.passes)
            for step in rank_timeline.steps
        )
        passes = median(len(step.passes) for step in rank_timeline.steps)
        calls = rank_timeline.calls
        calling = calls.view_ns * OPERATOR_VIEWS or OPERATOR_NS * stretch[rank].rest
        fixed = calls.between_ns + calls.operators * calling + calls.hooks_ns
        fixed += passes * total * PARAMETER_NS * stretch[rank].rest
        shares.append(min(1.0, fixed / max(1.0, computed)))
    return median(shares)


def loading_of(facts: Mapping[int, Facts]) -> Loading | None:
    """How batches come, of the rank that waits longest: the others wait for it; None where not from one loader."""
    first = max(facts.values(), key=loader_waits)
    loaders = [rank_loader for rank_loader in first.loaders if rank_loader.batches_drawn]
    window = first.window("untraced")
    if len(loaders) != 1 or window is None or not loaders[0].batch_size:
        return None
    (loader,) = loaders
    sizes = {
        rank_loader.batch_size
        for rank_facts in facts.values()
        for rank_loader in rank_facts.loaders
        if rank_loader.batches_drawn
    }
    batches, waited = sum(window.loader_batches), sum(window.loader_wait_ns)
    cores = first.device.usable_cores if first.device and first.device.usable_cores else 1
    neighbours = sum(rank_facts.host == first.host for rank_facts in facts.values())
    prepare = waited / batches if batches and not loader.num_workers else None
    return Loading(
        batch=(loader.batch_size or 0) if len(sizes) == 1 else None,
        workers=loader.num_workers or 0,
        prepare_ns=prepare,
        computing=sum(window.loader_cpu_ns) / waited if waited else 0.0,
        cores_per_rank=cores / max(1, neighbours),
        epoch=loader.epoch_batches(first.world_size),
        persistent=bool(loader.persistent_workers),
        sharded=bool(loader.distributed_sampler),
    )


def _check(rank_timeline: Timeline, gradients: int, rank: int) -> None:
    for step in rank_timeline.steps:
        for pass_ in step.passes:
            if pass_.ready_ns and len(pass_.ready_ns) != gradients:
                raise Missing(
                    f"{len(pass_.ready_ns)} gradients become ready in a step of rank {rank}, but {gradients} are "
                    f"known: some are unused, or ready twice"
                )


def _untraced(rank_timeline: Timeline, part: slice, stretch: Stretch, facts: Facts) -> list[RankStep]:
    """The steps of a rank as they would be without the profiler: a part of them, or all if they are too few for one."""
    waits = loader_waits(facts)
    steps = []
    for step in rank_timeline.steps[part] or rank_timeline.steps:
        passes = []
        for pass_ in step.passes:
            plain = pass_.scaled(1 / stretch.backward)
            forward_ns, sent_ns = pass_.forward_ns / stretch.rest, pass_.sent_ns / stretch.rest
            passes.append(replace(plain, loader_ns=waits / len(step.passes), forward_ns=forward_ns, sent_ns=sent_ns))
        steps.append(RankStep(tuple(passes), step.after_ns / stretch.rest))
    return steps
