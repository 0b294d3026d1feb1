"""What the data loader of one rank deals it, beside what the others get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dptune.runfile.facts import Facts
from dptune.runfile.loader import LoaderFacts

_UNSAID = ("SequentialSampler", "RandomSampler", "BatchSampler", "_InfiniteConstantSampler")  # torch's, of any loader


@dataclass(frozen=True)
class DealtBatches:
    """The batches of one rank. `samples_times`: its samples per step / the median of the other ranks.

    `where` is the line that makes its loader, `sampler` the class that chooses the samples, None for torch's default.
    """

    samples_times: float
    where: str | None = None
    sampler: str | None = None


def dealt_batches(facts: Sequence[Facts], rank: int) -> DealtBatches | None:
    """Of replicas of one model that draw the same number of batches; None of others, and where it was not recorded."""
    samples: dict[int, float] = {}
    batches = set()
    for rank_facts in facts:
        window = rank_facts.window("untraced")
        if window is None or not window.steps or not rank_facts.ddp or not rank_facts.loaders:
            return None
        if len(window.loader_samples) != window.steps or len(window.loader_batches) != window.steps:
            return None
        samples[rank_facts.rank] = sum(window.loader_samples) / window.steps
        batches.add(sum(window.loader_batches) / window.steps)
    others = [count for other, count in samples.items() if other != rank]
    if rank not in samples or not others or not median(others) or len(batches) != 1:
        return None
    (late,) = (rank_facts for rank_facts in facts if rank_facts.rank == rank)
    loader = max(late.loaders, key=lambda candidate: candidate.batches_drawn or 0)
    return DealtBatches(samples[rank] / median(others), loader.where, _sampler(loader))


def _sampler(loader: LoaderFacts) -> str | None:
    named = loader.batch_sampler if loader.own_batches else loader.sampler
    return None if named in _UNSAID else named
