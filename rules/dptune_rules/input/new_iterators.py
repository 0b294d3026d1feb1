"""Steps create a new DataLoader iterator for one batch instead of drawing the next batch.

## What it measures

DataLoader iterators that the training thread creates in untraced steps, by line: `iter(loader)`, or a `for` loop that
ends early. Their cost is the time to create an iterator, to draw its first batch, and to free it or stop its workers;
preparing that batch in the training process is not counted.

A line is reported if it creates an iterator in most steps, always of the same data set, and draws less than half of the
batches that the iterator could return.

## Why it matters

A new iterator of a shuffled DataLoader builds a permutation of all samples as a Python list, even if one batch is used,
and frees the list at its end. With workers, it starts their processes and discards the batches they have prefetched;
`persistent_workers` avoids only the start.

## What to change

Create one iterator, and start a new one only when it is exhausted:

    def endless(loader):
        while True:
            yield from loader

    batches = endless(loader)  # before the loop
    batch = next(batches)      # in each step

Without workers the saving is predicted from the time that was measured in each step. With workers it is an upper bound,
because they may prepare batches more slowly than steps consume them.

## When to leave it alone

- The data set changes between steps (a replay buffer): an iterator keeps the order it started with. Draw the indices of
  each batch with `torch.randint` instead.
- Batches must be independent of each other: an iterator returns every sample once before any repeats. Use
  `RandomSampler(data, replacement=True, num_samples=...)`.

## References

- torch.utils.data, "Data Loading Order and Sampler": https://pytorch.org/docs/stable/data.html
- Measured with two gloo ranks: a permutation of 240,000 samples took 7 ms of each step of 54 ms, and freeing it 6 ms.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import NewIterators, Rule, RunView, Threshold
from dptune_rules.known import known

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")
LEAST_STEPS_SHARE = Threshold(
    "least_steps_share", 0.5, "iterators per step: below this, each serves more than two steps, like a short epoch"
)

RULE = Rule(
    code="DP507",
    name="new-iterators",
    family="input",
    kind="time",
    summary="steps create a new DataLoader iterator for one batch",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_STEPS_SHARE),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each line that creates an iterator in most steps, and propose to keep one."""
    if run.recorded_about("loaders") is None:
        return
    for found in run.new_iterators():
        impact = run.impact(found.share, WORTH_SHARE)
        if impact is None or found.a_step < run.limit(LEAST_STEPS_SHARE):
            continue
        line, workers = found.line, found.line.num_workers
        bound = run.bound(0.0, found.share, "the time to set up and tear down these iterators")
        how = "the time to set up and tear down these iterators"
        predicted = None if workers else run.removed_of_steps(found.spent_ns, how)
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"`{line.function}` ({line.where}) creates a DataLoader iterator in {_often(found)} for "
            f"{_drawn(found)} ({100 * found.share:.0f} % of the step): keep one iterator",
            why=f"Each iterator starts {workers} {'worker' if workers == 1 else 'workers'}, and batches prefetched but "
            "not used are discarded."
            if workers
            else f"Each iterator restarts its {line.sampler} on all "
            f"{'samples' if line.samples is None else f'{line.samples:,} samples'}.",
            changes=[],
            saves=predicted or bound,
            confidence="high",
            evidence=[
                Evidence(label="setting up and tearing down iterators", value=found.share, unit="of a step (untraced)"),
                Evidence(label="iterators", value=round(found.a_step, 2), unit="per step"),
                Evidence(label="batches drawn from each", value=round(line.batches / line.made, 2)),
                *(
                    [Evidence(label="batches of an epoch", value=line.epoch_batches)]
                    if line.epoch_batches is not None
                    else []
                ),
                Evidence(label="workers", value=workers, unit="processes"),
                *known("loader created at", line.loader),
            ],
            numerics="changes",
            watch="One iterator uses every sample once before any repeats; each new one draws from all samples."
            if line.sampler != "SequentialSampler"
            else "Without shuffling, each new iterator starts with the same batch; one iterator uses all batches.",
            fingerprint=f"{RULE.code}:{line.where.rpartition(':')[0]}:{line.function.rpartition('.')[2]}",
        )


def _often(found: NewIterators) -> str:
    return "each step" if found.a_step > 0.9 else "most steps"


def _drawn(found: NewIterators) -> str:
    """How many batches one serves, of how many."""
    drawn = round(found.line.batches / found.line.made)
    if found.line.epoch_batches is None:
        return f"{drawn} {'batch' if drawn == 1 else 'batches'}"
    return f"{drawn} of {found.line.epoch_batches:,} batches"
