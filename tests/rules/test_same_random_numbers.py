"""Generators that workers, ranks or epochs hold in the same state: facts are made up."""

from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.generators import GeneratorFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.step_draws import StepDrawFacts

NAME, KIND = "Clips.rng", "numpy.random.Generator"


def generator(*processes, kind=KIND):
    """Each a worker, its epoch and the state."""
    workers, epochs, states = map(list, zip(*processes, strict=True))
    return GeneratorFacts(NAME, kind, "train.py:12", workers, epochs, states)


def loader(*generators, workers=2, dataset="Clips"):
    return LoaderFacts(
        "train.py:40", num_workers=workers, batches_drawn=90, dataset=dataset, generators=list(generators)
    )


def asked(ask, make_measured, make_facts, *ranks, ddp=True):
    facts = [make_facts(rank=rank, loaders=[each], ddp=[DdpFacts("Net")] * ddp) for rank, each in enumerate(ranks)]
    return ask("DP508", make_measured(), facts)


def test_workers_ranks_and_epochs(ask, make_measured, make_facts):
    same = loader(generator(*((worker, epoch, "a") for epoch in range(3) for worker in range(2))))
    (advice,) = asked(ask, make_measured, make_facts, same, same)
    assert advice.title == (
        "Clips.rng (train.py:12) draws the same random numbers in 2 workers of a rank, on 2 ranks and in 3 epochs"
    )
    assert "get_worker_info().dataset.rng = numpy.random.default_rng([torch.initial_seed(), rank])" in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "medium", "high", None)
    assert [one.value for one in advice.evidence] == [2, 2, 3, KIND, "train.py:12", "train.py:40"]


def test_workers_of_one_rank(ask, make_measured, make_facts):
    of_one = loader(generator((0, 0, "a"), (1, 0, "b"), (2, 0, "a"), kind="random.Random"), dataset="Subset")
    (advice,) = asked(ask, make_measured, make_facts, of_one, ddp=False)
    assert advice.title.endswith("the same random numbers in 2 workers of a rank")
    assert "seed Clips.rng with torch.initial_seed() and the rank" in advice.remedy


def test_ranks_without_workers(ask, make_measured, make_facts):
    (advice,) = asked(ask, make_measured, make_facts, *[loader(generator((-1, 0, "a")), workers=0)] * 2)
    assert advice.title.endswith("draws the same random numbers on 2 ranks")
    assert (advice.impact, "[seed, rank]" in advice.remedy) == ("low", True)


def test_one_worker_that_starts_anew_in_each_epoch(ask, make_measured, make_facts):
    (advice,) = asked(ask, make_measured, make_facts, loader(generator((0, 0, "a"), (0, 1, "a")), workers=1))
    assert advice.title.endswith("draws the same random numbers in 2 epochs")


@pytest.mark.parametrize(
    "ranks",
    [
        [loader()],
        [loader(generator((0, 0, "a"), (1, 0, "b")))],
        [loader(generator((0, 0, "a"), (1, 0, "b"))), loader(generator((0, 0, "c"), (1, 0, "d")))],
        [loader(generator((0, 0, "a"), (1, 0, "b"), (0, 1, "c"), (1, 1, "d")))],
        # Another worker, rank or epoch: none of them stands for the same process.
        [loader(generator((0, 0, "a"))), loader(generator((1, 0, "a")))],
    ],
)
def test_quiet(ask, make_measured, make_facts, ranks):
    assert asked(ask, make_measured, make_facts, *ranks) == []


def test_ranks_of_one_replica_share_their_samples(ask, make_measured, make_facts):
    assert asked(ask, make_measured, make_facts, *[loader(generator((-1, 0, "a")), workers=0)] * 2, ddp=False) == []


def test_the_loader_of_a_validation_is_not_judged(ask, make_measured, make_facts):
    of_few = replace(loader(generator((0, 0, "a"), (1, 0, "a"))), where="train.py:50", batches_drawn=9)
    facts = [make_facts(rank=0, loaders=[of_few, loader()], ddp=[DdpFacts("Net")])]
    assert ask("DP508", make_measured(), facts) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP508", make_measured(), [])


def step_draws(where="train.py:30", values=("a", "b", "c"), *, of_batch=True):
    return StepDrawFacts(where, "randn_like", [64, 8], [*values], of_batch)


def test_numbers_that_steps_draw_alike_on_all_ranks(ask, make_measured, make_facts):
    lines = [step_draws(), step_draws("train.py:31"), step_draws("train.py:32")]
    facts = [make_facts(rank=rank, ddp=[DdpFacts("Net")], step_draws=lines) for rank in range(2)]
    (advice,) = ask("DP508", make_measured(), facts)
    assert advice.title == (
        "Both ranks draw the same random numbers in each step (train.py:30, train.py:31 and 1 more)"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "medium", "high")
    assert [found.value for found in advice.evidence] == ["64 x 8"] * 3 + [3]
    assert "torch.manual_seed(seed + rank)" in advice.remedy


def test_numbers_that_may_choose_samples(ask, make_measured, make_facts):
    draws = [step_draws(of_batch=False)]
    facts = [make_facts(rank=rank, ddp=[DdpFacts("Net")], step_draws=draws) for rank in range(2)]
    (advice,) = ask("DP508", make_measured(), facts)
    assert advice.confidence == "medium"
    assert "If these numbers make or choose samples, all ranks train on the same data" in advice.why


def test_three_ranks_are_all_ranks(ask, make_measured, make_facts):
    facts = [make_facts(rank=rank, ddp=[DdpFacts("Net")], step_draws=[step_draws()]) for rank in range(3)]
    (advice,) = ask("DP508", make_measured(), facts)
    assert advice.title.startswith("All 3 ranks draw the same random numbers")


@pytest.mark.parametrize(
    ("ddp", "values"), [(True, ("a", "b")), (True, ("a", "a", "a")), (True, ("d", "e", "f")), (False, ("a", "b", "c"))]
)
def test_quiet_of_steps(ask, make_measured, make_facts, ddp, values):
    facts = [
        make_facts(rank=rank, ddp=[DdpFacts("Net")] * ddp, step_draws=[step_draws(values=each)])
        for rank, each in enumerate((("a", "b", "c"), values))
    ]
    if values == ("a", "a", "a"):
        facts[0].step_draws = facts[1].step_draws
    assert ask("DP508", make_measured(), facts) == []
