"""What a step saves without the function that takes most of preparing its batches."""

from __future__ import annotations

from collections.abc import Mapping

from dptune.advice import Saving
from dptune.measured import PreparingFigures
from dptune.rule import HotFunction, LoaderFacts, RunView, Share

# Of its time: a cheaper function takes some, and what shares its cores is faster. Of seven scripts the mended one saved
# 0.8 to 1.4 times the time of the function, and 0.7 to 1.05 times the bound.
SAVED_PART = (0.7, 1.1)

BY_INDEX_PART = (0.6, 0.8)  # of preparing small samples of tensors, that one call for a batch saved: 64 to 87 %
BY_INDEX_SAVED = (0.5, 1.5)  # of that: three training loops saved 0.34 to 1.43 times the wait, timed on a busy machine
SMALL_SAMPLE_BYTES = 4 * 2**10  # up to which it did


def by_index(
    run: RunView, loader: LoaderFacts, preparing: PreparingFigures, *, prepared: float, most: float
) -> Saving | None:
    """The saving on CPUs if one call for each tensor takes a batch; None elsewhere, and where samples are not small.

    `prepared` and `most` as below.
    """
    if not preparing.tensor_bytes or preparing.tensor_bytes > SMALL_SAMPLE_BYTES * (loader.batch_size or 0):
        return None
    least, likely = (part * prepared for part in BY_INDEX_PART)
    spent = {rank: Share(wait * least, wait * likely, max(most, wait * likely)) for rank, wait in waits(run).items()}
    how = f"indexing a batch at once saves 60 % or more of preparing small samples of a {loader.dataset}"
    return run.removed(spent, how, BY_INDEX_SAVED, timed=True) if spent else None


def without_function(run: RunView, culprit: HotFunction, *, prepared: float, most: float) -> Saving | None:
    """The saving on CPUs that prepare their batches themselves; None elsewhere, and where it may be zero.

    It starts at the part of the function in what each rank waits for its loader, and ends at `most`, which bounds that
    of any cheaper batch: the lines that call the function may go with it. `prepared`: the part of the wait in which
    batches are prepared.
    """
    waited = waits(run)
    if not waited:
        return None
    likely = culprit.share * (prepared if culprit.least is None else 1.0)
    least = likely if culprit.least is None else culprit.least
    spent = {rank: Share(wait * least, wait * likely, max(most, wait * likely)) for rank, wait in waited.items()}
    how = f"if `{culprit.name}` took no time: it takes {100 * likely:.0f} % of the time that ranks wait for batches"
    return run.removed(spent, how, SAVED_PART)


def waits(run: RunView) -> Mapping[int, float]:
    """The share of the usual untraced steps that each rank waits for its loader; empty where it is not known of all."""
    found = {}
    for facts in run.facts:
        window = facts.window("untraced")
        if window is None or not window.steps or len(window.loader_wait_ns) != window.steps:
            return {}
        waited, took = window.loader_wait_ns, window.durations_ns
        usual = window.usual_steps or range(window.steps)
        found[facts.rank] = sum(waited[at] for at in usual) / sum(took[at] for at in usual)
    return found
