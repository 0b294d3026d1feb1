"""A run -> every figure that a rule may read."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dptune.errors import TraceError
from dptune.measure import load, platform, straggler
from dptune.measure.across_ranks import Across, across, known_hosts
from dptune.measure.communication import (
    bucket_copies,
    buffers,
    links,
    overlap,
    process_groups,
    sharding,
)
from dptune.measure.communication.calls import Call
from dptune.measure.complete import complete_views
from dptune.measure.delayed import UNSEEN, delayed
from dptune.measure.device import accounts, copies, critical, gaps, longest, matmul, memory, phases
from dptune.measure.device.operator_kinds import memory_bound_share
from dptune.measure.device.tensor_memory import NO_ALLOCATIONS, tensor_memory
from dptune.measure.efficiency import figures as efficiency
from dptune.measure.efficiency.source import Source, source_of
from dptune.measure.efficiency.tokens import given_per_step
from dptune.measure.host import (
    attention,
    attribution,
    compiling,
    compute_functions,
    generation,
    launch_idle,
    launching,
    optimizer_loops,
    script_places,
    user_code,
    wait_sites,
)
from dptune.measure.host.callers import has_stacks
from dptune.measure.inferred import inferred_accumulation, inferred_facts, inferred_samples, inferred_world_size
from dptune.measure.outliers.devices import kernel_times
from dptune.measure.outliers.figures import FEW, outliers
from dptune.measure.rank_figures import rank_figures
from dptune.measure.shard_units.figures import only_recorded, shard_units
from dptune.measure.steps import accumulation, groups, input_wait, noise, steady, tails
from dptune.measure.steps import times as steptime
from dptune.measure.synchronous import uneven_steps
from dptune.measure.tables import tables
from dptune.measure.views import MANY_EVENTS, RankView, detailed_view
from dptune.measured import (
    AccumulationFigures,
    CriticalPath,
    EagerAttention,
    InferredFacts,
    Measured,
    RankFigures,
    StragglerFigures,
    TensorMemory,
    UserCodeFigures,
)
from dptune.runfile.facts import Facts
from dptune.trace.run import Run


@contextmanager
def _without_collection() -> Iterator[None]:
    """Python's search for cyclic garbage is paused: measuring makes hardly any, and each search visits all objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collection()
