"""Waiting for the data loader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from dptune.measure.views import RankView
from dptune.measured import InputFigures, PreparingFigures
from dptune.runfile.facts import Facts, LoaderFacts

_NO_LOADER = "no batch was drawn from a torch DataLoader in the unprofiled steps"
_NO_RANGES = "the trace has no DataLoader range: the script draws from no torch DataLoader, or it was not recorded"


def waits(facts: Facts | None, view: RankView | None) -> tuple[float, float, bool] | str:
    """Of one rank: share of the step, that share of its step time in ns, whether unprofiled; or why there is none.

    The step time is that of `StepTime`: the median of unprofiled steps, the mean of traced ones. Only unprofiled steps
    that drew the median number of batches count: between two epochs a step may contain a whole validation.
    """
    window = facts.window("unprofiled") if facts else None
    if window is not None and sum(window.durations_ns) > 0 and len(window.loader_wait_ns) == window.steps:
        if not any(window.loader_batches):
            return _NO_LOADER
        steps = window.usual_steps
        share = sum(window.loader_wait_ns[n] for n in steps) / sum(window.durations_ns[n] for n in steps)
        return share, share * median(window.durations_ns), True
    if view is None or not view.steps:
        return view.no_steps if view is not None and view.no_steps else "no steps were recorded"
    if not len(view.host.loading):
        return _NO_RANGES
    waited = sum(view.host.loading.within(step.start_ns, step.end_ns).total_ns for step in view.steps)
    share = waited / sum(step.length_ns for step in view.steps)
    return share, waited / len(view.steps), False


def computed_share(facts: Iterable[Facts]) -> float | None:
    """Of the wait in the usual unprofiled steps of all ranks, the part in which the training thread itself computed."""
    waited = computed = 0
    for window in (one.window("unprofiled") for one in facts):
        if window is not None and len(window.loader_cpu_ns) == len(window.loader_wait_ns) == window.steps:
            steps = window.usual_steps
            waited += sum(window.loader_wait_ns[n] for n in steps)
            computed += sum(window.loader_cpu_ns[n] for n in steps)
    return computed / waited if waited else None


def other_share(facts: Iterable[Facts]) -> float:
    """Of the wait in the usual unprofiled steps of all ranks that have no workers, what was not preparing batches."""
    waited = fetched = 0
    for window in (one.window("unprofiled") for one in facts):
        if window is None or not len(window.loader_fetch_ns) == len(window.loader_wait_ns) == window.steps:
            continue
        steps = [n for n in window.usual_steps if window.loader_fetch_ns[n]]
        if 2 * len(steps) > len(window.usual_steps):
            waited += sum(window.loader_wait_ns[n] for n in steps)
            fetched += sum(window.loader_fetch_ns[n] for n in steps)
    return max(0.0, 1 - fetched / waited) if waited else 0.0


def drawn_from(facts: Sequence[Facts]) -> LoaderFacts | None:
    """The loader that steps drew most from, on the rank that waited longest for it."""

    def waited(facts: Facts) -> int:
        window = facts.window("unprofiled")
        return sum(window.loader_wait_ns) if window else 0

    loaders = max(facts, key=waited).loaders if facts else []
    return max(loaders, key=lambda one: (one.batches_drawn or 0, one.dataset_samples or 0), default=None)


def preparing(loader: LoaderFacts | None) -> PreparingFigures | None:
    """What its batches are made of; None where that was not metered, or cannot be."""
    told = loader.preparing if loader else None
    if told is None or told.batches <= 0 or min(told.reading_ns, told.collating_ns) < 0:
        return None
    whole = told.reading_ns + told.collating_ns
    if not whole:
        return None
    return PreparingFigures(
        batch_ns=round(whole / told.batches),
        reading_share=told.reading_ns / whole,
        reading_computed_share=min(1.0, told.reading_cpu_ns / max(told.reading_ns, 1)),
        collating_share=told.collating_ns / whole,
        computed_share=min(1.0, (told.reading_cpu_ns + told.collating_cpu_ns) / whole),
        read_by=told.read_by or "",
        collated_by=told.collated_by or "",
    )


def input_figures(ranks: Sequence[tuple[float, float, bool] | str], facts: Iterable[Facts] = ()) -> InputFigures:
    """The median over ranks. Unprofiled figures of some ranks leave the traced ones of others out."""
    recorded = list(facts)
    computed, other = computed_share(recorded), other_share(recorded)
    made_of = preparing(drawn_from(recorded))
    unknown = {} if computed is not None else {"computed_share": "only `dptune profile` measures this"}
    if made_of is None:
        unknown["preparing"] = "only `dptune profile` measures this, where workers are forked"
    known = [rank for rank in ranks if not isinstance(rank, str)]
    if not known:
        why = next((rank for rank in ranks if isinstance(rank, str)), "no rank was recorded")
        return InputFigures(
            computed_share=computed,
            other_share=other,
            preparing=made_of,
            missing={"wait_share": why, "wait_ns": why, **unknown},
        )
    unprofiled = any(rank[2] for rank in known)
    used = [rank for rank in known if rank[2] == unprofiled]
    return InputFigures(
        wait_share=median(rank[0] for rank in used),
        wait_ns=round(median(rank[1] for rank in used)),
        computed_share=computed,
        other_share=other,
        preparing=made_of,
        basis="unprofiled" if unprofiled else "traced",
        missing=unknown,
    )
