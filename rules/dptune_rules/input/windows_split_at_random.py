"""Overlapping windows are split at random, so held-out samples share values with training samples.

## What it measures

In the first batches of each process, whether samples of a data set overlap in memory with their neighbours by index.
If they do, and two loaders draw from Subsets of that data set, or with SubsetRandomSamplers: how many samples of one
have a neighbour in the other. Ranges or recordings that are held out whole do not count: in a random split, some
samples have no held-out neighbour. Windows that are copied when they are drawn are not recognized.

## Why it matters

Held-out scores become misleading. If windows share half or more of their values, a random split puts almost the same
window into both parts, so the score measures memorization, not generalization. Early stopping and the choice of
hyperparameters then follow that score.

## What to change

Split the recordings first, or the time range, and cut windows from each part:

    held_out = set(torch.randperm(recordings)[:5].tolist())
    train = Subset(windows, [i for i in range(len(windows)) if i // per_recording not in held_out])

In a split by time, leave out the windows at the border that reach into the other part.

## When to leave it alone

- The held-out part only serves to check that training works.

## References

- scikit-learn, "Cross validation of time series data" and "Cross-validation iterators for grouped data":
  https://scikit-learn.org/stable/modules/cross_validation.html
- The limit of half of the windows: in a random split that holds out 20 %, 96 % of the held-out windows have a neighbour
  in the training part; in a split by time, one window has.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, SplitWindowFacts, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

LEAST_SHARE = Threshold("least_share", 0.5, "of the held-out windows: splits by time or by recording have few")

RULE = Rule(
    code="DP515",
    name="windows-split-at-random",
    family="input",
    kind="risk",
    summary="overlapping windows are split at random: held-out samples share values with training samples",
    since="0.1",
    thresholds=(LEAST_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the data set of the first rank that has one."""
    run.any_facts()
    for found in next((facts.split_windows for facts in run.facts if facts.split_windows), []):
        if found.share >= run.limit(LEAST_SHARE):
            yield _advice(found)


def _advice(found: SplitWindowFacts) -> Advice:
    name, _, place = (found.where or "").removesuffix(")").rpartition(" (")
    at = f"`{name}` ({place})" if name else place
    return results_at_risk(
        RULE,
        title=f"{f'{at} splits' if at else 'The script splits'} overlapping windows of `{found.dataset}` at random: "
        f"{100 * found.share:.0f} % of the held-out windows share values with training windows",
        why="Neighbouring windows overlap, so held-out scores measure memorization, not generalization.",
        evidence=[
            Evidence(
                label="held-out windows next to a training window", value=found.beside, unit=f"of {found.held_out:,}"
            ),
            Evidence(label="training windows", value=found.training),
            *known("split at", place),
        ],
        remedy="Split the recordings or the time range first, then cut windows from each part.",
        watch="Held-out scores will be worse: held-out windows no longer share values with training windows.",
        subject=found.dataset,
    )
