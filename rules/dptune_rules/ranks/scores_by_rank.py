"""Each rank decides by its own score when to stop, which weights to keep, or its learning rate.

## What it measures

In the source of the training loop and of the functions that it calls: conditions that compare a score with the best one
so far (`if loss < best`), if a branch ends the training or advances a patience counter, saves weights, or changes the
learning rate. Conditions that only one rank evaluates are left out, and so is the end of training if a collective sends
whether to stop. Reported if all ranks train one model (DistributedDataParallel or FSDP) and the best score differs
between ranks at the same step by more than 0.01 %.

## Why it matters

Each rank evaluates its own part of the data. If one rank stops and the others go on, their next collective waits for it
until it times out. The weights with the best score on one part need not be the best on all data, and ranks may keep
weights of different epochs.

## What to change

Average the score over all ranks before the comparison, so that all ranks decide the same:

    score = torch.tensor([loss_sum, count])
    dist.all_reduce(score)
    loss = (score[0] / score[1]).item()

With Accelerate, use `accelerator.reduce`; with Lightning, log with `sync_dist=True`; or let rank 0 decide, and
broadcast its decision.

## When to leave it alone

- The score is only logged, and the ranks agree in another way before they act.

## References

- torch.distributed.all_reduce: https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
- Lightning, `sync_dist`: https://lightning.ai/docs/pytorch/stable/visualize/logging_advanced.html
- 0.01 %: scores averaged over all ranks agree to rounding, and torch's `ReduceLROnPlateau` ignores smaller improvements
  by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import DifferentDecision, Rule, RunView, Threshold, different_decisions
from dptune_rules.at_risk import results_at_risk

APART = Threshold("apart", 1e-4, "relative: scores averaged over all ranks agree to rounding")

RULE = Rule(
    code="DP705",
    name="scores-by-rank",
    family="ranks",
    kind="risk",
    summary="each rank decides by its own score when to stop, which weights to keep, or its learning rate",
    since="0.1",
    thresholds=(APART,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the conditions whose best score differs between ranks, those that end training first."""
    run.any_facts()
    if len(run.facts) < 2 or not all(facts.ddp or facts.fsdp or facts.engine for facts in run.facts):
        return
    found = different_decisions(run.facts, run.limit(APART))
    for decision in sorted(found, key=lambda each: not each.facts.ends)[:1]:
        yield _advice(run, decision)


def _advice(run: RunView, decision: DifferentDecision) -> Advice:
    facts = decision.facts
    does = "when to stop" if facts.ends else "which weights to keep" if facts.keeps else "its learning rate"
    lowest, highest = min(decision.values), max(decision.values)
    return results_at_risk(
        RULE,
        title=f"Each rank decides {does} by its own score ({facts.where}): `{facts.best}` is {lowest:.4g} to "
        f"{highest:.4g} on the ranks",
        why="If one rank stops and others go on, their next collective waits for it until it times out."
        if facts.ends
        else "Each rank computes the score on its own part of the data.",
        impact="high" if facts.ends else "medium",
        evidence=[
            *(
                Evidence(label=f"value of `{facts.best}`", value=value, rank=each.rank)
                for each, value in zip(run.facts, decision.values, strict=True)
            ),
            Evidence(label="compared after step", value=facts.step),
        ],
        remedy=f"Average the score over all ranks with `dist.all_reduce` before the comparison at {facts.where}.",
        watch="The score then covers all data: do not compare it with earlier scores.",
        subject=facts.best,
    )
