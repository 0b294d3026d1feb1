"""The ratio of the new to the old policy is always 1, so clipping has no effect.

## What it measures

The autograd graph of losses in the warm-up steps: the exponential of a difference of log-probabilities, or a quotient
of probabilities, that is multiplied by advantages and clipped (`clamp`, `min`, `max`, `where`). dptune reports it if
all such ratios are exactly 1 in each of at least three backward passes, and parameters of the policy changed between at
least two of them. Correct scripts have a ratio of 1 only in the first pass after samples were collected; small errors
of rounding count as other values.

Samples are reused if at least half of the rows that the policy's first layer gets were in an earlier pass, and rows of
a pass differ. If none are, the finding has low impact: with a single update for each collected batch the ratio is 1 in
any case.

## Why it matters

Proximal policy optimization makes several updates on the same samples. The clipped ratio limits how far they move the
policy from the one that drew the actions. If the old log-probability is computed by the policy that is being trained,
the ratio is 1 in every pass: the loss is a plain policy gradient without a limit, and samples that the updated policy
would no longer draw are not reweighted. Training becomes unstable.

## What to change

Keep the log-probability when the action is drawn, and use it in all updates on these samples:

    with torch.no_grad():
        distribution = policy(state)
        action = distribution.sample()
        old = distribution.log_prob(action)
    ...
    ratio = (policy(states).log_prob(actions) - old).exp()

## When to leave it alone

- A single update for each collected batch, as some trainers of language models do: the ratio is 1 then, the gradient is
  right, and clipping is not needed.

## References

- Schulman et al., "Proximal Policy Optimization Algorithms" (2017), equations 6 and 7: the ratio is to the policy
  before the update. https://arxiv.org/abs/1707.06347
- Huang et al., "The 37 Implementation Details of Proximal Policy Optimization" (2022): the ratio must be 1 in the first
  epoch and first minibatch, and only there. https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import PolicyRatioFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP314",
    name="ratio-always-one",
    family="batch",
    kind="risk",
    summary="the ratio of the new to the old policy is always 1: clipping has no effect",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)
MOSTLY = 0.5  # of the samples of a pass
REMEDY = "Keep the log-probability from when the action is drawn, and use it in all updates on these samples."


def check(run: RunView) -> Iterator[Advice]:
    """Name the ratio of the first rank that has such a one."""
    if run.recorded_about("policy_ratios") is None:
        return
    found = [ratio for facts in run.facts for ratio in facts.policy_ratios if ratio.stays_one]
    yield from map(_advice, found[:1])


def _advice(found: PolicyRatioFacts) -> Advice:
    again = found.seen_again >= MOSTLY
    policy = f"The ratio of the new to the old policy{in_parentheses(found.where)} is exactly 1 in all passes"
    return results_at_risk(
        RULE,
        title=f"{policy}, also for samples of earlier passes: clipping has no effect"
        if again
        else f"{policy}: clipping has no effect",
        why="The old log-probabilities come from the policy after its updates, not from the policy that drew the "
        "actions. Nothing limits how far several updates on the same samples move the policy."
        if again
        else "With several updates on the same samples, nothing limits how far they move the policy. With a single "
        "update for each collected batch the ratio is always 1, and clipping is not needed.",
        confidence="high" if again else "medium",
        impact="high" if again else "low",
        evidence=[
            Evidence(label="backward passes with a ratio of 1", value=found.ones, unit=f"of {found.passes}"),
            Evidence(label="passes after an update of the policy", value=found.updates),
            Evidence(label="ratios", value=found.samples, unit="per pass"),
            *([Evidence(label="samples of earlier passes", value=found.seen_again, unit="of a pass")] if again else []),
            *known("computed at", found.where),
        ],
        remedy=REMEDY if again else f"If updates share samples: {REMEDY[0].lower()}{REMEDY[1:]}",
        watch="Clipping then limits each update, so the policy changes more slowly.",
        subject="ratio",
    )