def measure(
    run: Run, sweep: links.Sweep | None = None, tokens: int | None = None, samples: int | None = None
) -> Measured:
    """All figures of a run; one that could not be measured says why under `missing`.

    `sweep` is what `dptune links` measured; it is left out if it does not fit the run. `tokens`, `samples`: per step
    over all ranks, from the user; else those that the recording was given. Recorded samples win over given ones.
    """
    tokens, given = given_per_step(run.record, tokens, samples)
    facts = list(run.facts.values())
    viewed = [*complete_views(run)]
    views, aside = steady.steady(viewed)
    accounted, cut = tails.cut_short(views)
    taken = groups.turns(views)
    accounted, surplus = groups.whole_periods(accounted, taken)
    views = accounted if surplus else views
    read, read_accounted = ([view for view in each if view.whole] for each in (views, accounted))
    stepped = _stepped(read_accounted)
    together = across(run, views, accounted)
    by_rank = {rank_view.rank: rank_view for rank_view in accounted}
    waits = {rank: input_wait.waits(run.facts.get(rank), by_rank.get(rank)) for rank in _ranks(run)}
    account = accounts.total([device for rank in together.devices.values() for device in rank])
    no_steps = next((rank_view.no_steps for rank_view in views if rank_view.no_steps), "no trace was recorded")
    late: StragglerFigures | str = no_steps
    if account is not None:
        late, arrived = straggler.straggler(run, read_accounted, together, account)
        together = replace(together, arrivals=arrived)
    backend, no_backend = platform.backend(facts, read)
    device_kind, no_device = platform.device_kind(facts, read)
    lost = {rank_view.rank: list(rank_view.losses) for rank_view in viewed}
    for rank, loss in (*together.uneven, *uneven_steps(run.facts).items()):
        lost.setdefault(rank, []).append(loss)
    ranks = [rank_figures(rank, run, together, waits[rank], lost.get(rank, [])) for rank in _ranks(run)]
    detail = _detailed(run)
    stacked = detail or _stacked(run, stepped)
    times = {rank_view.rank: kernel_times(rank_view) for rank_view in _stepped(viewed)}
    tabled = tables(run, views, accounted, together, detail)
    spent = [each for each in together.spent if each[0].whole]
    windowed = [each for each in spent if each[1].windows]
    phased = together.phased
    names = {str(rank.device_name) for rank in ranks if rank.known("device_name")}
    noisy = noise.noise(facts, run.world_size)
    loads = load.load(facts, run.world_size)
    step = steptime.step_time(facts, accounted, run.repeats, accounts.mean_step_ns(account, together.devices))
    source = source_of(run, detail, stepped, tabled.views) if stepped or tabled.whole else no_steps
    world_size = run.world_size or process_groups.default_size(together.calls) or _alone(run, views)
    inferred, not_inferred = _inferred(run, read, together, source)
    passes = _accumulation(run, read, together, no_steps)
    read_account = accounts.total([device for view in read_accounted for device in together.devices.get(view.rank, [])])
    overlapped = None if read_account is None else overlap.overlap(windowed, together.ran, phased, read_account)
    units, no_units = shard_units(windowed, phased, together.calls, together.collectives, run.facts)
    parallel = process_groups.process_groups(viewed, overlapped.rows if overlapped else [], world_size)
    replicas = process_groups.replicas(parallel, world_size)
    samples, no_samples = _samples(run, read, together, inferred or not_inferred, passes, replicas, source, given)
    rates_of = efficiency.Steps(
        *(step, account, tabled.kernels, world_size, replicas, samples, no_samples, tokens, together.gpus, names),
        memory_bound_share=memory_bound_share(tabled.views) if device_kind == "cpu" else None,
    )
    fitting = sweep if sweep is not None and sweep.fits(backend, run.world_size) else None
    figures = {
        "world_size": (
            world_size,
            "neither the recording nor the traces show how many ranks the run had",
        ),
        "backend": (backend, no_backend),
        "device_kind": (device_kind, no_device),
        "samples_per_step": (samples, no_samples),
        "steps": (steady.figures(accounted, aside, cut, tails.queued_before_ns(accounted), taken, surplus), no_steps),
        "account": (account, no_steps),
        "collectives": (tabled.collectives, no_steps),
        "links": (
            links.links(together.collectives, together.calls, ranks, fitting),
            no_steps if not stepped else links.ONE_RANK if world_size == 1 else links.NO_COLLECTIVE,
        ),
        "straggler": (None, late) if isinstance(late, str) else (late, ""),
        "outliers": (
            None
            if account is None
            else outliers(_stepped(accounted), times, together, known_hosts(run), account, parallel),
            no_steps if account is None else FEW,
        ),
        "gaps": (gaps.gaps(spent) if stepped else None, no_steps),
        "path": (_path(stepped, ranks), critical.NO_PATH if stepped else no_steps),
        "launching": (
            launching.launching((rank_view, device) for rank_view, device, _ in spent),
            launching.NO_LAUNCHES if stepped else no_steps,
        ),
        "wait_sites": (
            script_places.in_each(wait_sites.wait_sites(stepped, detail) if stepped else None, run.facts.values()),
            no_steps,
        ),
        "launch_idle": (
            launch_idle.launch_idle(windowed, phased),
            launch_idle.NONE_WAITED if windowed else no_steps,
        ),
        "compiling": (compiling.compiling(stepped), no_steps),
        "phases": (
            phases.phases(windowed, phased) if windowed and not isinstance(phased, str) else None,
            phased if windowed and isinstance(phased, str) else no_steps,
        ),
        "overlap": (
            overlapped,
            no_steps if read_account is None else overlap.NO_COMMUNICATION,
        ),
        "buffer_sync_share": (buffers.buffer_sync_share(read_accounted), buffers.NO_BUFFERS if stepped else no_steps),
        "delayed": (delayed(windowed, together.calls) if windowed else None, UNSEEN if windowed else no_steps),
        "bucket_copies": (
            bucket_copies.bucket_copies(windowed) if windowed else None,
            bucket_copies.NO_COPIES if windowed else no_steps,
        ),
        "sharding": (
            sharding.sharding(windowed, phased) if windowed and not isinstance(phased, str) else None,
            (phased if isinstance(phased, str) else sharding.NOT_SHARDED) if windowed else no_steps,
        ),
        "shard_units": (
            units,
            no_units if windowed else only_recorded(run.facts, no_steps),
        ),
        "attribution": (
            attribution.attribution(detail, next(iter(stepped), None)),
            attribution.NOTHING_SHOWN if stepped else no_steps,
        ),
        "user_code": (_user_code(run, stacked), user_code.NO_STACKS),
        "compute_functions": (
            script_places.in_each(
                compute_functions.compute_functions(_two_detailed(run, stacked)) if stacked else None,
                run.facts.values(),
            ),
            compute_functions.NO_STACKS,
        ),
        "attention": (_attention(run, detail, stepped), no_steps),
        "optimizer_loops": (
            script_places.in_optimizer_loops(
                optimizer_loops.optimizer_loops(_two_detailed(run, stacked), _untraced_ns(run)) if stacked else None,
                run.facts.values(),
            ),
            user_code.NO_STACKS,
        ),
        "generations": (
            script_places.in_each(
                generation.uncached_generations(_two_detailed(run, stacked)) if stacked else None, run.facts.values()
            ),
            user_code.NO_STACKS,
        ),
        "copies": (tabled.copies, copies.NO_LAUNCH if tabled.views else no_steps),
        "kernels": (tabled.kernels, "no kernel and no operator runs in the steps" if tabled.views else no_steps),
        "efficiency": (efficiency.efficiency(source, rates_of) if stepped or tabled.whole else None, no_steps),
        "inferred": (inferred, not_inferred),
        "load": (None, loads) if isinstance(loads, str) else (loads, ""),
        "noise": (None, noisy) if isinstance(noisy, str) else (noisy, ""),
        "tensor_memory": (_tensor_memory(run, next(iter(stepped), None), detail), NO_ALLOCATIONS),
        "memory": (
            memory.memory(_facts_of(run), read, detail, read_accounted) or None,
            "neither the recording nor the trace names a device",
        ),
    }
    return Measured.of(
        figures,
        samples_given=given is not None,
        tables_of="recording" if tabled.whole else "steps",
        process_groups=parallel,
        longest=longest.longest(windowed, phased),
        step=step,
        ranks=ranks,
        input=input_wait.input_figures(list(waits.values()), run.facts.values()),
        accumulation=passes,
        matmul=matmul.matmul(
            tabled.views if tabled.whole else read,
            next((rank_facts.device for rank_facts in facts if rank_facts.device), None),
            detail,
            names,
        ),
    )


