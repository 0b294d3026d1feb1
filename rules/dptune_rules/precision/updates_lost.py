"""Rounding loses most updates of 16-bit weights.

## What it measures

In warm-up steps, a sample of the 16-bit parameters of each optimizer of torch.optim: the share of those with a nonzero
gradient that have exactly the same value after a step. Steps with a learning rate below half of its highest value
(warm-up, decay) are left out. Optimizers of other libraries are not judged: they may round stochastically, or keep what
was lost.

## Why it matters

It hurts convergence. bfloat16 has 8 significant bits: adding less than 2^-9 (0.2 %) of a weight rounds back to the same
value. float16 has 11: the limit is 2^-12. Adam changes a weight by about the learning rate, so at 1e-5 every bfloat16
weight above 0.005 keeps its value. These weights are not trained, and torch does not warn.

## What to change

Keep the weights and the optimizer's state in float32 and compute in 16 bits. Without FSDP, do not call
`model.to(torch.bfloat16)` or `model.bfloat16()`, and use autocast:

    with torch.autocast(device_type, dtype=torch.bfloat16):
        loss = criterion(model(inputs), targets)

With FSDP2, shard the float32 model and let FSDP cast:

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy)

Where memory does not allow float32 weights, use an optimizer with stochastic rounding or compensated summation.

## When to leave it alone

- The loss falls as fast as in a comparison with float32 weights.
- An experiment studies 16-bit weights.

## References

- Micikevicius et al., "Mixed Precision Training" (2018), section 3.1, a float32 copy of the weights:
  https://arxiv.org/abs/1710.03740
- Zamirai et al., "Revisiting BFloat16 Training" (2020), which traces lost accuracy to rounded weight updates:
  https://arxiv.org/abs/2010.06192
- PyTorch, MixedPrecisionPolicy: https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- torch.finfo(torch.bfloat16).eps is 2^-7, the distance from 1 to the next number. An update below half of the distance
  between neighbours is lost, which is 2^-9 to 2^-8 of a weight.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import LostUpdateFacts, Rule, RunView, Threshold, over_ranks
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

LOST_SHARE = Threshold(
    "lost_share", 0.5, "float32 weights with a gradient change in almost every step: most are lost, not a few"
)
LEAST_STEPS = Threshold("least_steps", 2, "a single step may have small gradients by chance")

LEAST_SAMPLED = 100  # in a step: the sampling error of a share is then below 10 %

RULE = Rule(
    code="DP406",
    name="updates-lost",
    family="precision",
    kind="risk",
    summary="16-bit weights lose most of their updates in rounding",
    since="0.1",
    thresholds=(LOST_SHARE, LEAST_STEPS),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each optimizer whose steps leave most 16-bit weights unchanged."""
    if run.recorded_about("lost_updates") is None:
        return
    for lost in over_ranks([facts.lost_updates for facts in run.facts]):
        share = lost.least_share
        if share is None or len(lost.sampled) < run.limit(LEAST_STEPS) or min(lost.sampled) < LEAST_SAMPLED:
            continue
        if share >= run.limit(LOST_SHARE):
            yield _advice(run, lost, share)


def _advice(run: RunView, lost: LostUpdateFacts, share: float) -> Advice:
    at = in_parentheses(lost.where)
    limit = "2^-12" if lost.dtype == "float16" else "2^-9"
    return results_at_risk(
        RULE,
        title=f"{lost.optimizer}{at} leaves {100 * share:.0f} % of its {lost.dtype} weights unchanged in each step, "
        "although they have gradients: rounding loses the updates",
        why=f"{lost.dtype} rounds an update below {limit} of a weight back to the same value.",
        confidence="medium",
        evidence=[
            Evidence(label="weights with a gradient that a step leaves unchanged", value=share, unit="at least"),
            Evidence(label="sampled weights with a gradient", value=min(lost.sampled), unit="per step, at least"),
            Evidence(label="compared steps", value=len(lost.sampled)),
            Evidence(label=f"{lost.dtype} weights on a rank", value=lost.parameters),
            Evidence(label="learning rate", value=lost.learning_rate),
            *known("optimizer created at", lost.where),
        ],
        remedy=f"Keep the weights in float32 and compute in 16 bits: {_remedy(run)}.",
        watch="Float32 weights and optimizer state take twice the memory.",
        subject=lost.optimizer,
    )


def _remedy(run: RunView) -> str:
    if run.any_facts().fsdp:
        return "pass MixedPrecisionPolicy(param_dtype=torch.bfloat16) to fully_shard, and do not cast the model before"
    return "use torch.autocast, and do not cast the model"
