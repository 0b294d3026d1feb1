"""Schedules that advance faster or slower than the training they are built for: facts are made up."""

from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.schedules import PlateauFacts, SchedulerFacts, epochs_of
from dptune.runfile.window import Window

ONCE_PER_EPOCH = SchedulerFacts(
    "OneCycleLR",
    "model.py:41",
    length=400,
    advanced=[0, 0],
    optimizer_steps=[3, 23],
    interval="epoch",
    frequency=1,
    epochs=4,
    training_steps=400,
)
# 187 batches of all ranks, 93 of each of two; 3 epochs of them are 279 steps.
ONCE_PER_PROCESS = SchedulerFacts("LambdaLR", "train.py:60", length=279, advanced=[4, 44], optimizer_steps=[3, 23])
LOADER = LoaderFacts("train.py:57", batches_drawn=30, epoch_length=93, undivided_length=187)


def asked(ask, make_measured, make_facts, scheduler, loader=LOADER, world_size=2, batches=1):
    window = Window("untraced", 4, loader_batches=[batches] * 9)
    facts = make_facts(schedulers=[scheduler], loaders=[loader], world_size=world_size, windows=[window])
    return ask("DP303", make_measured(), [facts])


def test_lightning_steps_it_once_per_epoch(ask, make_measured, make_facts):
    (advice,) = asked(ask, make_measured, make_facts, ONCE_PER_EPOCH)
    assert advice.title == (
        "OneCycleLR (model.py:41) is built for 400 steps but advances once per epoch: 4 steps in the whole training"
    )
    assert '"interval": "step"' in advice.remedy
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert [one.value for one in advice.evidence] == [400, 400, 4, "model.py:41"]


def test_one_step_per_process(ask, make_measured, make_facts):
    (advice,) = asked(ask, make_measured, make_facts, ONCE_PER_PROCESS)
    assert advice.title == (
        "LambdaLR (train.py:60) is built for 279 optimizer steps (3 x 93 per epoch) but advances 2 steps in each: "
        "it ends after 140"
    )
    assert "accelerator.num_processes" in advice.remedy
    assert [one.value for one in advice.evidence] == [2, 279, 93, 187, "train.py:60"]


def test_one_step_per_process_while_batches_accumulate(ask, make_measured, make_facts):
    """93 batches are 24 optimizer steps of 4; 3 epochs of them are 72."""
    (advice,) = asked(ask, make_measured, make_facts, replace(ONCE_PER_PROCESS, length=72), batches=4)
    assert "72 optimizer steps (3 x 24 per epoch)" in advice.title


@pytest.mark.parametrize(
    "scheduler",
    [
        replace(ONCE_PER_EPOCH, interval="step", advanced=[2, 22]),
        replace(ONCE_PER_EPOCH, length=4),  # the epochs
        replace(ONCE_PER_EPOCH, length=200),  # not all steps: perhaps epochs of a longer training
        replace(ONCE_PER_EPOCH, length=None),
        replace(ONCE_PER_EPOCH, training_steps=None),
        replace(ONCE_PER_EPOCH, advanced=[2, 22]),  # the script steps it too
        replace(ONCE_PER_EPOCH, training_steps=20, length=20),  # an epoch is no longer than 5 steps
        replace(ONCE_PER_PROCESS, advanced=[2, 22]),  # one step in each
        replace(ONCE_PER_PROCESS, length=3 * 187),  # of all processes
        replace(ONCE_PER_PROCESS, length=280),  # no whole epochs
        replace(ONCE_PER_PROCESS, length=93 * 50),  # round
        replace(ONCE_PER_PROCESS, length=None),
        replace(ONCE_PER_PROCESS, optimizer_steps=[3, 5], advanced=[4, 8]),  # too short to count
        SchedulerFacts("StepLR", "train.py:60"),  # of an earlier version
    ],
)
def test_quiet(ask, make_measured, make_facts, scheduler):
    assert asked(ask, make_measured, make_facts, scheduler) == []


def test_quiet_where_either_count_may_be_meant(ask, make_measured, make_facts):
    """4 epochs of 93 batches are 2 of 186."""
    even = replace(LOADER, undivided_length=186)
    assert asked(ask, make_measured, make_facts, replace(ONCE_PER_PROCESS, length=4 * 93), even) == []
    assert asked(ask, make_measured, make_facts, ONCE_PER_PROCESS, replace(LOADER, undivided_length=None)) == []


@pytest.mark.parametrize(
    ("length", "batches", "per_step", "epochs"),
    [(279, 93, 1, (3, 93)), (72, 93, 4, (3, 24)), (69, 93, 4, (3, 23)), (280, 93, 1, None), (9, 3, 4, (9, 1))],
)
def test_whole_epochs(length, batches, per_step, epochs):
    assert epochs_of(length, batches, per_step) == epochs


COSINE = SchedulerFacts("CosineAnnealingLR", "train.py:44", length=12, advanced=[4, 34], optimizer_steps=[5, 35])
EPOCH = LoaderFacts("train.py:57", batches_drawn=35, epoch_length=61)
AHEAD = replace(COSINE, length=90, epochs=90)
LONG = replace(EPOCH, epoch_length=900)


def alone(ask, make_measured, make_facts, scheduler, loader=EPOCH, batches=1):
    return asked(ask, make_measured, make_facts, scheduler, loader, 1, batches)


def test_epochs_stepped_with_the_batches(ask, make_measured, make_facts):
    (advice,) = alone(ask, make_measured, make_facts, COSINE)
    assert advice.title == (
        "CosineAnnealingLR (train.py:44) advances in every optimizer step and ends after 12 of the 61 in an epoch"
    )
    assert "falls and rises every 12 steps" in advice.why
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert [one.value for one in advice.evidence] == [12, 1.0, 61, 34, "train.py:44"]


