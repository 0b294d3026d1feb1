"""Every so many steps one takes much longer than the others.

## What it measures

Steps without the profiler that take more than `times` the median step, where they come at one distance from each other.
Those that come now and then are left out: they are the machine's.

## Why it costs time

Something that the loop does every so many steps holds up all ranks: a checkpoint that is written while they wait,
evaluation, logging that reads a result back from the device, a collection of garbage.

## What to change

- Checkpoints: less often, in a thread or a process of their own (`torch.distributed.checkpoint.async_save`), or from a
  copy in memory.
- Evaluation: on fewer samples, less often, or in another job.
- Logging: what is read from the device every step but printed every tenth.

The mean step saves at most what those steps take longer than the median, as a share of all steps that were timed.

## When to leave it alone

- It has to be done, and as often: then the time is well spent.
- The distance is that of epochs: see `workers-restart`.

## References

- torch.distributed.checkpoint, `async_save`: https://pytorch.org/docs/stable/distributed.checkpoint.html
- PyTorch performance tuning guide: https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dptune.advice import Advice, Evidence
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

LEAST = 3  # of them, so that their distances can be compared

TIMES = Threshold(
    "times", 1.5, "from there on the reading of traces sets a step aside as one that is not like the others"
)
WORTH_SHARE = Threshold("worth_share", 0.02, "what a note is: below 2 % of the time nothing is worth changing")

RULE = Rule(
    code="DP703",
    name="slow-steps",
    family="ranks",
    kind="time",
    summary="every so many steps one takes much longer than the others",
    since="0.1",
    thresholds=(TIMES, WORTH_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Say what steps that come at one distance take longer."""
    facts = run.any_facts()
    window = facts.window("unprofiled")
    if window is None or not window.steps:
        raise Missing("no steps were timed without the profiler")
    durations_ns = window.step_durations_ns
    median_ns = statistics.median(durations_ns)
    slow = [at for at, ns in enumerate(durations_ns) if ns > run.limit(TIMES) * median_ns]
    period = _period(slow, len(durations_ns))
    batches = statistics.median_low(window.loader_batches) if window.loader_batches else 1
    if period is None or period in _epochs(run, batches):
        return  # workers that are started for each epoch make its first step slow
    took = [durations_ns[at] for at in slow]
    collecting_ns = sum(window.gc_ns[at] for at in slow if len(window.gc_ns) == window.steps)
    if 2 * collecting_ns > sum(took) - len(slow) * median_ns:
        return  # Python's garbage, which has a rule of its own
    share = (sum(took) - len(slow) * median_ns) / sum(durations_ns)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    times = statistics.median(took) / median_ns
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"One step in {period} takes {times:.1f} times as long as the others: {100 * share:.0f} % of the time",
        why="Something that the loop does every so many steps (saving, evaluating, logging) holds up all ranks.",
        changes=[],
        saves=run.bound_of_all(share, "no more than what those steps take longer than the median step", durations_ns),
        confidence="high",
        evidence=[
            Evidence(label="slow steps", value=len(slow), unit=f"of {len(durations_ns)} timed"),
            Evidence(label="number of the first", value=window.first_step + slow[0]),
            Evidence(label="their median", value=statistics.median(took) / 1e6, unit="ms"),
            Evidence(label="median of all", value=median_ns / 1e6, unit="ms"),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _period(slow: Sequence[int], steps: int) -> int | None:
    """How far apart they are, from the first step to the last; None where they are at no one distance, or too few."""
    apart = {after - before for before, after in pairwise(slow)}
    if len(slow) < LEAST or len(apart) != 1:
        return None
    period = apart.pop()
    return period if period > 1 and slow[0] < period and slow[-1] + period >= steps else None


def _epochs(run: RunView, batches_a_step: int) -> set[int]:
    """Steps of an epoch of the one loader that is drawn from, where its workers are started anew; give or take one."""
    loaders = [one for one in run.any_facts().loaders if one.batches_drawn]
    if len(loaders) != 1 or not loaders[0].num_workers or loaders[0].persistent_workers is not False:
        return set()
    batches = loaders[0].epoch_batches(run.measured.world_size)
    steps = 0 if batches is None else round(batches / max(1, batches_a_step))
    return {steps - 1, steps, steps + 1}
