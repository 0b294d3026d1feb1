"""What a step saves whose batches the first workers prepare, where no step model predicts it."""

from __future__ import annotations

from dptune.advice import Saving
from dptune.rule import RunView, Share
from dptune_rules.input.cheaper_batches import waits

# Of the wait that workers can take over: seven pairs with one worker instead of none saved 0.66 to 1.11 times as much.
SAVED_PART = (0.6, 0.9, 1.12)


def of_first_workers(run: RunView, workers: int, *, prepared: float, spared: float) -> Saving | None:
    """The saving on CPUs; None elsewhere, and where it may be zero.

    `prepared`: the part of the wait in which batches are prepared; `spared`: that less what handing them over takes.
    """
    least, likely, most = SAVED_PART
    spent = {}
    for rank, wait in waits(run).items():
        hidden = 1 - wait / workers  # no more: so many workers do not keep up with a faster step
        least_spared, all_of_it = min(wait * spared, hidden), min(wait * prepared, hidden)
        spent[rank] = Share(least * least_spared, likely * least_spared, min(1.0, most * all_of_it))
    how = "the wait for batches; pairs with one worker instead of none saved 0.6 to 1.12 times as much"
    return run.removed(spent, how, (1.0, 1.0), timed=True) if spent and run.times_hold else None
