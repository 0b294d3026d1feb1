"""A recorded run -> its step model, in unprofiled time.

The profiler slows what the script's thread does. By how much is told by the parts of a step in which nothing is
exchanged: all but the wait for batches and the backward pass, whose host times are recorded in the unprofiled window
and in the traced one alike. That factor is applied to what a rank computes, the backward pass included; never to the
exchange, which is by the link.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from dptune.measure.steps.accumulation import samples_per_step
from dptune.measure.views import view
from dptune.measured import LinkFigures, Measured, Missing
from dptune.runfile.facts import DdpFacts, Facts, Window
from dptune.trace.run import Run
from dptune.whatif.buckets import Caps
from dptune.whatif.model import Loading, RankStep, StepModel
from dptune.whatif.timeline import Timeline, timeline
from dptune.whatif.wire import Link

_GLOO_LANES = 2  # threads of a process group of gloo
_OPERATOR_NS = 1500.0  # that calling an operator takes, however much it computes: assumed, not measured
_OLD = "the run was recorded by a dptune that did not yet record it: record it again"


def build(run: Run, measured: Measured) -> StepModel:
    """The model. Raises Missing with the reason where the run does not tell enough."""
    if not run.facts:
        raise Missing("only a run that `dptune profile` recorded says how long unprofiled steps are")
    if measured.device_kind != "cpu":
        raise Missing("the step model is of steps that a CPU computes")
    if {rank.rank for rank in run.ranks} != set(range(measured.world_size)):
        raise Missing(f"{len(run.ranks)} of {measured.world_size} ranks were read")
    ddp = _ddp(run.facts[min(run.facts)])
    timelines = {
        rank.rank: timeline(view(rank.rank, rank.lean, run.facts[rank.rank].window("lean"))) for rank in run.ranks
    }
    stretch = {rank: stretched(run.facts[rank]) for rank in timelines}
    gradients = tuple(ddp.gradient_sizes[index] for index in ddp.grad_ready_order)
    for rank, own in timelines.items():
        _check(own, len(gradients), rank)
    copy_ns = median(own.copy_ns for own in timelines.values())
    samples, _ = samples_per_step(list(run.facts.values()), run.world_size)
    return StepModel(
        steps={rank: _unprofiled(own, stretch[rank], run.facts[rank]) for rank, own in timelines.items()},
        gradient_bytes=gradients,
        caps=_caps(ddp),
        link=_link(link_figures(measured), ddp.backend or "gloo"),
        start_ns=median(own.start_ns / stretch[rank] for rank, own in timelines.items()),
        copy_ns_per_byte=copy_ns / max(1, sum(gradients)),
        fixed_share=_fixed_share(timelines, stretch),
        loading=_loading(run.facts),
        samples=samples,
    )


def _fixed_share(timelines: dict[int, Timeline], stretch: dict[int, float]) -> float:
    """The part of forward and backward that calls of operators take: the median over ranks."""
    shares = []
    for rank, own in timelines.items():
        computed = median(sum(one.forward_ns + one.backward_ns for one in step.passes) for step in own.steps)
        shares.append(min(1.0, own.operators * _OPERATOR_NS * stretch[rank] / max(1.0, computed)))
    return median(shares)


def _loading(facts: dict[int, Facts]) -> Loading | None:
    """How batches come, of the first rank; None where it drew from no loader or from several."""
    first = facts[min(facts)]
    loaders = [one for one in first.loaders if one.batches_drawn]
    window = first.window("unprofiled")
    if len(loaders) != 1 or window is None or not loaders[0].batch_size:
        return None
    (loader,) = loaders
    batches, waited = sum(window.loader_batches), sum(window.loader_wait_ns)
    cores = first.device.usable_cores if first.device and first.device.usable_cores else 1
    neighbours = sum(own.host == first.host for own in facts.values())
    prepare = waited / batches if batches and not loader.num_workers else None
    return Loading(
        batch=loader.batch_size or 0,
        workers=loader.num_workers or 0,
        prepare_ns=prepare,
        computing=sum(window.loader_cpu_ns) / waited if waited else 0.0,
        cores_per_rank=cores / max(1, neighbours),
    )


def stretched(facts: Facts) -> float:
    """How many times as long as without the profiler a rank's own thread takes in the traced window."""
    plain, traced = (_alone_ns(facts.window(name)) for name in ("unprofiled", "lean"))
    if plain is None or traced is None:
        raise Missing(f"time in backward passes is not known: {_OLD}")
    if plain <= 0:
        raise Missing("an unprofiled step holds nothing beside its backward passes")
    return traced / plain


def _alone_ns(window: Window | None) -> float | None:
    """What a step takes beside its waits for batches and its backward passes: the median over steps."""
    if window is None or not window.steps or len(window.backward_ns) != window.steps:
        return None
    parts = zip(window.durations_ns, window.loader_wait_ns, window.backward_ns, strict=True)
    return median(whole - loader - backward for whole, loader, backward in parts)


def _ddp(facts: Facts) -> DdpFacts:
    modules = facts.ddp
    if len(modules) != 1:
        raise Missing(f"the script has {len(modules)} modules of DistributedDataParallel; the model is of one")
    (ddp,) = modules
    if not ddp.gradient_sizes:
        raise Missing(f"sizes of gradients are not known: {_OLD}")
    if not ddp.grad_ready_order or max(ddp.grad_ready_order) >= len(ddp.gradient_sizes):
        raise Missing("the order in which gradients become ready was not recorded")
    if ddp.comm_hook:
        raise Missing(f"gradients are exchanged by a communication hook ({ddp.comm_hook})")
    return ddp


def _caps(ddp: DdpFacts) -> Caps:
    if ddp.bucket_caps_bytes:
        return Caps(tuple(ddp.bucket_caps_bytes))
    if ddp.bucket_cap_bytes is None or ddp.first_bucket_bytes is None:
        raise Missing(f"the sizes that were asked for buckets are not known: {_OLD}")
    return Caps((ddp.first_bucket_bytes, ddp.bucket_cap_bytes))


def _check(own: Timeline, gradients: int, rank: int) -> None:
    for step in own.steps:
        for one in step.passes:
            if one.ready_ns and len(one.ready_ns) != gradients:
                raise Missing(
                    f"{len(one.ready_ns)} gradients become ready in a step of rank {rank}, and {gradients} are known: "
                    "some are unused, or come twice"
                )


def _unprofiled(own: Timeline, stretch: float, facts: Facts) -> list[RankStep]:
    """The steps of a rank as they would be without the profiler."""
    waits = _loader_waits(facts)
    steps = []
    for step in own.steps:
        passes = (replace(one.scaled(1 / stretch), loader_ns=waits / len(step.passes)) for one in step.passes)
        steps.append(RankStep(tuple(passes), step.after_ns / stretch))
    return steps


def _loader_waits(facts: Facts) -> float:
    window = facts.window("unprofiled")
    return median(window.loader_wait_ns) if window and window.loader_wait_ns else 0.0


def _link(figures: LinkFigures, backend: str) -> Link:
    return Link(figures.alpha_us * 1e3, figures.algbw_gb_per_s, _GLOO_LANES if backend == "gloo" else 1)


def link_figures(measured: Measured) -> LinkFigures:
    """The link that all-reduces go over: by `dptune links`, else by what the trace shows."""
    fitted = [one for one in measured.links if one.kind == "all_reduce" and one.known("algbw_gb_per_s")]
    if not fitted:
        raise Missing("the latency and bandwidth of all-reduces are not known: measure them with `dptune links`")
    return min(fitted, key=lambda one: (one.basis != "sweep", -len(one.ranks)))
