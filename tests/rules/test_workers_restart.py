import pytest

from dptune.measured import Missing
from dptune.runfile.epochs import epoch_starts
from dptune.runfile.facts import Facts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import Window

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
    return Window("untraced", 3, durations, loader_batches=[batches] * len(durations))


EPOCHS = steps(10, 10, 60, 10, 10, 10, 10, 60, 10, 10, 10, 10, 60, 10, 10, 10, 10, 60, 10, 10)


def test_the_steps_that_begin_epochs_are_the_longest(ask, make_measured, make_facts):
    """Epochs of 5 batches on each of two ranks: four steps of 60 ms among 16 of 10 take 200 of 400 ms longer."""
    (advice,) = ask("DP502", make_measured(), [make_facts(loaders=[LOADER], windows=[EPOCHS])])
    assert advice.title == "An epoch has 5 batches, and restarts 2 workers: 50 % of the time"
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
    assert (advice.impact, advice.confidence) == ("high", "medium")


@pytest.mark.parametrize("first", range(6))
def test_it_does_not_matter_where_in_an_epoch_the_window_opens(ask, make_measured, make_facts, first):
    """Epochs of 6 batches: 20 steps hold three of their starts, or four, each 30 ms longer than the other steps."""
    loader = LoaderFacts(**{**vars(LOADER), "dataset_samples": 6 * 32 * 2})
    window = steps(*[40 if at % 6 == first else 10 for at in range(20)])
    (advice,) = ask("DP502", make_measured(), [make_facts(loaders=[loader], windows=[window])])
    starts = len(range(first, 20, 6))
    assert advice.saves.high_share == pytest.approx(30 * starts / (200 + 30 * starts))


def test_a_sampler_that_draws_few_of_the_samples(ask, make_measured, make_facts):
    """Of 1,400 samples an epoch has 4 batches, as the loader says: five steps of 60 ms among 15 of 10."""
    few = LoaderFacts(**{**vars(LOADER), "dataset_samples": 1400, "distributed_sampler": False, "epoch_length": 4})
    window = steps(*[10, 10, 10, 60] * 5)
    (advice,) = ask("DP502", make_measured(), [make_facts(loaders=[few], windows=[window])])
    assert advice.title == "An epoch has 4 batches, and restarts 2 workers: 56 % of the time"
    assert advice.saves.high_share == pytest.approx(5 * 50 / 450)


def test_steps_of_several_batches(ask, make_measured, make_facts):
    """Epochs of 10 batches, two of them a step."""
    twice = LoaderFacts(**{**vars(LOADER), "dataset_samples": 10 * 32 * 2})
    windows = [Window("untraced", 3, EPOCHS.durations_ns, loader_batches=[2] * 20)]
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


LONG = LoaderFacts(**{**vars(LOADER), "dataset_samples": 30 * 32 * 2, "batches_drawn": 35})
MS = 1_000_000


def short_run(start_ms, wait_ms, first=27):
    """As recorded by default: 20 steps of 10 ms, and 5 of 12 with the profiler, of which the last is another."""
    timed = Window("untraced", 6, [10 * MS] * 20, loader_wait_ns=[MS] * 20, loader_batches=[1] * 20)
    took, waits = [12 * MS] * 4 + [start_ms * MS], [MS] * 4 + [wait_ms * MS]
    return [timed, Window("light", first, took, loader_wait_ns=waits, loader_batches=[1] * 5)]


def test_one_start_that_waits_for_the_loader_is_enough(ask, make_measured, make_facts):
    """Epochs of 30 steps: step 31 takes 812 ms where others take 12. Of an epoch that is 800 of 800 + 30 x 12 ms."""
    (advice,) = ask("DP502", make_measured(), [make_facts(loaders=[LONG], windows=short_run(812, 740))])
    assert advice.title == "An epoch has 30 batches, and restarts 2 workers: 69 % of the time"
    assert advice.saves.high_share == pytest.approx(800 / (800 + 30 * 12))
    assert advice.saves.mean_step_ms == pytest.approx((30 * 10 + 800) / 30)
    assert advice.confidence == "low"
    assert {one.label: one.value for one in advice.evidence} == {
        "steps that start an epoch": 1,
        "such a step": 812,
        "of it, waiting for the loader": 740,
        "the other steps": 12,
        "batches of an epoch": 30,
        "workers": 2,
    }


def test_a_start_that_is_long_for_something_else_is_not(ask, make_measured, make_facts):
    """A checkpoint, say."""
    assert ask("DP502", make_measured(), [make_facts(loaders=[LONG], windows=short_run(812, 40))]) == []


def test_where_no_start_was_recorded_it_says_how_many_steps_it_takes(ask, make_measured, make_facts):
    facts = [make_facts(loaders=[LONG], windows=short_run(12, 1, first=12))]
    with pytest.raises(Missing, match=r"an epoch of 30 steps: record 31 .* \(--untraced 31 --window-time 0\)"):
        ask("DP502", make_measured(), facts)


@pytest.mark.parametrize(("batches", "per_step"), [(30, 1), (10, 2), (10, 3), (7, 2), (6, 4)])
def test_which_steps_begin_an_epoch(batches, per_step):
    """Against counting batches: those that draw the first of an epoch, but for the first of all."""
    facts = Facts(
        rank=0,
        loaders=[LoaderFacts(**{**vars(LOADER), "dataset_samples": batches * 32 * 2})],
        windows=[Window("untraced", 1, [10] * 80, loader_wait_ns=[0] * 80, loader_batches=[per_step] * 80)],
    )
    drawn = [range((n - 1) * per_step, n * per_step) for n in range(1, 81)]
    plain = [n for n, own in enumerate(drawn, 1) if n > 1 and any(at % batches == 0 for at in own)]
    facts.windows[0].loader_wait_ns = [100 * (n in plain) for n in range(1, 81)]
    found = epoch_starts(facts, 2)
    assert (found.seen, found.wait_ns, found.usual_wait_ns) == (len(plain), 100, 0)
    assert found.steps == pytest.approx(batches / per_step)


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no untraced steps were timed"):
        ask("DP502", make_measured(), [make_facts(loaders=[LOADER])])
    iterable = LoaderFacts(**{**vars(LOADER), "dataset_samples": None})
    with pytest.raises(Missing, match="number of batches"):
        ask("DP502", make_measured(), [make_facts(loaders=[iterable], windows=[EPOCHS])])