@pytest.mark.parametrize(
    ("scheduler", "confidence"),
    [
        (AHEAD, "high"),  # the epochs that the script plans
        (replace(AHEAD, epochs=91), "medium"),
        (replace(AHEAD, name="StepLR", length=None, decayed_after=60), "medium"),
        (replace(AHEAD, name="StepLR", length=None, decayed_after=20, epochs=None), "high"),  # passed
        (replace(AHEAD, name="PolynomialLR", decayed_after=90), "high"),
    ],
)
def test_an_end_after_the_recording_is_less_certain(ask, make_measured, make_facts, scheduler, confidence):
    (advice,) = alone(ask, make_measured, make_facts, scheduler, LONG)
    assert advice.confidence == confidence


def test_scheduler_steps_and_batches_are_counted_in_optimizer_steps(ask, make_measured, make_facts):
    """Two steps in each optimizer step: 12 are 6 optimizer steps; 61 batches, two in a step, are 30."""
    twice = replace(COSINE, advanced=[4, 64])
    (advice,) = alone(ask, make_measured, make_facts, twice, batches=2)
    assert "ends after 6 of the 30 in an epoch" in advice.title


@pytest.mark.parametrize(
    ("scheduler", "loader"),
    [
        (replace(COSINE, advanced=[0, 0]), EPOCH),  # once per epoch
        (replace(COSINE, length=12 * 61), EPOCH),  # in steps
        (replace(COSINE, length=31), EPOCH),  # more than half of an epoch
        (replace(COSINE, length=5), replace(EPOCH, epoch_length=9)),  # short epochs
        (COSINE, replace(EPOCH, epoch_length=None)),
        (replace(AHEAD, length=91, epochs=91), LONG),  # not ten times
        (replace(AHEAD, epochs=None), LONG),  # pre-training for 90 steps
        (replace(AHEAD, epochs=1), LONG),
        (replace(AHEAD, epochs=89), LONG),
        (replace(AHEAD, name="MultiStepLR", length=None, decayed_after=60, epochs=3), LONG),
        (replace(COSINE, name="OneCycleLR"), EPOCH),
        (replace(COSINE, name="LinearLR"), EPOCH),  # warm-up
        (replace(COSINE, name="LambdaLR"), EPOCH),
        (replace(COSINE, name="CosineAnnealingWarmRestarts", length=None), EPOCH),
    ],
)
def test_quiet_where_the_batches_are_meant(ask, make_measured, make_facts, scheduler, loader):
    assert alone(ask, make_measured, make_facts, scheduler, loader) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP303", make_measured(), [])


def plateaus(make_facts, *values, rates=((0.1, 0.1), (0.1, 0.1)), where="train.py:60", **more):
    """Facts of two ranks, each with these values."""
    more = {"ddp": [DdpFacts("DistributedDataParallel", ranks=[0, 1])]} | more
    return [
        make_facts(
            rank=rank,
            world_size=2,
            plateaus=[PlateauFacts(where, "train.py:88", list(of_rank), list(rates[rank]))],
            **more,
        )
        for rank, of_rank in enumerate(values)
    ]


def test_ranks_step_a_plateau_with_values_of_their_own(ask, make_measured, make_facts):
    (advice,) = ask("DP303", make_measured(), plateaus(make_facts, (0.5, 0.4), (0.6, 0.3)))
    assert advice.title == "ReduceLROnPlateau (train.py:88) steps with a different value on each rank"
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "medium", "high")
    assert [(one.value, one.rank) for one in advice.evidence] == [(2, None), (0.4, 0), (0.3, 1), ("train.py:60", None)]
    assert "all_reduce" in advice.remedy


def test_rates_that_differ_already(ask, make_measured, make_facts):
    lowered = ((0.1, 0.1), (0.1, 0.05))
    (advice,) = ask("DP303", make_measured(), plateaus(make_facts, (0.5, 0.4), (0.6, 0.7), rates=lowered))
    assert advice.title.endswith("different value on each rank: learning rates differ between ranks")
    assert (advice.impact, advice.threatens_results) == ("high", True)
    assert [one.value for one in advice.evidence if one.label.startswith("learning rate")] == [0.1, 0.05]


@pytest.mark.parametrize(
    ("values", "more"),
    [
        (((0.5, 0.4), (0.5, 0.4)), {}),
        (((0.5, 0.4), (0.50001, 0.39999)), {}),  # rounding
        (((0.5, 0.4), (0.6, 0.4)), {}),  # one call
        (((0.5,), (0.6, 0.7)), {}),  # one call on one of them
        (((float("nan"), 0.4), (0.6, 0.3)), {}),
        (((0.5, 0.4), (0.6, 0.3)), {"ddp": []}),  # models of their own
        (((0.5, 0.4), (0.6, 0.3)), {"ddp": [DdpFacts("DistributedDataParallel", ranks=[0])]}),
        (((0.5, 0.4),), {}),  # one rank
    ],
)
def test_quiet_where_ranks_decide_alike(ask, make_measured, make_facts, values, more):
    assert ask("DP303", make_measured(), plateaus(make_facts, *values, **more)) == []


def test_quiet_where_schedulers_are_made_in_another_order(ask, make_measured, make_facts):
    first, second = plateaus(make_facts, (0.5, 0.4), (0.6, 0.3))
    second.plateaus[0].where = "train.py:61"
    assert ask("DP303", make_measured(), [first, second]) == []
