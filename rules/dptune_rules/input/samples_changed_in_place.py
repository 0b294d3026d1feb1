"""A data set changes the samples that it keeps, so augmentation accumulates over epochs.

## What it measures

Around the first batches of each process, dptune compares a few samples that the data set keeps (rows of tensors and
numpy arrays, items of lists) before and after they are drawn. A sample counts as changed if the batch has its new
values, and these are correlated with the old ones. A cache that is filled has no old values, and bookkeeping is not in
the batch.

## Why it matters

`self.samples[index]` returns a view, not a copy. `sample += noise` or `sample *= scale` then writes into the data set.
Each epoch adds its noise to that of all earlier epochs, so the model trains on data that drift away from the originals.
Validation data that were split from the same tensor change as well.

## What to change

Copy the sample before it is changed (`self.samples[index].clone()`, `.copy()` of an array), or write `sample = sample +
noise`.

## When to leave it alone

- Each sample is drawn only once.
- The change has no effect the second time, for example clipping to a range.
- Workers that end with each epoch: they change copies of their own. No finding without `persistent_workers`.

## References

- PyTorch, tensor views: https://pytorch.org/docs/stable/tensor_view.html
- NumPy, copies and views: https://numpy.org/doc/stable/user/basics.copies.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import ChangedSampleFacts, LoaderFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk

RULE = Rule(
    code="DP510",
    name="samples-changed-in-place",
    family="input",
    kind="risk",
    summary="a data set changes the samples that it keeps: augmentation accumulates over epochs",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each data set of the first rank that has one."""
    run.any_facts()
    for facts in [facts for facts in run.facts if facts.changed_samples][:1]:
        yield from (_advice(found) for found in facts.changed_samples if _stays(found, facts.loaders))


def _stays(found: ChangedSampleFacts, loaders: list[LoaderFacts]) -> bool:
    """Whether the changed samples are drawn again: the copies of workers end with them."""
    drawing = [loader for loader in loaders if loader.preparing and loader.preparing.read_by == found.read_by]
    return not found.in_worker or any(loader.persistent_workers for loader in drawing)


def _advice(found: ChangedSampleFacts) -> Advice:
    name, _, line = found.read_by.partition(" (")
    reader = f"`{name}` ({line}" if line else f"`{name or 'the data set'}`"
    return results_at_risk(
        RULE,
        title=f"{reader} changes the samples in `{found.held_by}` in place: augmentation accumulates over epochs",
        why="Indexing returns a view of the kept sample, and in-place operators write into it.",
        confidence="medium",
        evidence=[
            Evidence(
                label="samples that drawing them changed", value=found.changed, unit=f"of {found.rows} in one batch"
            ),
            Evidence(label="kept in", value=found.held_by),
        ],
        remedy="Copy the sample first (.clone(), .copy()), or use operators that are not in place. It is harmless if "
        "each sample is drawn only once.",
        subject=found.held_by,
    )