def _tensor_memory(run: Run, first: RankView | None, detail: RankView | None) -> TensorMemory | None:
    read = detail or first
    facts = None if read is None else run.facts.get(read.rank)
    return tensor_memory(first, detail, facts.tensors if facts is not None else None)


def _inferred(
    run: Run, views: list[RankView], together: Across, source: Source | str
) -> tuple[InferredFacts | None, str]:
    """Facts of the lowest rank, by its trace, where none were recorded."""
    if run.facts:
        return None, "the facts were recorded"
    lowest = next(iter(views), None)
    if lowest is None or lowest.no_steps:
        return None, lowest.no_steps if lowest is not None else "no trace was recorded"
    return inferred_facts(lowest, _calls(lowest, together), run.world_size, source), ""


def _samples(
    run: Run,
    views: list[RankView],
    together: Across,
    inferred: InferredFacts | str,
    passes: AccumulationFigures,
    replicas: int | None,
    source: Source | str,
    given: int | None,
) -> tuple[int | None, str]:
    """The global batch: as recorded, else as given, else as the trace of the lowest rank shows it."""
    if run.facts:
        samples, why = accumulation.samples_per_step(list(run.facts.values()), run.world_size)
        return samples or given, why
    if given or isinstance(inferred, str):
        return given, str(inferred)
    sized, backwards = not isinstance(source, str), passes.known("backwards_per_step")
    return inferred_samples(views[0], _calls(views[0], together), replicas, inferred.batch, backwards, sized=sized)


