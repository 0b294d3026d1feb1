"""The data set prepares samples that it drops.

## What it measures

Whether an iterable data set of the script calls a function for each sample and then drops samples by a test that does
not use its result. This is read from its source during recording. How many samples it drops is not known. The cost is
the part of the step in which the training process waits for reading samples.

## Why it matters

Preparing a dropped sample takes as long as preparing a used one. In data-parallel training each rank often drops the
samples of all others: each of n ranks then prepares n times the samples that it needs.

## What to change

Move the test before the call that prepares the sample. The saving is an upper bound: the wait for reading samples.

## When to leave it alone

- The test drops few samples.
- The call advances a state that the test or later samples need.

## References

- torch.utils.data, "Iterable-style datasets": https://pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: below 5 % of a step its loader is not the limit")

RULE = Rule(
    code="DP505",
    name="samples-dropped",
    family="input",
    kind="time",
    summary="the data set prepares samples that it drops",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the call and the test that come in the wrong order."""
    if (facts := run.recorded_about("loaders")) is None:
        return
    loader = max(facts.loaders, key=lambda candidate: candidate.batches_drawn or 0, default=None)
    if loader is None or not loader.prepares_at or not loader.drops_at:
        return
    preparing = run.measured.input.known("preparing")
    wait = run.measured.input.wait_share
    share = wait * (preparing.reading_share if preparing else 1.0)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{loader.prepares_at} prepares samples that {loader.drops_at} then drops: test first. "
        f"Reading samples takes {100 * share:.0f} % of a step",
        why="The test does not use the prepared sample, so a dropped sample costs as much as one that is kept."
        + (
            " If it selects the samples of this rank, every rank prepares those of all ranks."
            if len(run.facts) > 1
            else ""
        ),
        changes=[],
        saves=run.bound(0.0, min(1.0, share), "the wait for reading samples"),
        confidence="medium",
        evidence=[
            Evidence(label="waiting for samples to be read", value=share, unit="of a step").at(
                run.measured.where("input_idle_ns")
            ),
            Evidence(label="prepared at", value=loader.prepares_at),
            Evidence(label="dropped at", value=loader.drops_at),
        ],
        numerics="same",
        watch="Check that the same samples remain, in the same order."
        + (
            ""
            if loader.sharded_by
            else " Each worker would return all samples: the data set does not split them by `get_worker_info()`."
        ),
        fingerprint=f"{RULE.code}:{loader.dataset or 'dataset'}",
    )
