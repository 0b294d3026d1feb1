import pytest

from dptune.measured import Missing
from dptune.runfile.communication import CallFacts
from dptune.runfile.facts import DeviceFacts
from dptune.runfile.histories import HistoryFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import SampledFacts, Window

MS = 1_000_000


def place(*path, ms, phase="", through="", kind=""):
    return SampledFacts(list(path), phase, through, kind, 20, list(range(20)), [ms * MS] * 20)


def logging_run(make_facts, ms, **more):
    """20 steps of 10 ms that log for so many."""
    window = Window("untraced", 4, [10 * MS] * 20)
    window.sampled = [
        place("main (train.py:40)", ms=10 - ms, phase="backward"),
        place("main (train.py:44)", "log_step (train.py:18)", ms=ms),
    ]
    return make_facts(windows=[window], device=DeviceFacts("cpu"), **more)


def test_a_function_that_logs_each_step(ask, make_measured, make_facts):
    """2 of 10 ms; of 40 looks a share of 0.2 is unsure by 1.645 x sqrt(0.2 x 0.8 / 40) = 0.104."""
    (advice,) = ask("DP609", make_measured(world=1, device="cuda"), [logging_run(make_facts, 2)])
    assert advice.title == "`log_step` (train.py:44) takes 20 % of each step: log every N steps"
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("high", "high", "bound")
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.304, abs=1e-3))
    assert [one.value for one in advice.evidence] == [0.2, 20, "train.py:44", "log_step (train.py:18)"]
    assert advice.changes == []


def test_the_lines_of_the_function_and_the_loop_around_them(ask, make_measured, make_facts):
    facts = logging_run(make_facts, 2)
    ways = [SampledFacts(["main (train.py:44)", f"log_step (train.py:{line})"]) for line in (18, 21)]
    for sample, ms in zip(ways, (1.2, 0.8), strict=True):
        sample.looks, sample.loops, sample.steps, sample.spent_ns = 9, [31, 17], list(range(20)), [int(ms * MS)] * 20
    window = facts.window("untraced")
    window.sampled = [window.sampled[0], *ways]
    (advice,) = ask("DP609", make_measured(world=1, device="cuda"), [facts])
    shown = {one.label: one.value for one in advice.evidence}
    assert shown["lines that take most time"] == "train.py:18 (60 %), train.py:21 (40 %)"
    assert shown["loops around them"] == "train.py:17 (100 %)"


@pytest.mark.parametrize(
    ("ms", "where", "named"), [(1.5, "train.py:44", 0), (0.5, "train.py:44", 1), (1.5, "a.py:4", 1)]
)
def test_a_logger_that_mostly_communicates_is_named_by_its_collectives(
    ask, make_measured, make_facts, ms, where, named
):
    """It logs for 2 of 10 ms, of which so many are in collectives at a line."""
    call = CallFacts("all_reduce", where, untraced_calls=20, untraced_ns=int(20 * ms * MS), through="lightning.log")
    facts = logging_run(make_facts, 2, calls=[call])
    assert len(ask("DP609", make_measured(world=1, device="cpu"), [facts])) == named


def test_on_a_cpu_its_time_goes_away(ask, make_measured, make_facts):
    """20 % are unsure by 10.4; a fifth of the least is left, and a tenth more than the most may be gained."""
    (advice,) = ask("DP609", make_measured(world=1, device="cpu"), [logging_run(make_facts, 2)])
    assert (advice.saves.basis, advice.saves.predicted_share) == ("sampled", pytest.approx(0.2))
    assert advice.saves.low_share == pytest.approx(0.8 * 0.096, abs=1e-3)
    assert advice.saves.high_share == pytest.approx(1.3 * 0.304, abs=1e-3)


def test_what_all_ranks_spend_is_saved_at_least(ask, make_measured, make_facts):
    """Of 40 looks 10 % are unsure by 7.8, and 30 % by 11.9."""
    ranks = [logging_run(make_facts, 1), logging_run(make_facts, 3, rank=1)]
    (advice,) = ask("DP609", make_measured(world=2, device="cpu"), ranks)
    assert advice.saves.basis == "sampled"
    assert advice.saves.low_share == pytest.approx(0.8 * (0.1 - 0.078), abs=1e-3)
    assert advice.saves.high_share == pytest.approx(1.3 * (0.3 + 0.1192), abs=1e-3)


