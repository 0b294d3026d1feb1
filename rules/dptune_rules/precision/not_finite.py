"""Losses are NaN or infinite, or a GradScaler skips most steps.

## What it measures

The loss at the start of each of the first 64 backward passes. Reported if the last one is NaN or infinite, or if two or
more are; with a GradScaler, which skips steps after an overflow, only if the last one is. Also reported: a GradScaler
that skips half of the untraced steps or more, and at least five.

## Why it matters

A NaN loss gives NaN gradients, and one step with them makes weights NaN: from then on every loss is NaN. Steps that a
scaler skips do not change the weights.

## What to change

Record or run again with `torch.autograd.set_detect_anomaly(True)`: the error names the operator whose gradient is NaN.
Usual causes: a logarithm, a square root or a division at zero; a mean over no targets (all of them ignored); NaN in the
data; a learning rate that is too high; fp16 overflow, which bf16 avoids.

## When to leave it alone

- The script checks for such losses itself and skips their steps.

## References

- torch.autograd.set_detect_anomaly: https://pytorch.org/docs/stable/autograd.html#anomaly-detection
- torch.amp.GradScaler, which skips steps with infinite or NaN gradients: https://pytorch.org/docs/stable/amp.html
- Half of the steps, five of them: a scaler that starts at 65,536 may skip a few steps until its scale fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

SKIPPED_SHARE = Threshold("skipped_share", 0.5, "of the untraced steps: a settled scale skips about one in 2,000")
LEAST_SKIPPED = 5

RULE = Rule(
    code="DP412",
    name="not-finite",
    family="precision",
    kind="risk",
    summary="losses are NaN or infinite, or a GradScaler skips most steps",
    since="0.1",
    thresholds=(SKIPPED_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Report the first loss that is not finite, or the steps that a scaler skips."""
    run.any_facts()
    found = [(facts, _bad(facts.losses, scaled=bool(facts.grad_scaler))) for facts in run.facts]
    facts, bad = next(((facts, bad) for facts, bad in found if bad), (None, []))
    if facts is None:
        yield from _skipped(run)
        return
    ranks = [facts.rank for facts, bad in found if bad]
    stays = len(bad) == len(facts.losses) - bad[0]
    kinds = _kinds([facts.losses[at] for at in bad])
    if stays:
        which = f"all losses{f' from backward pass {bad[0] + 1} on' if bad[0] else ''} are {kinds}"
    else:
        which = f"{len(bad)} of {len(facts.losses)} losses are {kinds}, the first in backward pass {bad[0] + 1}"
    yield results_at_risk(
        RULE,
        title=f"The loss is not finite{in_parentheses(facts.backward_where)}: {which}",
        why="Its gradients are NaN, and one optimizer step with them makes weights NaN.",
        evidence=[
            Evidence(label="losses that are not finite", value=len(bad), unit=f"of {len(facts.losses)}"),
            *known("loss of the pass before", facts.losses[bad[0] - 1] if bad[0] else None),
            *(
                [Evidence(label="ranks with such losses", value=", ".join(map(str, ranks)))]
                if len(run.facts) > 1
                else []
            ),
        ],
        remedy="Run with `torch.autograd.set_detect_anomaly(True)`: the error names the operator.",
        watch="Check log, sqrt and division at 0, batches whose targets are all ignored, NaN in the data, and the "
        "learning rate.",
        subject="loss",
        confidence="high" if stays else "medium",
    )


def _bad(losses: list[float], *, scaled: bool) -> list[int]:
    bad = [at for at, loss in enumerate(losses) if not math.isfinite(loss)]
    last = bool(bad) and bad[-1] == len(losses) - 1
    return bad if last or (len(bad) > 1 and not scaled) else []


def _kinds(losses: list[float]) -> str:
    kinds = ["NaN"] * any(map(math.isnan, losses)) + ["infinite"] * any(map(math.isinf, losses))
    return " or ".join(kinds)


def _skipped(run: RunView) -> Iterator[Advice]:
    facts = run.any_facts()
    window = facts.window("untraced")
    skipped, steps = (window.skipped_steps or 0, len(window.durations_ns)) if window else (0, 0)
    if not facts.grad_scaler or skipped < LEAST_SKIPPED or skipped < run.limit(SKIPPED_SHARE) * steps:
        return
    yield results_at_risk(
        RULE,
        title=f"The GradScaler{in_parentheses(facts.grad_scaler_where)} skips {skipped} of {steps} steps because "
        "their gradients are not finite",
        why="A scaler skips steps whose gradients are NaN or infinite, and halves its scale.",
        evidence=[
            Evidence(label="skipped steps", value=skipped, unit=f"of {steps} untraced"),
            *([] if facts.grad_scale is None else [Evidence(label="scale", value=facts.grad_scale)]),
        ],
        remedy="Use bf16 autocast where the device has it; else find the operator that overflows in fp16.",
        watch="With bf16, remove the scaler.",
        subject="skipped",
    )
