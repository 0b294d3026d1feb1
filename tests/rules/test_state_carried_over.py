"""States that are carried from batch to batch: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.carried_states import CarriedStateFacts
from dptune.runfile.loader import LoaderFacts

CARRIED = CarriedStateFacts("LSTM", "train.py:10", 4, 4)
SHUFFLED = LoaderFacts("train.py:15", sampler="RandomSampler", batches_drawn=9)
OF_RANKS = LoaderFacts(
    "train.py:15", sampler="DistributedSampler", distributed_sampler=True, sampler_epoch=0, batches_drawn=9
)
IN_ORDER = LoaderFacts("train.py:15", sampler="SequentialSampler", batches_drawn=9)
OF_VALIDATION = LoaderFacts("train.py:16", sampler="SequentialSampler", batches_drawn=3)


@pytest.mark.parametrize("loaders", [[SHUFFLED], [OF_RANKS], [OF_VALIDATION, SHUFFLED]])
def test_shuffled_samples_with_the_state_of_others(ask, make_measured, make_facts, loaders):
    (advice,) = ask("DP514", make_measured(), [make_facts(carried_states=[CARRIED], loaders=loaders)])
    assert advice.title == (
        "LSTM (train.py:10) starts each batch with the state of the previous batch, but the loader shuffles: "
        "samples start with the state of unrelated ones"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert [found.value for found in advice.evidence] == [4, loaders[-1].sampler, "train.py:15"]
    assert advice.remedy.startswith("Pass no state at the start of a batch")


@pytest.mark.parametrize(
    "loader",
    [
        IN_ORDER,
        LoaderFacts(sampler="DistributedSampler", distributed_sampler=True, batches_drawn=9),  # shuffle=False
        LoaderFacts(sampler="RandomSampler", own_batches=True, batches_drawn=9),
        LoaderFacts(sampler="RandomSampler", iterable=True, batches_drawn=9),
        LoaderFacts(sampler="RandomSampler"),
    ],
)
def test_samples_in_an_order_of_the_script(ask, make_measured, make_facts, loader):
    assert ask("DP514", make_measured(), [make_facts(carried_states=[CARRIED], loaders=[loader])]) == []


@pytest.mark.parametrize("batches", [(0, 4), (1, 1), (3, 4)])
def test_batches_that_start_otherwise(ask, make_measured, make_facts, batches):
    found = CarriedStateFacts("GRU", "train.py:10", *batches)
    assert ask("DP514", make_measured(), [make_facts(carried_states=[found], loaders=[SHUFFLED])]) == []


def test_traces_alone_do_not_show_it(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP514", make_measured(), [])
