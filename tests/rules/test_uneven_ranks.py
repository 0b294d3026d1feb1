import pytest

from dptune.measured import LoadFigures, Missing, StragglerFigures
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.load import LoadFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import Window


def waiting(hand_made, share):
    whole = 2 * hand_made.STEPS * hand_made.STEP_NS
    ns = int(share * whole)
    return hand_made.Account(window_ns=whole, compute_ns=whole - ns, exposed_waiting_ns=ns, communication_ns=ns)


def test_ranks_that_take_turns(ask, make_measured, hand_made):
    run = make_measured(account=waiting(hand_made, 0.2), lags_ms=[[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]])
    (advice,) = ask("DP702", run)
    assert advice.title == (
        "Ranks take turns being late, by 4.00 ms in the median step (rank 0 in 3, rank 1 in 2 of 5 steps): the others "
        "wait for 40 % of a step"
    )
    assert (advice.impact, advice.saves.basis) == ("medium", "bound")
    assert advice.saves.high_share == pytest.approx(0.4)  # 4 ms of 10: what the latest of each step is late
    assert "The recording does not show why" in advice.why


@pytest.mark.parametrize(
    ("waited_ms", "other_cores", "count"), [(4, 1.0, 0), (3, 1.0, 0), (2, 1.0, 1), (9, 0.3, 0), (9, 0.2, 1)]
)
def test_other_processes_may_be_what_makes_them_late(
    ask, make_measured, make_facts, hand_made, waited_ms, other_cores, count
):
    """Ranks are 4 ms late. In a step of 10 ms one waits for a core, while others run at most 10 x `other_cores` ms.

    What is left of the delay must be 1.5 ms.
    """
    loads = [LoadFacts(50_000_000, 2, training_waited_ns=int(ms * 5e6)) for ms in (waited_ms, 1)]
    windows = [Window("light", 3, [10_000_000] * 5, load=one) for one in loads]
    facts = [make_facts(rank=rank, windows=[window], host="a") for rank, window in enumerate(windows)]
    figures = LoadFigures(
        host="a",
        window="light",
        cores=2,
        job_cores=1.0,
        other_cores=other_cores,
        waiting_cores=1.0,
        withheld_share=0.3,
    )
    lags = [[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]]
    run = make_measured(account=waiting(hand_made, 0.2), lags_ms=lags, load=[figures])
    if count:
        assert len(ask("DP702", run, facts)) == count
    else:
        with pytest.raises(
            Missing, match=r"wait up to [34]\.\d+ ms per step for a core, and ranks are only 4.00 ms late"
        ):
            ask("DP702", run, facts)


def test_of_two_ranks_one_is_always_late_in_half_of_the_steps_or_more(ask, make_measured, hand_made):
    """3 of 5 steps, as equal ranks are by chance: it is not named itself, but both are."""
    late = StragglerFigures(
        rank=0,
        lag_ns=4_000_000,
        steps_share=0.6,
        waiting_share=0.2,
        missing=dict.fromkeys(("gain_share", "work_ratio"), "not replayed"),
    )
    turns = {"lags_ms": [[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]], "straggler": late}
    assert len(ask("DP702", make_measured(account=waiting(hand_made, 0.2), **turns))) == 1
    assert len(ask("DP702", make_measured(account=waiting(hand_made, 0.2), **turns), limits={"most_chance": 1.0})) == 0


def test_one_rank_that_is_late_in_all_of_few_steps_takes_no_turns(ask, make_measured, hand_made):
    """Of two equal ranks one is late in 4 of 4 steps in 12.5 % of runs: neither a straggler nor turns."""
    late = StragglerFigures(
        rank=1,
        lag_ns=1_700_000,
        steps_share=1.0,
        waiting_share=0.2,
        missing=dict.fromkeys(("gain_share", "work_ratio"), "not replayed"),
    )
    run = make_measured(account=waiting(hand_made, 0.2), straggler=late, lags_ms=[[0] * 4, [2.2, 0.02, 1.8, 1.6]])
    with pytest.raises(Missing, match=r"rank 1 is late in 4 of 4 traced steps, too few to know .*`--light 10`"):
        ask("DP702", run)


@pytest.mark.parametrize("lags", [[4, 4, 4, 4, 4], [4, 3, 5, 4, 4]])
def test_one_that_is_late_in_most_steps_is_named_itself(ask, make_measured, hand_made, lags):
    late = StragglerFigures(
        rank=1,
        lag_ns=4_000_000,
        steps_share=1.0,
        waiting_share=0.2,
        missing=dict.fromkeys(("gain_share", "work_ratio"), "not replayed"),
    )
    run = make_measured(account=waiting(hand_made, 0.2), straggler=late, lags_ms=[[0] * 5, lags])
    assert ask("DP702", run) == []


def test_quiet_where_they_wait_little(ask, make_measured, hand_made):
    run = make_measured(account=waiting(hand_made, 0.1), lags_ms=[[2, 0, 2, 0, 2], [0, 2, 0, 2, 0]])
    assert ask("DP702", run) == []
    assert len(ask("DP702", run, limits={"worth_share": 0.05})) == 1


