"""Ranks train on the same data, or see it in the same order in every epoch.

## What it measures

- the losses at the start of the first backward passes, on each rank: where they are equal to the last bit on all of
  them, all ranks were given the same batches;
- whether loaders shuffle all samples on each rank (low impact: the script may have split them before);
- whether `set_epoch` was called on a shuffling DistributedSampler before the second epoch was drawn from it.

## Why it matters

Ranks that train on the same batches compute the same gradients: their mean is the gradient of a single rank, and the
work of the others is wasted. A sampler without `set_epoch` shuffles every epoch in the same way: each batch has the
same samples again, in the same order.

## What to change

Give each rank its samples with a DistributedSampler, in place of `shuffle=True`, and set its epoch:

    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            ...

An iterable data set splits its samples itself:

    def __iter__(self):
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        yield from itertools.islice(self.samples(), rank, None, ranks)

With loader workers, each worker of a rank reads a part of these (`torch.utils.data.get_worker_info()`).

## When to leave it alone

- Model, tensor or pipeline parallel ranks share their batches by design.
- A loss over the samples of all ranks is the same on each of them; where ranks gather anything, nothing is reported.
- Ranks that see the same samples on purpose, for example with different augmentations.

## References

- torch.utils.data.distributed.DistributedSampler, on `set_epoch`: https://pytorch.org/docs/stable/data.html
- DistributedDataParallel tutorial: https://pytorch.org/tutorials/intermediate/ddp_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import CommunicationFigures
from dptune.rule import LoaderFacts, Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

LEAST_LOSSES = Threshold(
    "least_losses",
    3.0,
    "this number of losses is never bitwise equal by chance; the first may be, with weights of zero",
)

RULE = Rule(
    code="DP504",
    name="same-data",
    family="input",
    kind="risk",
    summary="ranks train on the same data, or see it in the same order in every epoch",
    since="0.1",
    thresholds=(LEAST_LOSSES,),
    needs="recording",
)

_SET_EPOCH = "call `loader.sampler.set_epoch(epoch)` before each epoch"


def check(run: RunView) -> Iterator[Advice]:
    """Name ranks whose losses are the same, and a sampler whose `set_epoch` is never called."""
    facts = run.recorded_about("ddp")
    if facts is None or not facts.ddp or facts.engine:
        return
    said = list(_same_batches(run))
    yield from said or _each_for_itself(run)
    yield from _same_order(run)


def _same_order(run: RunView) -> Iterator[Advice]:
    """Of the loader that most is drawn from: nobody minds the order of validation."""
    shuffling = [candidate for candidate in run.any_facts().loaders if candidate.sampler_epoch is not None]
    trained = max(run.any_facts().loaders, key=lambda one: one.batches_drawn or 0, default=None)
    if any(candidate.sampler_epoch for candidate in shuffling):
        return
    for loader in shuffling:
        batches = loader.epoch_batches(run.measured.world_size)
        if loader is not trained or loader.sampler != "DistributedSampler" or batches is None:
            continue
        if (loader.batches_drawn or 0) <= batches:
            continue
        loop = f"The loop at {loader.iterated_at}" if loader.iterated_at else "The script"
        yield results_at_risk(
            RULE,
            impact="medium",
            title=f"{loop} never calls DistributedSampler.set_epoch: every epoch has the same batches in the same "
            "order",
            why="It shuffles by its seed plus the epoch set by set_epoch, which is still 0.",
            evidence=[
                Evidence(label="batches of an epoch", value=batches),
                Evidence(label="batches drawn", value=loader.batches_drawn or 0),
                *known("sampler created at", loader.sampler_where),
                *known("loader created at", loader.where),
            ],
            remedy=f"{_SET_EPOCH[0].upper()}{_SET_EPOCH[1:]}.",
            watch="Training results change for the better.",
            subject=f"set_epoch:{loader.dataset or 'loader'}",
        )


def _each_for_itself(run: RunView) -> Iterator[Advice]:
    """Loaders that shuffle all samples on each rank: where a script has parted them before, that is no fault."""
    for loader in run.any_facts().loaders:
        alike = [
            rank_loader for facts in run.facts for rank_loader in facts.loaders if rank_loader.where == loader.where
        ]
        whole = len({(rank_loader.dataset, rank_loader.dataset_samples) for rank_loader in alike}) == 1
        shuffles = loader.sampler == "RandomSampler" and loader.distributed_sampler is False
        parted = loader.subset is not None and len({rank_loader.subset for rank_loader in alike}) == len(alike)
        if len(run.facts) < 2 or not shuffles or not loader.batches_drawn or not whole or parted:
            continue
        yield results_at_risk(
            RULE,
            impact="low",
            title=f"Each rank shuffles all {loader.dataset_samples} samples by itself, unless they were split before",
            why="Without a DistributedSampler, each rank's epoch is the whole data set, and ranks can train on the "
            "same samples.",
            confidence="low",
            evidence=[
                Evidence(label="sampler", value=loader.sampler),
                *known("loader created at", loader.where),
            ],
            remedy=_remedy(loader),
            watch="With a DistributedSampler, an epoch gets shorter by the number of ranks.",
            subject=f"sampler:{loader.dataset or 'loader'}",
        )


def _makes_one_loss(row: CommunicationFigures) -> bool:
    """Whether the loss may be computed of the samples of all ranks, or of all their losses."""
    return row.kind == "all_gather" or (row.kind == "all_reduce" and row.known("phase") in ("forward", None))


def _same_batches(run: RunView) -> Iterator[Advice]:
    losses = [facts.losses for facts in run.facts]
    least = min(map(len, losses))
    together = {tuple(loss[:least]) for loss in losses}
    if (
        len(losses) < 2
        or least < max(1, run.limit(LEAST_LOSSES))
        or len(together) > 1
        or len(set(losses[0][:least])) < least
    ):
        return
    if run.measured.known("world_size") != len(losses):
        return  # of the ranks that were not read it is not known
    overlap = run.measured.known("overlap")
    if overlap is not None and any(_makes_one_loss(row) for row in overlap.rows):
        return  # the loss may be one of all ranks' samples
    loaders = [loader for loader in run.any_facts().loaders if loader.batches_drawn]
    ranks = "Both ranks" if len(losses) == 2 else f"All {len(losses)} ranks"
    yield results_at_risk(
        RULE,
        title=f"{ranks} train on the same data: their first {least} losses are bitwise equal",
        why="All ranks compute the same gradients, so all but one are wasted.",
        evidence=[
            Evidence(label="first loss, on each rank", value=losses[0][0]),
            *(
                Evidence(label="sampler", value=drawn_loader.sampler)
                for drawn_loader in loaders
                if drawn_loader.sampler
            ),
            *(
                Evidence(label="loader created at", value=drawn_loader.where)
                for drawn_loader in loaders
                if drawn_loader.where
            ),
            *(
                read_by
                for drawn_loader in loaders
                if drawn_loader.preparing
                for read_by in known("samples are read by", drawn_loader.preparing.read_by)
            ),
        ],
        remedy=_remedy(max(loaders, key=lambda loader: loader.batches_drawn or 0, default=None)),
        watch="With a DistributedSampler, each rank gets different samples.",
        subject="batches",
    )


def _remedy(loader: LoaderFacts | None) -> str:
    """The code that gives each rank its own samples, where the loader has none that should."""
    if loader is None or loader.distributed_sampler:
        return ""
    at = f"at {loader.where}" if loader.where else "of the training data"
    if loader.iterable:
        name = f"{loader.dataset}.__iter__" if loader.dataset else "the data set's __iter__"
        return (
            f"Let {name} yield the samples of its rank: `itertools.islice(samples, dist.get_rank(), None, "
            "dist.get_world_size())`."
        )
    instead = " instead of `shuffle=True`" if loader.sampler == "RandomSampler" else ""
    return f"In the DataLoader {at}, use `sampler=DistributedSampler(dataset)`{instead}, and {_SET_EPOCH}."
