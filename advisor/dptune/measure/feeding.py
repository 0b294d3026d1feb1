"""Waiting for the data loader."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from dptune.measure.views import RankView
from dptune.measured import InputFigures
from dptune.runfile.facts import Facts

_NO_LOADER = "no batch was drawn from a torch DataLoader in the unprofiled steps"
_NO_RANGES = "the trace has no DataLoader range: the script draws from no torch DataLoader, or it was not recorded"


def waits(facts: Facts | None, view: RankView | None) -> tuple[float, float, bool] | str:
    """Of one rank: share of the step, mean nanoseconds per step, whether unprofiled; or why there is no figure."""
    window = facts.window("unprofiled") if facts else None
    if window is not None and window.durations_ns and len(window.loader_wait_ns) == window.steps:
        if not any(window.loader_batches):
            return _NO_LOADER
        waited = sum(window.loader_wait_ns)
        return waited / sum(window.durations_ns), waited / window.steps, True
    if view is None or not view.steps:
        return view.no_steps if view is not None and view.no_steps else "no steps were recorded"
    if not len(view.loading):
        return _NO_RANGES
    waited = sum(view.loading.within(step.start_ns, step.end_ns).total_ns for step in view.steps)
    return waited / sum(step.length_ns for step in view.steps), waited / len(view.steps), False


def input_figures(ranks: Sequence[tuple[float, float, bool] | str]) -> InputFigures:
    """The median over ranks. Unprofiled figures of some ranks leave the traced ones of others out."""
    known = [rank for rank in ranks if not isinstance(rank, str)]
    if not known:
        why = next((rank for rank in ranks if isinstance(rank, str)), "no rank was recorded")
        return InputFigures(missing={"wait_share": why, "wait_ns": why})
    unprofiled = any(rank[2] for rank in known)
    used = [rank for rank in known if rank[2] == unprofiled]
    return InputFigures(
        wait_share=median(rank[0] for rank in used),
        wait_ns=round(median(rank[1] for rank in used)),
        basis="unprofiled" if unprofiled else "traced",
    )
