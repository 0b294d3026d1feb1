import pytest

from dptune.measured import Missing
from dptune.runfile.facts import LoaderFacts, Window


def facts(make_facts, *durations_ms, **more):
    return [make_facts(windows=[Window("unprofiled", 3, [int(ms * 1e6) for ms in durations_ms])], **more)]


def test_one_step_in_five(ask, make_measured, make_facts):
    """Three steps of 50 ms among 12 of 10: they take 120 of 270 ms longer."""
    (advice,) = ask("DP703", make_measured(), facts(make_facts, *[10, 10, 50, 10, 10] * 3))
    assert advice.title == "One step in 5 takes 5.0 times as long as the others: 44 % of the time"
    assert advice.saves.high_share == pytest.approx(120 / 270)
    assert (advice.saves.mean_step_ms, advice.saves.high_ms) == (pytest.approx(18), pytest.approx(8))
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("high", "high", "bound")
    assert [one.value for one in advice.evidence] == [3, 5, 50.0, 10.0]


@pytest.mark.parametrize(
    "durations",
    [
        [10, 50, 10, 10, 50, 10, 10, 10, 50, 10, 10],  # at no one distance
        [10, 50, 10, 10, 50, 10, 10],  # two are too few
        [10, 14, 10, 10, 14, 10, 10, 14, 10],
        [10] * 12,
        [10, *[50, 50, 50], *[10] * 8],  # one after the other
        [*[10] * 8, 50, 10, 50, 10, 50],  # none of them in the first half
    ],
)
def test_quiet(ask, make_measured, make_facts, durations):
    assert ask("DP703", make_measured(), facts(make_facts, *durations)) == []


def test_workers_that_restart_have_a_rule_of_their_own(ask, make_measured, make_facts):
    steps = [10, 10, 50, 10, 10] * 3
    short = {"num_workers": 2, "batch_size": 8, "dataset_samples": 80, "distributed_sampler": True}  # 5 a rank
    short["batches_drawn"] = 9
    for loader, many in (
        (LoaderFacts(persistent_workers=False, **short), 0),
        (LoaderFacts(persistent_workers=True, **short), 1),
        (LoaderFacts(persistent_workers=False, **{**short, "dataset_samples": 8000}), 1),
    ):
        assert len(ask("DP703", make_measured(), facts(make_facts, *steps, loaders=[loader]))) == many


def test_epochs_are_counted_in_steps(ask, make_measured, make_facts):
    """Ten batches are five steps of two: what comes every ten steps is not the beginning of epochs."""
    loader = LoaderFacts(
        num_workers=2, batch_size=8, dataset_samples=160, distributed_sampler=True, persistent_workers=False
    )
    loader.batches_drawn = 60
    for steps, many in (([10, 10, 50, 10, 10] * 3, 0), (([10] * 4 + [50] + [10] * 5) * 3, 1)):
        own = facts(make_facts, *steps, loaders=[loader])
        own[0].windows[0].loader_batches = [2] * len(steps)
        assert len(ask("DP703", make_measured(), own)) == many


def test_steps_of_a_gpu_are_timed_on_it(ask, make_measured, make_facts):
    """The script reads a value back every fifth step, and catches up with what it had queued."""
    own = facts(make_facts, *[10, 10, 10, 10, 460] * 4)
    assert len(ask("DP703", make_measured(), own)) == 1
    own[0].windows[0].device_durations_ns = [100_000_000] * 20
    assert ask("DP703", make_measured(), own) == []


def test_garbage_has_a_rule_of_its_own(ask, make_measured, make_facts):
    own = facts(make_facts, *[10, 10, 50, 10, 10] * 3)
    own[0].windows[0].gc_ns = [0, 0, 39_000_000, 0, 0] * 3
    assert ask("DP703", make_measured(), own) == []


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no steps were timed"):
        ask("DP703", make_measured(), [make_facts()])
