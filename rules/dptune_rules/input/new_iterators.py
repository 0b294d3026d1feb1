"""Steps make a new iterator of a DataLoader for one batch, instead of drawing the next one.

## What it measures

Iterators that the training thread makes in steps without the profiler, by line: `iter(loader)`, or a `for` loop that
breaks off. Their cost is the time to make one, to draw its first batch, and to free it or end its workers; preparing
that batch in the training process is not counted.

A line is reported if it makes an iterator in most steps, always of the same data set, and draws less than half of the
batches that the iterator could return.

## Why it costs time

A new iterator of a shuffled DataLoader draws a permutation of all samples as a Python list, whatever part of it is
used, and frees that list with the iterator. With workers it starts their processes, and drops the batches that they
have prepared ahead. `persistent_workers` saves the start only.

## What to change

Make one iterator, and start a new one at its end only:

    def endless(loader):
        while True:
            yield from loader

    batches = endless(loader)  # before the loop
    batch = next(batches)      # in each step

Without workers the saving is predicted from the time that was measured in each step. With workers it is an upper bound,
because they may prepare batches more slowly than steps need them.

## When to leave it alone

- The data set changes between steps, like a replay buffer: an iterator keeps the order that it started with. Draw the
  indices of each batch with `torch.randint` there.
- Batches must be independent of each other: an iterator returns every sample once before any comes again. Use
  `RandomSampler(data, replacement=True, num_samples=...)`.

## References

- torch.utils.data, "Data Loading Order and Sampler": https://pytorch.org/docs/stable/data.html
- Measured with two gloo ranks: a permutation of 240,000 samples took 7 ms of each step of 54 ms, and freeing it 6 ms.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import NewIterators, Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: below 2 % of a step nothing is worth changing")
LEAST_STEPS_SHARE = Threshold(
    "least_steps_share", 0.5, "of the steps: an iterator that serves two steps serves an epoch"
)

RULE = Rule(
    code="DP507",
    name="new-iterators",
    family="input",
    kind="time",
    summary="steps make a new DataLoader iterator for one batch",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_STEPS_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each line that makes an iterator in most steps, and propose to keep one."""
    run.any_facts()
    for found in run.new_iterators():
        impact = run.impact(found.share, WORTH_SHARE)
        if impact is None or found.a_step < run.limit(LEAST_STEPS_SHARE):
            continue
        line, workers = found.line, found.line.num_workers
        bound = run.bound(0.0, found.share, "no more than the time to start and end these iterators")
        how = "the time to start and end these iterators"
        predicted = None if workers else run.removed_of_steps(found.spent_ns, how)
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"`{line.function}` ({line.where}) makes a new iterator of a DataLoader in {_often(found)}, for "
            f"{_drawn(found)}: {100 * found.share:.0f} % of a step. Make one iterator, and draw each batch from it",
            why=f"Each iterator starts {workers} {'worker' if workers == 1 else 'workers'} and drops the batches that "
            "they have prepared ahead."
            if workers
            else f"Each iterator starts over: its {line.sampler} first orders all "
            f"{'samples' if line.samples is None else f'{line.samples:,} samples'} again.",
            changes=[],
            saves=predicted or bound,
            confidence="high",
            evidence=[
                Evidence(label="starting and ending iterators", value=found.share, unit="of a step (unprofiled)"),
                Evidence(label="iterators", value=round(found.a_step, 2), unit="a step"),
                Evidence(label="batches drawn from each", value=round(line.batches / line.made, 2)),
                *(
                    [Evidence(label="batches of an epoch", value=line.epoch_batches)]
                    if line.epoch_batches is not None
                    else []
                ),
                Evidence(label="workers", value=workers, unit="processes"),
                *([Evidence(label="the loader is made at", value=line.loader)] if line.loader else []),
            ],
            numerics="changes",
            watch="Steps then use every sample once before any comes again; now each draws from all samples."
            if line.sampler != "SequentialSampler"
            else "Without shuffling each iterator returns the same first batch: training then uses the others as well.",
            fingerprint=f"{RULE.code}:{line.where.rpartition(':')[0]}:{line.function.rpartition('.')[2]}",
        )


def _often(found: NewIterators) -> str:
    return "each step" if found.a_step > 0.9 else "most steps"


def _drawn(found: NewIterators) -> str:
    """How many batches one serves, of how many."""
    drawn = round(found.line.batches / found.line.made)
    if found.line.epoch_batches is None:
        return f"{drawn} {'batch' if drawn == 1 else 'batches'}"
    return f"{drawn} of its {found.line.epoch_batches:,} batches"
