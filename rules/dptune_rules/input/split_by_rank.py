"""Each rank splits the data into training and held-out samples differently.

## What it measures

The indices of each loader's `Subset` (made by `random_split`, for example), on each rank. Where a sampler splits the
samples of a loader over ranks, all ranks need the same Subset. The rule reports loaders created on one line if their
Subsets have the same length but different indices on some ranks. Loaders without such a sampler are left out: each rank
may have a Subset of its own.

## Why it matters

`random_split` draws from the global generator. If ranks seed it differently, for example with
`set_seed(seed, device_specific=True)`, or not at all, a sample that one rank holds out is trained on by another one.
The accuracy on held-out samples is then too high, and early stopping and the choice of a model rely on it. The sampler
distributes positions, not samples, so some samples are drawn by several ranks and others by none.

## What to change

Split with a generator of its own, the same on each rank:

    train, held_out = random_split(data, [0.9, 0.1], generator=torch.Generator().manual_seed(0))

Or split before ranks are seeded differently.

## When to leave it alone

- Ranks hold different data: remove the distributed sampler, and shuffle on each rank.

## References

- torch.utils.data.random_split: https://pytorch.org/docs/stable/data.html#torch.utils.data.random_split
- accelerate.utils.set_seed: https://huggingface.co/docs/accelerate/package_reference/utilities
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import LoaderFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses

RULE = Rule(
    code="DP511",
    name="split-by-rank",
    family="input",
    kind="risk",
    summary="each rank splits the data into training and held-out samples differently",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the loaders whose Subsets differ between ranks, once for all that are split together."""
    run.any_facts()
    for loader in run.facts[0].loaders:
        alike = [each for facts in run.facts for each in facts.loaders if each.where == loader.where]
        if loader.where and len(alike) == len(run.facts) > 1 and _differ(alike):
            yield _advice(loader, len({each.subset for each in alike}), len(alike))
            return


def _differ(loaders: list[LoaderFacts]) -> bool:
    """Whether they have other samples of as many, which a sampler deals to ranks."""
    dealt = all(loader.distributed_sampler and loader.subset for loader in loaders)
    return dealt and len({loader.dataset_samples for loader in loaders}) == 1 < len({each.subset for each in loaders})


def _advice(loader: LoaderFacts, subsets: int, ranks: int) -> Advice:
    return results_at_risk(
        RULE,
        title=f"Each rank splits the data differently{in_parentheses(loader.where)}: samples that one rank holds out "
        "are trained on by others",
        why="`random_split` draws from the global generator, whose seed differs between ranks.",
        evidence=[
            Evidence(label="different subsets", value=subsets, unit=f"on {ranks} ranks"),
            *([Evidence(label="samples of each", value=loader.dataset_samples)] if loader.dataset_samples else []),
        ],
        remedy="Pass `generator=torch.Generator().manual_seed(0)` to `random_split`.",
        watch="Held-out scores drop: they no longer include samples that were trained on.",
        subject=loader.where or "loader",
    )