def test_where_steps_without_the_profiler_show_it_the_rank_that_waits_counts(ask, make_measured, make_facts, hand_made):
    """Of two ranks one waits for 20 % of each step, so both together for 10 %; 12 untraced steps show the same."""
    took = [10_000_000] * 12
    facts = [
        make_facts(
            rank=rank,
            windows=[
                Window(
                    "untraced",
                    3,
                    took,
                    backward_ns=[6_000_000] * 12,
                    backward_cpu_ns=[6_000_000 if step % 2 == rank else 4_000_000 for step in range(12)],
                )
            ],
        )
        for rank in range(2)
    ]
    turns = {"lags_ms": [[2, 0, 2, 0, 2], [0, 2, 0, 2, 0]], "device": "cpu"}
    (advice,) = ask("DP702", make_measured(account=waiting(hand_made, 0.1), **turns), facts)
    assert "(rank 0 in 6, rank 1 in 6 of 12 steps): the others wait for 20 % of a step" in advice.title


def test_quiet_where_the_clocks_do_not_tell_who_is_late(ask, make_measured, hand_made):
    assert ask("DP702", make_measured(account=waiting(hand_made, 0.2))) == []


def test_one_rank_waits_for_nobody_and_one_of_several_does_not_tell(ask, make_measured):
    assert ask("DP702", make_measured(world=1)) == []
    with pytest.raises(Missing, match="the traces of all ranks"):
        ask("DP702", make_measured(world=1, world_size=8))


def test_where_the_profiler_slows_steps_much_who_is_late_is_not_known(ask, make_measured, hand_made):
    step = make_measured().step.model_copy(update={"median_ns": 6_000_000, "untraced_median_ns": 6_000_000})
    lags = [[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]]
    with pytest.raises(Missing, match=r"1\.7 times as long"):
        ask("DP702", make_measured(account=waiting(hand_made, 0.2), lags_ms=lags, step=step))


def test_quiet_where_no_rank_is_late_by_much_in_the_median_step(ask, make_measured, hand_made):
    """Short waits in many collectives, and one long step of five."""
    run = make_measured(account=waiting(hand_made, 0.2), lags_ms=[[9, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert ask("DP702", run) == []


def test_ranks_that_share_cores_are_not_compared(ask, make_measured, hand_made):
    run = make_measured(account=waiting(hand_made, 0.2), lags_ms=[[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]])
    facts = [Facts(rank=n, local_rank=n, device=DeviceFacts("cpu", usable_cores=1)) for n in (0, 1)]
    with pytest.raises(Missing, match="2 ranks share 1 core and delay each other"):
        ask("DP702", run, facts)
    own = [Facts(rank=n, local_rank=n, device=DeviceFacts("cpu", usable_cores=2)) for n in (0, 1)]
    assert len(ask("DP702", run, own)) == 1


@pytest.mark.parametrize(
    ("ratio", "low", "basis"), [(1.5, 0.15, "replayed"), (1.0, 0.0, "bound"), (None, 0.0, "bound")]
)
def test_uneven_batches_are_balanced_and_stalls_are_not(ask, make_measured, hand_made, predict, ratio, low, basis):
    """Larger tensors on the rank that is late most, in 3 of 5 steps: the step in which each rank does the mean."""
    holes = ("gain_share",) if ratio else ("gain_share", "work_ratio")
    late = StragglerFigures(
        rank=0,
        lag_ns=4_000_000,
        steps_share=0.6,
        waiting_share=0.2,
        work_ratio=ratio,
        missing=dict.fromkeys(holes, "not measured"),
    )
    turns = {"lags_ms": [[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]], "straggler": late}
    run = make_measured(account=waiting(hand_made, 0.2), **turns)
    (advice,) = ask("DP702", run, predictor=predict("straggler.balanced", {True: 0.8}))
    assert (advice.saves.basis, advice.saves.low_share) == (basis, pytest.approx(low))


@pytest.mark.parametrize("ratio", [1.5, 1.0])
def test_the_lines_that_choose_the_samples_of_uneven_batches(ask, make_measured, make_facts, hand_made, ratio):
    late = StragglerFigures(
        rank=0,
        lag_ns=4_000_000,
        steps_share=0.6,
        waiting_share=0.2,
        work_ratio=ratio,
        missing={"gain_share": "not measured"},
    )
    loaders = [
        LoaderFacts("train.py:34", batches_drawn=1),
        LoaderFacts("train.py:31", batches_drawn=9, sampler_where="train.py:30"),
    ]
    turns = {"lags_ms": [[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]], "straggler": late}
    run = make_measured(account=waiting(hand_made, 0.2), **turns)
    (advice,) = ask("DP702", run, [make_facts(rank=rank, loaders=loaders) for rank in (0, 1)])
    shown = {one.label: one.value for one in advice.evidence}
    places = shown.get("loader created at"), shown.get("sampler created at")
    assert places == (("train.py:31", "train.py:30") if ratio > 1 else (None, None))