def alone(make_facts, backward_cpu_ms):
    """Rank 0 logs for 3 of 10 ms; the other ranks are busy for so long of them, in backward passes, and wait."""
    ranks = [logging_run(make_facts, 3)]
    ranks += [logging_run(make_facts, 0, rank=at + 1) for at in range(len(backward_cpu_ms) - 1)]
    for own, ms in zip(ranks, backward_cpu_ms, strict=True):
        window = own.window("untraced")
        window.backward_ns = [7 * MS if own.rank == 0 else 10 * MS] * 20
        window.backward_cpu_ns = [int(ms * MS)] * 20
        window.loader_wait_ns = [0] * 20
        window.sampled = window.sampled[: 2 if own.rank == 0 else 1]
    return ranks


def test_what_one_rank_does_is_saved_down_to_the_next_busiest(ask, make_measured, make_facts):
    """Rank 0 is busy for 3 and 7 ms; without at least 1.81 of that for 8.19, more than the 6 of rank 1."""
    (advice,) = ask("DP609", make_measured(world=2, device="cpu"), alone(make_facts, [7, 6]))
    assert advice.saves.how == "the work is in 20 stack samples of rank 0; the interval includes the sampling error"
    assert advice.saves.low_share == pytest.approx(0.8 * 0.1808, abs=1e-3)
    # With 9.5 ms of rank 1 only half a millisecond of it is on the critical path.
    (advice,) = ask("DP609", make_measured(world=2, device="cpu"), alone(make_facts, [7, 9.5]))
    assert advice.saves.low_share == pytest.approx(0.8 * 0.05, abs=1e-3)
    # With another rank that is as busy, or not recorded, nothing may be saved: a bound.
    for world, ranks in ((2, alone(make_facts, [7, 10])), (2, alone(make_facts, [7]))):
        (advice,) = ask("DP609", make_measured(world=world, device="cpu"), ranks)
        assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)


def test_of_several_ranks_the_one_is_named(ask, make_measured, make_facts):
    ranks = [logging_run(make_facts, 1), logging_run(make_facts, 3, rank=1)]
    (advice,) = ask("DP609", make_measured(world=2), ranks)
    assert "takes 30 % of each step on rank 1:" in advice.title
    assert advice.why.endswith("and the other ranks wait for it.")
    both = [logging_run(make_facts, 3), logging_run(make_facts, 3, rank=1)]
    (advice,) = ask("DP609", make_measured(world=2), both)
    assert "takes 30 % of each step: log" in advice.title
    assert "wait for it" not in advice.why


def test_quiet_where_it_is_little(ask, make_measured, make_facts):
    assert ask("DP609", make_measured(), [logging_run(make_facts, 0)]) == []
    assert ask("DP609", make_measured(), [logging_run(make_facts, 2)], {"worth_share": 0.3}) == []


