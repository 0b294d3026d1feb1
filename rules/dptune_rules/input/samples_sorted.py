"""Training samples come in the order of a data set that is sorted by label.

## What it measures

- The loader that most batches are drawn from does not shuffle: its sampler is a SequentialSampler, or a
  DistributedSampler with `shuffle=False`. Loaders with a batch sampler of their own are not looked at.
- The data set holds its labels: an attribute with a whole number for each sample. In the order of the loader they
  change at most a tenth as often as in a random order (copies of a sample that follow each other would leave a third or
  a half), and a batch is not longer than the average run of one label.
- The targets of up to eight backward passes of the warm-up steps are such labels, in that order.

## Why it matters

Each batch contains one class, or two. The model learns to predict that class, and forgets it while it sees the next
one. BatchNorm computes its statistics from one class at a time.

## What to change

    loader = DataLoader(dataset, batch_size=64, shuffle=True)

With several ranks, a `DistributedSampler` shuffles by default; call its `set_epoch` before each epoch.

## When to leave it alone

- The order is meant: a curriculum, tasks that are learned one after the other, or a series whose state a recurrent
  model carries from batch to batch.

## References

- LeCun et al., "Efficient BackProp" (1998), section 4.2: successive samples should rarely be of the same class.
  http://yann.lecun.com/exdb/publis/pdf/lecun-98b.pdf
- A data set whose training samples were not shuffled: https://github.com/choderalab/modelforge/issues/129
- PyTorch, `torch.utils.data.DataLoader`: https://pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, SortedLabelFacts
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

RULE = Rule(
    code="DP516",
    name="samples-sorted",
    family="input",
    kind="risk",
    summary="training samples come in the order of a data set that is sorted by label",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the data set of the first rank that has one."""
    run.any_facts()
    yield from (_advice(facts.sorted_labels) for facts in run.facts if facts.sorted_labels is not None)


def _advice(found: SortedLabelFacts) -> Advice:
    at = f" at {found.where}" if found.where else ""
    distributed = found.sampler == "DistributedSampler"
    return results_at_risk(
        RULE,
        title=f"Batches contain one class at a time: `{found.dataset}` is sorted by `{found.labels}`, and the loader"
        f"{at} does not shuffle",
        why="The model learns to predict the class of the current batches, and forgets it while it sees the next one.",
        evidence=[
            Evidence(label="changes of label in an epoch", value=found.changes, unit=f"of {found.samples:,} samples"),
            Evidence(label="changes expected in random order", value=round(found.expected_changes)),
            Evidence(label="classes", value=found.classes),
            Evidence(label="batch size", value=found.batch_size),
            Evidence(label="backward passes whose targets are in that order", value=found.passes),
            *known("loader created at", found.where),
        ],
        remedy="Do not pass shuffle=False to the DistributedSampler." if distributed else "Pass shuffle=True.",
        watch="The loss no longer jumps where the class changes, and held-out accuracy is higher.",
        subject=found.dataset,
    )
