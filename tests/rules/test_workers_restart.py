import pytest

from dptune.measured import Missing
from dptune.runfile.facts import LoaderFacts, Window

LOADER = LoaderFacts(
    "train.py:20",
    batch_size=32,
    num_workers=2,
    persistent_workers=False,
    dataset="Clips",
    dataset_samples=5 * 32 * 2,
    batches_drawn=60,
    distributed_sampler=True,
)


def steps(*durations_ms, batches=1):
    durations = [int(ms * 1e6) for ms in durations_ms]
    return Window("unprofiled", 3, durations, loader_batches=[batches] * len(durations))


EPOCHS = steps(10, 10, 60, 10, 10, 10, 10, 60, 10, 10, 10, 10, 60, 10, 10, 10, 10, 60, 10, 10)


def test_the_steps_that_begin_epochs_are_the_longest(ask, make_measured, make_facts):
    """Epochs of 5 batches on each of two ranks: four steps of 60 ms among 16 of 10 take 200 of 400 ms longer."""
    (advice,) = ask("DP502", make_measured(), [make_facts(loaders=[LOADER], windows=[EPOCHS])])
    assert advice.title == "An epoch has 5 batches, and starts 2 workers anew: 50 % of the time"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == (
        "loader.persistent_workers",
        False,
        True,
        "train.py:20",
    )
    assert advice.saves.high_share == pytest.approx(0.5)
    assert advice.saves.mean_step_ms == pytest.approx(20)
    assert advice.saves.high_ms == pytest.approx(10)  # of the mean step: the median one takes 10 already
    assert (advice.severity, advice.confidence) == ("error", "medium")


def test_steps_of_several_batches(ask, make_measured, make_facts):
    """Epochs of 10 batches, two of them a step."""
    twice = LoaderFacts(**{**vars(LOADER), "dataset_samples": 10 * 32 * 2})
    windows = [Window("unprofiled", 3, EPOCHS.durations_ns, loader_batches=[2] * 20)]
    (advice,) = ask("DP502", make_measured(), [make_facts(loaders=[twice], windows=windows)])
    assert advice.title.startswith("An epoch has 10 batches")


@pytest.mark.parametrize(
    ("loader", "window"),
    [
        ({"persistent_workers": True}, EPOCHS),
        ({"num_workers": 0}, EPOCHS),
        ({}, steps(10, 60, 60, 60, 60, *[10] * 15)),  # the longest steps follow each other
        ({}, steps(*[10] * 20)),
        ({"dataset_samples": 10**7}, EPOCHS),  # an epoch of 26 minutes
    ],
)
def test_quiet(ask, make_measured, make_facts, loader, window):
    facts = make_facts(loaders=[LoaderFacts(**{**vars(LOADER), **loader})], windows=[window])
    assert ask("DP502", make_measured(), [facts]) == []


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no steps were timed"):
        ask("DP502", make_measured(), [make_facts(loaders=[LOADER])])
    iterable = LoaderFacts(**{**vars(LOADER), "dataset_samples": None})
    with pytest.raises(Missing, match="how many batches"):
        ask("DP502", make_measured(), [make_facts(loaders=[iterable], windows=[EPOCHS])])