def test_an_older_recording_says_what_it_lacks(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no stack samples of untraced steps"):
        ask("DP609", make_measured(), [make_facts(windows=[Window("untraced", 4, [10 * MS] * 20)])])


@pytest.mark.parametrize("code", ["DP609", "DP703"])
def test_a_trace_that_dptune_did_not_record_lacks_facts(ask, make_measured, code):
    with pytest.raises(Missing, match="needs a recording by `dptune profile`"):
        ask(code, make_measured(), [])


@pytest.mark.parametrize("through", ["torch.Tensor.__format__", "torch.Tensor.__repr__"])
def test_text_made_of_tensors_is_logging_whatever_the_function_is_named(ask, make_measured, make_facts, through):
    window = Window("untraced", 4, [10 * MS] * 20)
    window.sampled = [
        place("main (train.py:130)", ms=8, phase="backward"),
        place("main (train.py:131)", "look (train.py:104)", ms=2, through=through),
    ]
    facts = make_facts(windows=[window], device=DeviceFacts("cpu"))
    (advice,) = ask("DP609", make_measured(world=1, device="cpu"), [facts])
    assert advice.title == "`look` (train.py:131) takes 20 % of each step: log every N steps"
    assert 'log.debug("%s", tensor)' in advice.watch


def test_a_name_alone_does_not_make_batches_of_the_training_loader_an_evaluation(ask, make_measured, make_facts):
    window = Window("untraced", 4, [10 * MS] * 20)
    window.sampled = [
        place("main (train.py:40)", ms=6, phase="forward"),
        place("main (train.py:41)", "evaluate_batch (train.py:21)", ms=4, phase="loader"),
    ]
    assert ask("DP609", make_measured(world=1, device="cpu"), [make_facts(windows=[window])]) == []


@pytest.mark.parametrize(("device", "found"), [("cpu", 1), ("cuda", 0)])
def test_a_validation_of_the_script_in_each_step(ask, make_measured, make_facts, device, found):
    """Forward passes and a loader of its own are no way through training; on a GPU it may wait for the device."""
    window = Window("untraced", 4, [10 * MS] * 20)
    window.sampled = [
        place("main (train.py:40)", ms=3, phase="forward"),
        place("main (train.py:41)", ms=3, phase="backward"),
        place("main (train.py:42)", "evaluate (train.py:21)", ms=3, phase="forward", kind="evaluation"),
        place("main (train.py:42)", "evaluate (train.py:20)", ms=1, phase="loader", kind="evaluation"),
    ]
    advice = ask(
        "DP609", make_measured(world=1, device=device), [make_facts(windows=[window], device=DeviceFacts(device))]
    )
    assert [one.title for one in advice] == [
        "`evaluate` (train.py:42) takes 40 % of each step: evaluate every N steps"
    ] * found


def joining(make_facts, ms, *, batches=256, device="cpu", line="train.py:23", function="fit", steps=20):
    """20 steps of 10 ms from number 6 on; in each `ranks` takes so many of the values of all steps."""
    window = Window("untraced", 6, [10 * MS] * 20)
    window.sampled = [
        place("fit (train.py:40)", "train_step (train.py:20)", ms=10 - ms, phase="backward"),
        place("fit (train.py:40)", "train_step (train.py:23)", "ranks (train.py:9)", ms=ms),
    ]
    found = window.sampled[1]
    found.steps, found.spent_ns, found.looks = found.steps[:steps], found.spent_ns[:steps], steps
    loaders = [LoaderFacts("train.py:30", batches_drawn=30, epoch_length=batches)]
    histories = [HistoryFacts(line, function, 4, 1, 3)]
    return make_facts(windows=[window], device=DeviceFacts(device), loaders=loaders, histories=histories)


def test_what_is_computed_of_the_values_of_all_steps_grows(ask, make_measured, make_facts):
    """In the middle step, number 16, it joins 17 values; an epoch's mean is 128, 128 / 17 times as many."""
    (advice,) = ask("DP609", make_measured(world=1, device="cpu"), [joining(make_facts, 1)])
    assert advice.title == (
        "`ranks` (train.py:23) takes 10 % of each step, and joins the values of all steps so far (about 46 % over an "
        "epoch of 256 steps): add up what each step contributes, or compute it once per epoch"
    )
    assert (advice.impact, advice.confidence) == ("high", "medium")
    assert advice.saves.predicted_share == pytest.approx(0.1)
    assert advice.evidence[-1].value == "train.py:23"


@pytest.mark.parametrize(("batches", "share"), [(10, "10 % of each step, and joins the values of all steps so far:")])
def test_a_short_epoch_has_the_share_of_the_recorded_steps(ask, make_measured, make_facts, batches, share):
    (advice,) = ask("DP609", make_measured(world=1, device="cpu"), [joining(make_facts, 1, batches=batches)])
    assert share in advice.title


@pytest.mark.parametrize(
    ("line", "function", "device", "found"),
    [
        ("train.py:8", "ranks", "cpu", 1),  # the function joins them itself
        ("train.py:24", "train_step", "cpu", 0),  # another line of what trains
        ("train.py:23", "train_step", "cuda", 0),  # it may wait for the device
    ],
)
def test_whose_time_grows(ask, make_measured, make_facts, line, function, device, found):
    facts = joining(make_facts, 1, device=device, line=line, function=function)
    assert len(ask("DP609", make_measured(world=1, device=device), [facts])) == found


def test_a_few_samples_are_enough_where_later_steps_take_longer(ask, make_measured, make_facts):
    (advice,) = ask("DP609", make_measured(world=1, device="cpu"), [joining(make_facts, 4, steps=3)])
    assert "takes 6 % of each step, and joins the values of all steps so far (more over an epoch" in advice.title
    assert (advice.impact, advice.confidence) == ("medium", "low")
    known = joining(make_facts, 4, steps=3)
    known.histories = []
    assert ask("DP609", make_measured(world=1, device="cpu"), [known]) == []
