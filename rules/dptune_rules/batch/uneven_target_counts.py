"""Ranks or micro-batches average their losses over different numbers of targets.

## What it measures

In warm-up and untraced steps, from the autograd graph: how many targets the loss of each backward pass counts, without
ignored and masked ones, and what the loss is divided by. This covers `cross_entropy` and `nll_loss` with
`reduction="mean"`, their sums divided by a number, and sums over a mask divided by a number.

dptune compares passes of the same number on all ranks, and passes of the same optimizer step on one rank. A finding
needs losses that are means over the targets of their own pass (equal factors, different counts), and counts with a
standard deviation of at least 15 % of their mean.

dptune skips losses that are divided by a number that ranks or micro-batches share, for example an all-reduced count;
sums that are not divided; losses with class weights; and counts that differ in one group of passes only, as in the last
batch of an epoch. Passes of one step count as gradient accumulation if each has a batch of the same loader, or if each
loss is divided by the number of passes.

## Why it matters

It can hurt convergence. Gradients are averaged over ranks, and summed over micro-batches. If each loss is divided by
its own count, the result is a mean of means: a target in a short batch weighs more than one in a long batch. Targets
in short texts then have a larger share of the gradient than of the data, and the loss differs from that of one large
batch on one device.

At 15 %, the counts of two batches typically differ by a sixth; at 20 % (medium impact) by a quarter, and the weights
reduce the effective number of targets by 4 % (Kish's formula).

## What to change

Sum the loss, and divide by the number of targets of all ranks. DDP and FSDP average gradients, so multiply by the
number of ranks:

    loss = F.cross_entropy(scores, target, ignore_index=-100, reduction="sum")
    count = (target != -100).sum()
    dist.all_reduce(count)
    (loss * dist.get_world_size() / count).backward()

With gradient accumulation, `count` is that of all micro-batches of the step, and the loss is not divided by their
number. The Trainer of transformers does so with a model that takes `num_items_in_batch`, over ranks with
`average_tokens_across_devices=True`.

## When to leave it alone

- Each batch should have the same weight, whatever its number of targets.
- Other code corrects the weights of gradients.

## References

- Hugging Face, "Fixing Gradient Accumulation": https://huggingface.co/blog/gradient_accumulation
- PyTorch, "DistributedDataParallel", which averages gradients over ranks:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Kish, "Survey Sampling" (1965), section 11.7, on the effective sample size with unequal weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import (
    CountSpread,
    Rule,
    RunView,
    TargetCountFacts,
    between_micro_batches,
    between_ranks,
)
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses

RULE = Rule(
    code="DP315",
    name="uneven-target-counts",
    family="batch",
    kind="risk",
    summary="ranks or micro-batches average their losses over different numbers of targets",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)
LEAST_SPREAD = 0.15
MEDIUM_SPREAD = 0.2
LEAST_COMPARISONS = 8  # the standard deviation is then known to a quarter
LEAST_REST = 0.05  # without the group that differs the most
REMEDIES = {
    "ranks": "Sum the loss, divide it by the number of targets of all ranks (`all_reduce` of the count), and multiply "
    "it by the number of ranks, as gradients are averaged over them.",
    "micro-batches": "Sum the loss, and divide it by the number of targets of all micro-batches of the step.",
}


def check(run: RunView) -> Iterator[Advice]:
    """Name the loss whose counts differ the most, between ranks or between micro-batches."""
    if run.recorded_about("target_counts") is None:
        return
    found = [each for each in _spreads(run) if _differs(each[2])]
    if found:
        yield _advice(*max(found, key=lambda each: each[2].spread))


def _spreads(run: RunView) -> Iterator[tuple[str, TargetCountFacts, CountSpread]]:
    for first in run.facts[0].target_counts if run.facts else []:
        key = (first.loss, first.classes, first.where)
        same = [
            each for facts in run.facts for each in facts.target_counts if (each.loss, each.classes, each.where) == key
        ]
        over_ranks = between_ranks(same) if len(same) == len(run.facts) > 1 else None
        for between, spread in (("ranks", over_ranks), ("micro-batches", between_micro_batches(first))):
            if spread is not None:
                yield between, first, spread


def _differs(found: CountSpread) -> bool:
    enough = found.comparisons >= LEAST_COMPARISONS
    return enough and found.spread >= LEAST_SPREAD and found.rest >= LEAST_REST


def _at(loss: TargetCountFacts) -> str:
    return in_parentheses(f"backward pass at {loss.where}" if loss.where else None)


def _advice(between: str, loss: TargetCountFacts, found: CountSpread) -> Advice:
    divides = "Each rank divides its loss" if between == "ranks" else "The loss of each micro-batch is divided"
    average = "Gradients are averaged over ranks" if between == "ranks" else "Gradients of micro-batches add up"
    return results_at_risk(
        RULE,
        title=f"{divides} by its own number of targets{_at(loss)}: in a step, a target of one "
        f"{'rank' if between == 'ranks' else 'micro-batch'} weighs up to {found.largest:.1f} times as much as one of "
        "another",
        why=f"{average}, so the result is a mean of means: a target in a short batch weighs more than one in a long "
        "batch.",
        impact="medium" if found.spread >= MEDIUM_SPREAD else "low",
        confidence="high" if between == "ranks" else "medium",
        evidence=[
            Evidence(label="standard deviation of the number of targets in a step", value=round(found.spread, 3)),
            Evidence(
                label="median ratio of the largest to the smallest number in a step", value=round(found.typical, 2)
            ),
            Evidence(label="steps compared", value=found.groups),
            Evidence(label=f"{between} in a step", value=found.size),
        ],
        remedy=REMEDIES[between],
        watch="The loss of a step then has the same value as with all its targets in one batch.",
        subject=between,
    )
