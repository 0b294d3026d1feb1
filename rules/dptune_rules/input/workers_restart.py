"""The loader restarts its workers for each epoch, and epochs are short.

## What it measures

Untraced steps that start an epoch, identified by the number of batches in an epoch, and how much longer they take than
the median step. The rule reports only where these are the longest steps.

Where fewer than three epochs were timed, one step of any window that starts an epoch is enough, if most of its extra
time is waiting for the loader. Where no such step was recorded, the rule is skipped, with the number of steps to
record; for epochs so long that restarting workers costs little, nothing is reported.

## Why it matters

Without `persistent_workers` the workers end with their epoch. The next epoch starts all of them again: each is a
process that may import the script's modules again, and no batch is prepared yet. With thousands of batches per epoch
this is negligible; with a dozen it can be half of the time.

## What to change

Pass `persistent_workers=True` to the DataLoader: workers stay alive, and only the first batch of an epoch is waited
for.

The saving is an upper bound: how much longer those steps take than the median step, as a share of all timed steps. It
refers to the mean step.

## When to leave it alone

- Something else runs once an epoch (saving, evaluating): its time is in the same steps.
- The training process changes the data set between epochs: persistent workers do not see the change.
- Memory: persistent workers keep what they have loaded.

## References

- torch.utils.data, `persistent_workers`: https://pytorch.org/docs/stable/data.html
- Measured with two gloo ranks on two cores: in epochs of 8 batches, 4 workers without `persistent_workers` reduced a
  step from 72 to 40 ms, and half of those 40 ms is their start in each epoch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, floor

from dptune.advice import Advice, Evidence
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.loader_argument import loader_change

LONGER = 1.5  # times the median that the longest step takes, at least, for anything to be looked for
LEAST_PERIOD = 4  # steps of an epoch: with fewer any steps would be at its distance

LONGEST_START_S = 10.0  # upper bound for starting workers: where it is below the threshold, no start has to be recorded

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")
LEAST_EPOCHS = Threshold("least_epochs", 3.0, "with fewer epoch starts, the cause of long steps is uncertain")

RULE = Rule(
    code="DP502",
    name="workers-restart",
    family="input",
    kind="time",
    summary="the loader restarts its workers for each epoch, and epochs are short",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_EPOCHS),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to keep workers where the steps that begin epochs are the longest ones."""
    facts = run.recorded_about("loaders", lambda loader: loader.num_workers != 0)
    if facts is None:
        return
    loaders = [candidate for candidate in facts.loaders if candidate.batches_drawn]
    if len(loaders) != 1 or not loaders[0].num_workers or loaders[0].persistent_workers is not False:
        return
    (loader,) = loaders
    window = run.facts[0].window("untraced")
    if window is None or not window.steps or not window.loader_batches:
        raise Missing("no untraced steps were timed")
    durations_ns: Sequence[float] = window.step_durations_ns
    steps_long = statistics.median(durations_ns)
    batches = loader.epoch_batches(run.measured.world_size)
    if batches is None and max(durations_ns) < LONGER * steps_long:
        return
    if batches is None:
        raise Missing("the number of batches per epoch was not recorded")
    period = batches / max(1, statistics.median_low(window.loader_batches))
    if period < LEAST_PERIOD:
        return
    timed = len(durations_ns) >= run.limit(LEAST_EPOCHS) * period
    if timed:
        share = _lost_ns(durations_ns, period) / sum(durations_ns)
        seen = [Evidence(label="extra time of steps that start an epoch", value=share, unit="of the time")]
    else:
        if run.limit(WORTH_SHARE) * period * steps_long > LONGEST_START_S * 1e9:
            return
        starts = run.epoch_starts()
        share = starts.lost_share if 2 * starts.wait_ns >= starts.extra_ns else 0.0
        durations_ns = [steps_long] * max(1, round(period) - 1) + [steps_long + starts.extra_ns]
        seen = [
            Evidence(label="steps that start an epoch", value=starts.seen, unit="recorded"),
            Evidence(label="such a step", value=starts.length_ns / 1e6, unit="ms (median)"),
            Evidence(label="of it, waiting for the loader", value=starts.wait_ns / 1e6, unit="ms"),
            Evidence(label="the other steps", value=starts.usual_length_ns / 1e6, unit="ms (median)"),
        ]
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    change = loader_change(run, loader, "persistent_workers", False, True)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"An epoch has {batches} batches, and restarts {loader.num_workers} "
        f"{'worker' if loader.num_workers == 1 else 'workers'}: {100 * share:.0f} % of the time",
        why="Without persistent_workers, workers end with each epoch and are started again for the next.",
        changes=[change],
        saves=run.saving(
            [change],
            run.bound_of_all(
                share,
                "the extra time of steps that start an epoch, compared to the median step",
                durations_ns,
            ),
        ),
        # whatever else is done once an epoch takes its time in the same steps
        confidence="medium" if timed else "low",
        evidence=[
            *seen,
            Evidence(label="batches of an epoch", value=batches),
            Evidence(label="workers", value=loader.num_workers, unit="processes"),
        ],
        numerics="same",
        fingerprint=f"{RULE.code}:loader.persistent_workers:{loader.dataset or 'loader'}",
    )


def _lost_ns(durations_ns: Sequence[float], period: float) -> float:
    """What the longest steps, one for each epoch, take longer than the median; 0 where they are no period apart."""
    median_ns = statistics.median(durations_ns)
    if max(durations_ns) < LONGER * median_ns:
        return 0.0
    by_length = sorted(range(len(durations_ns)), key=lambda at: -durations_ns[at])
    lost_ns = 0.0
    for begins in {floor(len(durations_ns) / period), ceil(len(durations_ns) / period)}:  # where in an epoch it opens
        longest = sorted(by_length[:begins])
        if all(abs(after - before - period) <= 1 for before, after in pairwise(longest)):
            lost_ns = max(lost_ns, sum(durations_ns[at] - median_ns for at in longest))
    return lost_ns
