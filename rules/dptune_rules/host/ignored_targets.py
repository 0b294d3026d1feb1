"""Logits are computed for positions whose targets the loss ignores.

## What it measures

- In backward passes of the warm-up steps, from the autograd graph: rows of the matrix product that computes the logits
  of a cross entropy, and targets that count: they are not `ignore_index`, and no mask drops their losses. A mask that
  drops all losses above or below a limit, as in mining hard samples, needs the losses and is not counted. Logits that
  anything but these losses reads with a gradient are left out, for example those of a distillation or z-loss.
- In the detailed window: time of that product, the loss, what reads all logits in between, and their backward pass.

Ignored targets after the last labelled one of a sequence are taken for padding, and so are sequences without a label.
They do not decide whether this rule reports: `padded-batches` reports needless padding.

## Why it matters

The output projection and the loss compute one number for each position and class. Rows whose targets are ignored get a
gradient of zero, which the backward pass multiplies like any other. With a large vocabulary and a small model, as in
masked language modelling (15 % of tokens labelled), most of a step goes there.

## What to change

Select the labelled positions before the output projection:

    labelled = labels != -100
    logits = head(hidden[labelled])
    loss = F.cross_entropy(logits, labels[labelled])

The loss and its gradients stay the same up to rounding: the mean of a cross entropy already leaves out ignored targets.
Next-token losses compare position i with label i + 1: shift the labels first. For prompts without labels, as in
fine-tuning on answers, the same selection applies. If only the last position is needed, project only that one. With a
Hugging Face model, call its base model, and apply its head and the loss to the labelled positions.

The saving is the share of rows without a label times the time of the projection, the loss and their backward pass. On a
CPU it is predicted: 0.85 to 1.15 times that part, as measured (References), if there are 16 labelled rows and 131,072
logits or more. Otherwise it is an upper bound.

## When to leave it alone

- Other code needs the logits of all positions, for example a metric.
- `torch.compile` with static shapes, or CUDA graphs: the number of labelled positions varies. Select a fixed number per
  sequence there, padded with ignored ones.

## References

- Devlin et al., "BERT" (2018), which selects the masked positions before its output layer (`gather_indexes`):
  https://github.com/google-research/bert/blob/master/run_pretraining.py
- torch.nn.functional.cross_entropy (`ignore_index`):
  https://pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html
- Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models" (2024), which skips ignored tokens in a fused
  kernel: https://arxiv.org/abs/2411.09009
- CPU time in turn, one thread, forward and backward, 128 to 1,024 rows of 32 to 256 features, 500 to 8,000 classes, 8
  to 75 % labelled: selecting the labelled rows saved 0.87 to 1.24 times the part of the others. For 128 rows and 500
  classes it saved 3 %.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import OutputLoss
from dptune.rule import IgnoredTargetFacts, Rule, RunView, Threshold, ignored_over_ranks
from dptune_rules.host.costly_functions import costs

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")
LEAST_SHARE = Threshold(
    "least_share", 0.25, "of the rows that are not padding: selecting the others copies them, forward and backward"
)

SAVED_PART = (0.85, 1.0, 1.15)  # of the part of these rows, see References
LEAST_ROWS, LEAST_LOGITS = 16, 2**17  # labelled rows and logits of measurements; a few small products take as long

RULE = Rule(
    code="DP616",
    name="ignored-targets",
    family="host",
    kind="time",
    summary="logits are computed for positions whose targets the loss ignores",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_SHARE),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to select labelled positions first where the others' logits take a share of the step worth it."""
    if run.recorded_about("ignored_targets") is None:
        return
    ignoring = {
        facts.classes: facts
        for facts in ignored_over_ranks([facts.ignored_targets for facts in run.facts])
        if facts.unread_beside_padding >= run.limit(LEAST_SHARE)
    }
    if not ignoring:
        return
    found = run.measured.user_code
    for head in found.output_losses:
        facts = ignoring.get(head.classes)
        if facts is None:
            continue
        share = facts.unread_share * head.share
        impact = run.impact(share, WORTH_SHARE)
        if impact is None:
            continue
        where = facts.where or run.hottest_line(head.name, head.at) or head.at
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{100 * facts.unread_share:.0f} % of the logits that `{head.name}` computes do not count in the "
            f"loss ({where}): select the labelled positions before the output projection",
            why="The output projection, the loss and their backward pass compute on these rows as on any other.",
            changes=[],
            saves=_predicted(run, head, facts)
            or run.bound(0.0, share, "the rows without a label in the projection, the loss and their backward pass"),
            confidence="medium" if found.basis == "untraced" else "low",
            evidence=_evidence(head, facts),
            numerics="same",
            watch="Results agree up to floating-point rounding. Shift next-token labels before selecting. Metrics that "
            "read the logits of other positions need a change as well.",
            fingerprint=f"{RULE.code}:{head.name}",
        )


def _predicted(run: RunView, head: OutputLoss, facts: IgnoredTargetFacts) -> Saving | None:
    """The saving where the rows that are left, and their logits, take longer than selecting them."""
    if head.rows * (1 - facts.unread_share) < LEAST_ROWS or head.rows * head.classes < LEAST_LOGITS:
        return None
    how = "selecting the labelled rows saved 0.85 to 1.15 times the part of the others in measurements"
    return run.replaced(head, SAVED_PART, how, of_all=facts.unread_share)


def _evidence(head: OutputLoss, facts: IgnoredTargetFacts) -> list[Evidence]:
    label = f"projection in {head.name} at {head.at}, and loss"
    return [
        Evidence(label="rows of logits without a label", value=facts.unread_share, unit="of all rows"),
        *costs(label, head),
        Evidence(label="classes", value=head.classes),
        Evidence(label="rows of logits", value=round(head.rows), unit="per step"),
    ]
