"""Iterators of a DataLoader that serve one batch: facts are made up."""

from dataclasses import replace

import pytest

from dptune.runfile.iterators import IteratorFacts, new_iterators
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import Window

MS = 1_000_000
EACH = IteratorFacts(
    where="train.py:83",
    function="Trainer.fit",
    loader="train.py:59",
    dataset="TensorDataset",
    samples=200_000,
    sampler="RandomSampler",
    made=5,
    batches=5,
    epoch_batches=1562,
    spent_ns=[2 * MS] * 5,
)


def facts(make_facts, line=EACH, rank=0, **more):
    """Five steps of 10 ms that nobody waits in."""
    window = Window("untraced", 3, [10 * MS] * 5, backward_ns=[4 * MS] * 5, backward_cpu_ns=[4 * MS] * 5)
    return make_facts(rank=rank, windows=[window], iterators=[line], **more)


def test_an_iterator_for_each_batch(ask, make_measured, make_facts):
    (advice,) = ask("DP507", make_measured(device="cpu", world=1), [facts(make_facts)])
    assert advice.title == (
        "`Trainer.fit` (train.py:83) creates a DataLoader iterator in each step for 1 of 1,562 batches (20 % of the "
        "step): keep one iterator"
    )
    assert advice.why == "Each iterator restarts its RandomSampler on all 200,000 samples."
    # 2 of 10 ms in each step: four fifths to eleven tenths of that
    assert (advice.saves.basis, advice.saves.predicted_share) == ("timed", pytest.approx(0.2))
    assert (advice.saves.low_share, advice.saves.high_share) == (pytest.approx(0.16), pytest.approx(0.22))
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "high", "changes")


def test_workers_may_be_slower_than_steps(ask, make_measured, make_facts):
    (advice,) = ask("DP507", make_measured(device="cpu", world=1), [facts(make_facts, replace(EACH, num_workers=2))])
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.2))
    assert advice.why == "Each iterator starts 2 workers, and batches prefetched but not used are discarded."


@pytest.mark.parametrize(
    "changed",
    [
        {"spent_ns": [100_000] * 5},  # 1 % of a step
        {"made": 2, "batches": 2},  # in two of five steps
        {"epoch_batches": 1},  # an epoch is one batch
        {"batches": 5 * 900},  # more than half of an epoch
        {"used_up": 4},
        {"other_data": 4},  # each is of another data set: a task, say
    ],
)
def test_quiet(ask, make_measured, make_facts, changed):
    assert ask("DP507", make_measured(device="cpu", world=1), [facts(make_facts, replace(EACH, **changed))]) == []


def test_a_line_is_the_same_on_all_ranks(make_facts):
    """Rank 1 spends 3 of 10 ms. A rank of whose steps the times are not known has no share."""
    slower = replace(EACH, spent_ns=[3 * MS] * 5)
    other = replace(EACH, spent_ns=[3 * MS])
    (found,) = new_iterators([facts(make_facts), facts(make_facts, slower, 1), facts(make_facts, other, 2)])
    assert (found.share, found.a_step, list(found.spent_ns)) == (pytest.approx(0.3), 1.0, [0, 1])


@pytest.mark.parametrize(("spent_ns", "count"), [(2 * MS, 0), (MS, 1)])
def test_what_the_loader_waits_for_is_then_not_its_sampler(ask, make_measured, make_facts, spent_ns, count):
    """It waits 2.4 of 10 ms."""
    own = facts(make_facts, replace(EACH, spent_ns=[spent_ns] * 5), loaders=[LoaderFacts("train.py:59", num_workers=0)])
    assert len(ask("DP501", make_measured(device="cpu", world=1, wait_share=0.24), [own])) == count