def _alone(run: Run, views: list[RankView]) -> int | None:
    """World size 1 if there is a single trace and its process does not communicate; else None."""
    return None if run.facts or len(views) != 1 or not views[0].whole else inferred_world_size(views[0])


def _accumulation(run: Run, views: list[RankView], together: Across, no_steps: str) -> AccumulationFigures:
    if run.facts or not views or views[0].no_steps:
        return accumulation.accumulation(list(run.facts.values()), no_steps)
    return inferred_accumulation(views[0], _calls(views[0], together), run.world_size)


def _calls(view: RankView, together: Across) -> list[Call]:
    return [call for each in together.calls if each.rank == view.rank for call in each.calls]


def _path(views: list[RankView], ranks: list[RankFigures]) -> CriticalPath | None:
    """The path of the rank that waits least for the others."""
    waiting = {
        rank.rank: min(device.total.share("exposed_communication_ns") for device in rank.devices if device.steps)
        for rank in ranks
        if any(device.steps for device in rank.devices)
    }
    least = min(
        (rank_view for rank_view in views if rank_view.rank in waiting), key=lambda own: waiting[own.rank], default=None
    )
    return None if least is None else critical.critical(least)


def _stepped(views: list[RankView]) -> list[RankView]:
    return [rank_view for rank_view in views if not rank_view.no_steps]


def _ranks(run: Run) -> list[int]:
    return sorted(run.by_rank.keys() | run.facts)


def _facts_of(run: Run) -> dict[int, Facts]:
    """The facts of all ranks but those of which only a record was kept."""
    digested = {rank.rank for rank in run.digested}
    return {rank: facts for rank, facts in run.facts.items() if rank not in digested}


def _detailed(run: Run) -> RankView | None:
    """The detailed window of the first rank that has one with steps: they are large, and one stands for all."""
    for rank in run.ranks:
        if rank.detailed_source is None:
            continue
        try:
            rank_view = detailed_view(rank)
        except TraceError:  # its figures then come from elsewhere, or are missing
            return None
        return None if rank_view is None or rank_view.no_steps else rank_view
    return None


def _stacked(run: Run, stepped: list[RankView]) -> RankView | None:
    """The first trace that has Python's stacks, of a run that dptune did not record."""
    return None if run.facts else next((rank_view for rank_view in stepped if has_stacks(rank_view.columns)), None)


def _user_code(run: Run, first: RankView | None) -> UserCodeFigures | None:
    found = None if first is None else user_code.user_code(_two_detailed(run, first), _untraced_ns(run))
    return script_places.in_functions(found, run.facts.values())


def _attention(run: Run, first: RankView | None, stepped: list[RankView]) -> list[EagerAttention] | None:
    """From the detailed window, which has sizes and stacks, else from the first rank with steps."""
    if not stepped:
        return None
    found = attention.eager_attention(_two_detailed(run, first) if first else stepped[:1], _untraced_ns(run))
    return script_places.in_each(found, run.facts.values())


def _two_detailed(run: Run, first: RankView) -> list[RankView]:
    """The first two ranks with a detailed window: the second shows whether the first alone does something."""
    others = (rank for rank in run.ranks if rank.rank != first.rank and rank.detailed_source is not None)
    second = next(others, None)
    views = [first]
    with contextlib.suppress(TraceError):  # then the first alone counts
        if second is not None and first.trace.events <= MANY_EVENTS and (seen := detailed_view(second)) is not None:
            views.append(seen)
    return views


def _untraced_ns(run: Run) -> dict[int, float]:
    """The median step of each rank without the profiler, where it is known."""
    medians = {rank: steptime.median(steptime.durations(facts.window("untraced"))) for rank, facts in run.facts.items()}
    return {rank: ns for rank, ns in medians.items() if ns}
