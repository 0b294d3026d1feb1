"""A recorded run of fully_shard -> its step model, in untraced time.

Collectives take as long in traced steps as in others, so what a traced step takes longer is compute: the profiler
slows the script's thread, all of its compute alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from statistics import median

from dptune.measure.steps.accumulation import samples_per_step
from dptune.measure.views import view
from dptune.measured import Measured, Missing
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import Facts
from dptune.trace.run import Run
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.building import ALL, call_times, facts_of, fixed_share, loading_of, part_of
from dptune.whatif.cpu.hybrid import seen
from dptune.whatif.cpu.latency import latency_of
from dptune.whatif.cpu.model import Latency, RankStep, StepModel
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.steadied import steadied
from dptune.whatif.cpu.step_times import NOT_RECORDED, Stretch, loader_waits
from dptune.whatif.cpu.unit_timeline import UnitTimeline, unit_timeline
from dptune.whatif.cpu.units import Hybrid, Kind, Sharding, element_bytes
from dptune.whatif.hosts import are_crowded, hosts_of
from dptune.whatif.link import link_figures, link_of

_OF_GROUPS = "the run's own collectives of units, within and between groups of ranks"
_STRATEGIES = {"FULL_SHARD", "SHARD_GRAD_OP"}
_LEAST_COMPUTE = 0.25  # of traced compute, that untraced steps have: where less is left, their collectives were shorter


@dataclass(frozen=True)
class RecordedUnits:
    """What a run shows of its steps: the parts of the traced ones, and the facts, by rank.

    `latency` is in the link's already. Ranks that share cores are not `crowded`: a thread waits for its collectives.
    """

    facts: Mapping[int, Facts]
    timelines: Mapping[int, UnitTimeline]
    sharding: Sharding
    link: Link
    samples: float | None
    crowded: bool = False
    latency: Latency = field(default_factory=Latency)

    def model(self, part: slice = ALL) -> StepModel:
        """The step model, from all steps or from a part of them."""
        facts = {rank: part_of(rank_facts, part) for rank, rank_facts in self.facts.items()}
        timelines = self.timelines
        steps = {rank: steadied(rank_timeline.steps) for rank, rank_timeline in timelines.items()}
        slowed = {
            rank: median(map(_computed_ns, steps[rank])) / _untraced_ns(rank_timeline, facts[rank])
            for rank, rank_timeline in timelines.items()
        }
        first, *_ = timelines[min(timelines)].steps
        sizes = {call.unit: call.message_bytes for pass_ in first.passes for call in pass_.calls}
        stretch = {rank: Stretch(times, times) for rank, times in slowed.items()}
        return StepModel(
            steps={
                rank: [
                    _untraced(step, slowed[rank], loader_waits(facts[rank])) for step in rank_steps[part] or rank_steps
                ]
                for rank, rank_steps in steps.items()
            },
            gradient_bytes=(),
            caps=Caps.of(),
            link=self.link,
            latency=self.latency,
            fixed_share=fixed_share(timelines, stretch, round(sum(sizes.values()))),
            loading=loading_of(facts),
            samples=self.samples,
            hosts=hosts_of(self.facts),
            others=round(median(rank_timeline.others for rank_timeline in timelines.values())),
            others_ns={rank: rank_timeline.others_ns / slowed[rank] for rank, rank_timeline in timelines.items()},
            sharding=replace(self.sharding, hooks_ns=self._hooks_ns(slowed)),
            link_source=_OF_GROUPS if self.sharding.hybrid else "",
            wrapper_times=call_times(facts),
        )

    def _hooks_ns(self, slowed: Mapping[int, float]) -> tuple[float, float]:
        """The medians over ranks, in untraced time."""
        forward, backward = (
            median(rank_timeline.hooks_ns[at] / slowed[rank] for rank, rank_timeline in self.timelines.items())
            for at in (0, 1)
        )
        return forward, backward


def read(run: Run, measured: Measured) -> RecordedUnits:
    """What the run shows. Raises Missing with the reason where that is not enough for a model."""
    facts = facts_of(run, measured)
    sharded = _sharded(facts[0], measured.world_size)
    sizes = _sizes(sharded)
    timelines = {
        rank.rank: unit_timeline(view(rank.rank, rank.light, facts[rank.rank].window("light")), sizes, _order(sharded))
        for rank in run.ranks
    }
    sequences = {
        tuple(tuple((call.kind, call.direction, call.unit) for call in pass_.calls) for pass_ in step.passes)
        for rank_timeline in timelines.values()
        for step in rank_timeline.steps
    }
    if len(sequences) > 1:
        raise Missing("units do not issue the same collectives in every step and on every rank")
    hybrid = _hybrid(sharded[0].mesh, timelines, sizes)
    link, latency = (hybrid.within, Latency()) if hybrid else _linked(facts, measured)
    samples, _ = samples_per_step(list(run.facts.values()), run.world_size)
    names = timelines[min(timelines)].names
    tensors = sum(optimizer.parameter_tensors for optimizer in facts[0].optimizers)
    dtypes = sharded[0].parameter_dtype, sharded[0].reduce_dtype
    sharding = Sharding(names, *dtypes, tensors, hybrid=hybrid)
    return RecordedUnits(facts, timelines, sharding, latency.on(link), samples, latency=latency)


def _linked(facts: Mapping[int, Facts], measured: Measured) -> tuple[Link, Latency]:
    """The link of all-reduces among all ranks, one at a time, and its latency while they train."""
    figures = link_figures(measured)
    link = replace(link_of(figures, "gloo"), lanes=1)
    latency = latency_of(None, figures.model_copy(update={"queued": []}), link, are_crowded(facts))
    return link, Latency(latency.alone, why=latency.why if latency.alone != 1 else "")


def _hybrid(
    mesh: Sequence[int], timelines: Mapping[int, UnitTimeline], sizes: Mapping[Kind, Mapping[str, float]]
) -> Hybrid | None:
    """The groups of a two-dimensional mesh, and the links that the run's collectives show; None of another mesh.

    A collective takes what it takes on the rank of its group that waits least. Raises Missing where some reductions
    are not all-reduced between the groups.
    """
    if len(mesh) < 2:
        return None
    shards = mesh[-1]
    within: list[tuple[float, float]] = []
    between: list[tuple[float, float]] = []
    ranks = [rank for rank, _ in sorted(timelines.items())]
    for flights in zip(*(timelines[rank].flights for rank in ranks), strict=False):
        kind, size = flights[0].kind, sizes[flights[0].kind][flights[0].unit]
        times = 2 if kind == "gather" else 1  # a gather is half of an all-reduce
        groups = [flights[at : at + shards] for at in range(0, len(flights), shards)]
        within += [(size, float(times * min(flight.within_ns for flight in group))) for group in groups]
        if kind == "gather":
            continue
        if not all(flight.between_ns for flight in flights):
            raise Missing("some reductions are not all-reduced between groups of ranks (set_requires_all_reduce)")
        between += [(size, float(min(flight.between_ns for flight in flights[at::shards]))) for at in range(shards)]
    return seen(shards, within, between)


def _sharded(facts: Facts, world_size: int) -> Sequence[FsdpFacts]:
    """What is sharded, but for roots without parameters of their own. Raises Missing where that is not modelled."""
    sharded = [fsdp for fsdp in facts.fsdp if fsdp.mesh]
    if facts.ddp:
        raise Missing("some modules are replicated and others sharded; the step model covers one kind")
    if not sharded or len({fsdp.version for fsdp in sharded}) > 1:
        raise Missing("the step model of CPU runs covers either fully_shard or FullyShardedDataParallel")
    if sharded[0].version == 1:
        _check_flat(sharded)
    if any(len(fsdp.mesh) > 2 or prod(fsdp.mesh) != world_size for fsdp in sharded):
        raise Missing("units are sharded over only some of the ranks, which the step model does not cover")
    if len({tuple(fsdp.mesh) for fsdp in sharded}) > 1:
        raise Missing("units are sharded over different meshes, which the step model does not cover")
    if len({(fsdp.parameter_dtype, fsdp.reduce_dtype) for fsdp in sharded}) > 1:
        raise Missing("units have different mixed-precision policies")
    return sharded


def _check_flat(sharded: Sequence[FsdpFacts]) -> None:
    """Raise Missing for what the step model does not cover of FullyShardedDataParallel."""
    strategies = {fsdp.strategy for fsdp in sharded}
    if not strategies <= _STRATEGIES:
        raise Missing(f"the step model covers {' and '.join(sorted(_STRATEGIES))} of FullyShardedDataParallel")
    if any(fsdp.offload for fsdp in sharded):
        raise Missing("FullyShardedDataParallel with offloaded parameters is not modelled")
    if any(len(fsdp.order) != len(fsdp.names) for fsdp in sharded):
        raise Missing("the order of units in forward passes was not recorded")


def _order(sharded: Sequence[FsdpFacts]) -> list[str]:
    """The units of FullyShardedDataParallel in the order of forward passes; none of fully_shard, which names them."""
    if sharded[0].version == 2:
        return []
    placed = (each for fsdp in sharded for each in zip(fsdp.order, fsdp.names, strict=True))
    return [name for _, name in sorted(placed)]


def _sizes(sharded: Sequence[FsdpFacts]) -> dict[Kind, dict[str, float]]:
    """Bytes of each unit by its path: as it is gathered, and as its gradients are reduced."""
    gathered: dict[str, float] = {}
    for fsdp in sharded:
        gathered.update(zip(fsdp.names, map(float, fsdp.gathered_bytes), strict=False))
    if not gathered:
        raise Missing(f"the sizes of units are unknown: {NOT_RECORDED}")
    dtype, reduced_dtype = (sharded[0].parameter_dtype, sharded[0].reduce_dtype)
    times = element_bytes(reduced_dtype or dtype) / element_bytes(dtype)
    return {"gather": gathered, "reduce": {name: times * size for name, size in gathered.items()}}


def _untraced_ns(rank_timeline: UnitTimeline, facts: Facts) -> float:
    """What a rank computes in an untraced step: a traced one, without what it takes longer than an untraced one."""
    plain, traced = (facts.window(name) for name in ("untraced", "light"))
    if plain is None or traced is None or not (plain.loader_wait_ns and traced.loader_wait_ns):
        raise Missing("the time waiting for the data loader is unknown")
    steps_ns = [median(window.durations_ns) - median(window.loader_wait_ns) for window in (plain, traced)]
    computed_ns = median(map(_computed_ns, rank_timeline.steps))
    return max(_LEAST_COMPUTE * computed_ns, computed_ns - (steps_ns[1] - steps_ns[0]))


def _computed_ns(step: RankStep) -> float:
    return step.after_ns + sum(pass_.forward_ns + pass_.backward_ns for pass_ in step.passes)


def _untraced(step: RankStep, slowed: float, waits_ns: float) -> RankStep:
    """The step as it would be without the profiler."""
    passes = (replace(pass_.scaled(1 / slowed), loader_ns=waits_ns / len(step.passes)) for pass_ in step.passes)
    return RankStep(tuple(passes), step.after_ns / slowed)
