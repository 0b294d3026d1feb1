"""Ranks have different numbers of batches per epoch: training can hang at the end of an epoch.

## What it measures

The length of the loader that most batches are drawn from, on each rank of a DDP or FSDP training, if the script's loop
over it is inside a loop over epochs (`for epoch in range(90)`). Reported if the lengths differ, no rank has drawn more
than an epoch, and neither DDP's `join` nor an engine handles it. Loops that may end earlier, by `break`, `return`,
`islice`, `zip` or `range`, are left out.

## Why it matters

Each backward pass waits for all ranks. The rank with fewer batches leaves the loop first. In their next backward pass,
the others wait for it until the process group's timeout, or their all-reduce is matched with a later one of that rank,
for example in its validation or its next epoch.

## What to change

Give each rank the same number of batches. A `DistributedSampler` does so: it repeats samples, or drops some with
`drop_last=True`. If each rank reads its own files, stop all ranks at the smallest number of batches:

    steps = torch.tensor(len(loader))
    torch.distributed.all_reduce(steps, op=torch.distributed.ReduceOp.MIN)
    for batch in itertools.islice(loader, int(steps)):
        ...

or train inside `with model.join():`.

## When to leave it alone

- The loop ends before the end of an epoch on all ranks, for example after a number of steps.

## References

- PyTorch, "Distributed Training with Uneven Inputs Using the Join Context Manager":
  https://pytorch.org/tutorials/advanced/generic_join.html
- torch.utils.data.distributed.DistributedSampler: https://pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import LoaderFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP513",
    name="uneven-epochs",
    family="input",
    kind="risk",
    summary="ranks have different numbers of batches per epoch: training can hang at the end of an epoch",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the loader that is longer on some ranks than on others."""
    first = run.any_facts()
    if len(run.facts) < 2 or not (first.ddp or first.fsdp) or first.engine:
        return
    if any(facts.joins or facts.ends_early or (facts.planned_epochs or 0) < 1 for facts in run.facts):
        return
    loaders = {facts.rank: _trained(facts.loaders) for facts in run.facts}
    if len({loader.where for loader in loaders.values() if loader}) != 1:
        return
    lengths = {rank: loader.epoch_length for rank, loader in loaders.items() if loader and loader.epoch_length}
    if len(lengths) < len(loaders) or len(set(lengths.values())) == 1:
        return
    if any((loader.batches_drawn or 0) > (loader.epoch_length or 0) for loader in loaders.values() if loader):
        return
    short, long = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
    loader = loaders[short]
    where = loader.where if loader else None
    yield results_at_risk(
        RULE,
        title=f"Rank {short} has {lengths[short]:,} batches per epoch and rank {long} has {lengths[long]:,}"
        f"{in_parentheses(where)}: training can hang at the end of the first epoch",
        why=f"After its last batch, rank {short} runs no backward pass, and the others wait for its collectives.",
        confidence="medium",
        evidence=[
            *[Evidence(label=f"batches per epoch of rank {rank}", value=lengths[rank]) for rank in (short, long)],
            *known("the loop over it", loader.iterated_at if loader else None),
        ],
        remedy="Use a DistributedSampler, stop all ranks at the smallest number of batches, or train inside "
        "`with model.join():`. Leave it if the loop always ends earlier.",
        subject="epoch",
    )


def _trained(loaders: list[LoaderFacts]) -> LoaderFacts | None:
    return max(loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
