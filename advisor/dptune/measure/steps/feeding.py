"""Waiting for the data loader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, median_low

from dptune.measure.views import RankView
from dptune.measured import InputFigures
from dptune.runfile.facts import Facts, Window

_NO_LOADER = "no batch was drawn from a torch DataLoader in the unprofiled steps"
_NO_RANGES = "the trace has no DataLoader range: the script draws from no torch DataLoader, or it was not recorded"


def waits(facts: Facts | None, view: RankView | None) -> tuple[float, float, bool] | str:
    """Of one rank: share of the step, that share of its median step in ns, whether unprofiled; or why there is none.

    Of unprofiled steps those count that drew as many batches as the median step did: between two epochs a step may hold
    a whole validation.
    """
    window = facts.window("unprofiled") if facts else None
    if window is not None and sum(window.durations_ns) > 0 and len(window.loader_wait_ns) == window.steps:
        if not any(window.loader_batches):
            return _NO_LOADER
        steps = usual_steps(window)
        share = sum(window.loader_wait_ns[n] for n in steps) / sum(window.durations_ns[n] for n in steps)
        return share, share * median(window.durations_ns), True
    if view is None or not view.steps:
        return view.no_steps if view is not None and view.no_steps else "no steps were recorded"
    if not len(view.host.loading):
        return _NO_RANGES
    waited = sum(view.host.loading.within(step.start_ns, step.end_ns).total_ns for step in view.steps)
    share = waited / sum(step.length_ns for step in view.steps)
    return share, share * median(step.length_ns for step in view.steps), False


def usual_steps(window: Window) -> list[int]:
    """Which steps of a window, from 0, drew the median number of batches; all where that is none."""
    usual = median_low(window.loader_batches) if window.loader_batches else 0
    return [n for n, drawn in enumerate(window.loader_batches) if not usual or drawn == usual]


def computed_share(facts: Iterable[Facts]) -> float | None:
    """Of the wait in the usual unprofiled steps of all ranks, the part in which the training thread itself computed."""
    waited = computed = 0
    for window in (one.window("unprofiled") for one in facts):
        if window is not None and len(window.loader_cpu_ns) == len(window.loader_wait_ns) == window.steps:
            steps = usual_steps(window)
            waited += sum(window.loader_wait_ns[n] for n in steps)
            computed += sum(window.loader_cpu_ns[n] for n in steps)
    return computed / waited if waited else None


def input_figures(ranks: Sequence[tuple[float, float, bool] | str], facts: Iterable[Facts] = ()) -> InputFigures:
    """The median over ranks. Unprofiled figures of some ranks leave the traced ones of others out."""
    computed = computed_share(facts)
    unknown = {} if computed is not None else {"computed_share": "only `dptune profile` measures this"}
    known = [rank for rank in ranks if not isinstance(rank, str)]
    if not known:
        why = next((rank for rank in ranks if isinstance(rank, str)), "no rank was recorded")
        return InputFigures(computed_share=computed, missing={"wait_share": why, "wait_ns": why, **unknown})
    unprofiled = any(rank[2] for rank in known)
    used = [rank for rank in known if rank[2] == unprofiled]
    return InputFigures(
        wait_share=median(rank[0] for rank in used),
        wait_ns=round(median(rank[1] for rank in used)),
        computed_share=computed,
        basis="unprofiled" if unprofiled else "traced",
        missing=unknown,
    )
