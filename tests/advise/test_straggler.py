"""A late rank at the head of a report: two ranks, five steps of 10 ms each, built by hand."""

import pytest

from dptune.advice import Advice, Change, Saving, Trust
from dptune.advise.headline import headline
from dptune.advise.next_step import with_comparison
from dptune.advise.straggler import LEAST_STEPS_SHARE, MOST_CHANCE, straggler
from dptune.measured import (
    Account,
    ArrivalFigures,
    DeviceFigures,
    InputFigures,
    LagDifference,
    RankFigures,
    StepAccount,
    StepLag,
    StragglerFigures,
)
from dptune.measured.outliers import LatePlace, OutlierFigures, RankLag
from dptune.rule import RunView

US = 1_000
STEPS = 5
SOUND = Trust(level="sound", findings=[])


@pytest.fixture
def make_late(make_measured, hand_made):
    """Rank 1 idles, or computes, `lag_us` of each step longer; rank 0 waits for it `waits_us` (default: as long)."""

    def make(
        lag_us,
        waits_us=None,
        spends="host_idle_ns",
        cause="host",
        covers=1.0,
        steps_share=1.0,
        input_us=0,
        gain=None,
        found=(),
    ):
        waits_us = lag_us if waits_us is None else waits_us
        both = {"input_idle_ns": input_us * US}

        def account(more):
            rest = 10_000 * US - sum(more.values()) - sum(both.values())
            classes = {name: more.get(name, 0) + both.get(name, 0) for name in {*more, *both}}
            classes["compute_ns"] = classes.get("compute_ns", 0) + rest
            communication_ns = classes.get("exposed_waiting_ns", 0)
            return Account(window_ns=10_000 * US, **classes, communication_ns=communication_ns)

        accounts = [account({"exposed_waiting_ns": waits_us * US}), account({spends: lag_us * US})]
        lags = [StepLag(number=n, lag_ns=lag_us * US) for n in range(STEPS)]
        arrival = ArrivalFigures(
            collectives=10,
            last_share=1.0,
            lag_ns=lag_us * US,
            steps=lags,
            cause=cause,
            cause_share=None if cause is None else covers,
            more_ns={spends: STEPS * lag_us * US},
            missing={}
            if cause
            else dict.fromkeys(("cause", "cause_share"), "no single cause explains half of its lag"),
        )
        ranks = [
            hand_made.figures(
                RankFigures,
                rank=rank,
                source=f"{rank}.json",
                events=9,
                arrival=arrival if rank else None,
                devices=[
                    DeviceFigures(
                        device="cpu",
                        steps=[StepAccount(number=n, start_ns=n, account=accounts[rank]) for n in range(STEPS)],
                        whole=accounts[rank],
                        device_operations=9,
                        kernels=0,
                    )
                ],
            )
            for rank in range(2)
        ]
        total = accounts[0] + accounts[1]
        for _ in range(STEPS - 1):
            total = total + accounts[0] + accounts[1]
        worst = StragglerFigures(
            rank=1,
            lag_ns=lag_us * US,
            steps_share=steps_share,
            waiting_share=total.share("exposed_waiting_ns"),
            gain_share=gain,
            differences=list(found),
            missing={"work_ratio": "no shapes"} | ({"gain_share": "not replayed"} if gain is None else {}),
        )
        wait = hand_made.figures(InputFigures, wait_share=total.share("input_idle_ns"), basis="untraced")
        return make_measured(account=total, ranks=ranks, straggler=worst, input=wait)

    return make


def difference(kind, name, rank_ms, others_ms, share, **known):
    times = {"rank_ns": int(rank_ms * 1e6), "others_ns": int(others_ms * 1e6)}
    return LagDifference.only("made by hand", kind=kind, name=name, share=share, **times, **known)


def said(measured, advice=(), busy_ms=None):
    busy_ns = None if busy_ms is None else {rank: ms * 1e6 for rank, ms in enumerate(busy_ms)}
    return headline(measured, SOUND, advice, (), ("XX109",), True, busy_ns)


def test_a_rank_that_sleeps_holds_the_others_up(make_late):
    told = said(make_late(6_000))
    assert told.verdict == "Straggler: rank 1 is 6.00 ms late in the median traced step (60 % of a step)."
    # the mean of two ranks: 60 % of one is 30 %, for the waiting of rank 0 and for the idling of rank 1
    assert told.why == (
        "The median step takes 10.0 ms (untraced): compute 40 %, waiting for ranks 30 %, idle 30 %. "
        "All of rank 1's lag: its device idles while the host runs Python, file I/O, sleeps, blocking calls or "
        "launches. The other ranks spend 60 % of their time waiting."
    )
    assert told.next == (
        "Open the trace of rank 1 in https://ui.perfetto.dev and compare a step with the same step of another rank."
    )


@pytest.mark.parametrize(
    ("run", "heads", "named"),
    [
        ({"lag_us": 1_000}, True, True),
        ({"lag_us": 990}, False, False),  # 9.9 % of the step
        ({"lag_us": 2_000, "steps_share": 0.6}, True, True),
        ({"lag_us": 2_000, "steps_share": 0.5}, False, False),  # as two equal ranks
        ({"lag_us": 4_000, "gain": 0.1}, True, True),
        ({"lag_us": 4_000, "gain": 0.09}, False, True),  # most of it another rank's delay hides
        # computes 3 ms longer, beside which rank 0 computes too: it waits 2 or 1.9 ms, half of that in the mean
        ({"lag_us": 3_000, "waits_us": 2_000, "spends": "compute_ns", "cause": "slower compute"}, True, True),
        ({"lag_us": 3_000, "waits_us": 1_900, "spends": "compute_ns", "cause": "slower compute"}, False, True),
    ],
)
def test_only_a_large_lag_that_lasts_and_costs_something_heads_a_report(make_late, run, heads, named):
    told = said(make_late(**run))
    assert told.verdict.startswith("Straggler: rank 1") == heads
    assert ("rank 1's lag: " in told.why) == named


def test_the_larger_of_straggler_and_loader_heads_and_the_other_stands_in_why(make_late):
    told = said(make_late(4_000, input_us=3_000))
    assert told.verdict == "Straggler: rank 1 is 4.00 ms late in the median traced step (40 % of a step)."
    assert "the script waits for its data loader 30 % of the time" in told.why
    told = said(make_late(3_000, input_us=4_000))
    assert told.verdict == "Input-bound: 40 % of each step waits for the data loader."
    assert (
        "Also, rank 1 is a straggler, 3.00 ms late in the median traced step (30 % of a step). All of rank 1's lag: "
        in told.why
    )


def test_what_the_late_rank_idles_is_not_held_against_it(make_late):
    """Both wait 20 % for the loader, rank 1 30 % more: in the mean 35 %, of which its lag explains 15."""
    told = said(make_late(3_000, spends="input_idle_ns", cause="input", input_us=2_000))
    assert "waiting for ranks 15 %, waiting for input 35 %" in told.why
    assert told.verdict.startswith("Straggler: rank 1 is 3.00 ms late")


def test_a_rank_whose_arrivals_are_unknown_hides_no_straggler(make_late):
    measured = make_late(3_000)
    assert measured.ranks[0].known("arrival") is None
    assert RunView(measured, []).leads(measured.straggler, LEAST_STEPS_SHARE, MOST_CHANCE)


def test_ranks_without_steps_wait_for_nobody(make_late):
    measured = make_late(3_000)
    waiting, late = measured.ranks
    empty = waiting.devices[0].model_copy(update={"steps": []})
    alone = measured.model_copy(update={"ranks": [waiting.model_copy(update={"devices": [empty]}), late]})
    assert straggler(alone).others_wait_share == 0
    assert straggler(measured).others_wait_share == pytest.approx(0.3)
    assert said(alone).verdict.startswith("Straggler: rank 1 is 3.00 ms late")


def test_next_is_the_first_advice_and_says_what_to_do_about_the_rank(make_late, make_advice):
    buckets = make_advice("XX102", changes=[Change(knob="ddp.bucket_cap_mb", now=1, then=25)])
    loader = make_advice("XX101")
    by_input = make_late(5_000, spends="input_idle_ns", cause="input")
    told = said(by_input, [buckets, loader])
    assert told.verdict.startswith("Straggler: rank 1")
    assert told.next.startswith("XX102: Use `DistributedDataParallel(")
    assert told.next.endswith(" For rank 1: see XX101.")
    assert " For rank 1: Open the trace of rank 1" in said(by_input, [buckets]).next
    assert said(by_input, [loader, buckets]).next == (
        "XX101: Use `DataLoader(dataset, ..., num_workers=2, persistent_workers=True)`. "
        "Upper bound of the saving: 1.00 ms of each 10.0 ms step."
    )


def test_advice_on_the_late_rank_says_what_to_look_at(make_late, make_advice):
    late = make_advice("XX103", title="Rank 1 comes 5.00 ms late", changes=[])
    told = said(make_late(5_000), [late])
    assert (told.rule, told.next[:39]) == ("XX103", "XX103: Open the trace of rank 1 in http")
    other = make_advice("XX104", title="Rank 0 comes 5.00 ms late", changes=[])
    assert "For rank 1: Open the trace of rank 1" in said(make_late(5_000), [other]).next


def test_a_doubtful_finding_on_the_late_rank_heads_nothing(make_late, make_advice):
    """Low impact and low confidence: the figures stay in Why."""
    doubtful = make_advice("XX103", title="Rank 1 comes 5.00 ms late", changes=[], impact="low", confidence="low")
    told = said(make_late(5_000), [doubtful])
    assert "rank 1" not in f"{told.verdict} {told.next}".lower()
    assert "Also, rank 1 is a straggler, 5.00 ms late" in told.why
    assert told.rule == ""
    other = make_advice("XX102", changes=[Change(knob="ddp.bucket_cap_mb", now=1, then=25)])
    assert said(make_late(5_000), [doubtful, other]).next.startswith("XX102: Use")
    surer = doubtful.model_copy(update={"confidence": "medium"})
    assert said(make_late(5_000), [doubtful, surer]).verdict.startswith("Straggler: rank 1")


def test_of_a_rank_with_more_of_the_same_work_the_advice_says_what_to_do(make_late, make_advice):
    more = make_advice("XX103", title="Rank 1 does 1.8 times the work. Deal batches of equal size", changes=[])
    run = make_late(5_000)
    late = run.straggler.model_copy(update={"work_ratio": 1.8})
    told = said(run.model_copy(update={"straggler": late}), [more])
    assert told.next.startswith("XX103: Rank 1 does 1.8 times the work. Deal batches of equal size.")


def test_what_saves_more_than_the_late_rank_costs_takes_the_head(make_late, make_advice):
    """Without its delays a step would be 20 % shorter; another change saves 30 %."""
    change = [Change(knob="ddp.bucket_cap_mb", now=1, then=25)]
    larger = make_advice("XX102", low=0.3, high=0.3, changes=change)
    run = make_late(5_000, gain=0.2)
    told = said(run, [larger])
    assert not told.verdict.startswith("Straggler: rank 1")
    assert told.next.startswith("XX102: ")
    assert "Also, rank 1 is a straggler, 5.00 ms late" in told.why
    for other in (
        make_advice("XX102", low=0.1, high=0.1, changes=change),
        make_advice("XX102", low=0.3, high=0.3, changes=change, confidence="low"),
    ):
        assert said(run, [other]).verdict.startswith("Straggler: rank 1")


def test_a_cause_that_is_not_known_is_said(make_late):
    assert (
        "Cause unknown: no single cause explains half of its lag. The other" in said(make_late(5_000, cause=None)).why
    )


@pytest.mark.parametrize(
    ("covers", "words"),
    [
        (5.992, " All of rank 1's lag: its device"),
        (0.995, " All of rank 1's lag: its device"),
        (0.9949, " 99.5 % of rank 1's lag: its device"),
    ],
)
def test_a_cause_covers_all_of_a_lag_at_most(make_late, covers, words):
    assert words in said(make_late(5_000, covers=covers)).why


def test_what_differs_is_named_with_times_and_its_share_and_the_rest_is_unexplained(make_late):
    found = [
        difference(
            "range", "# arch", 5.3, 1.2, 0.6, detail="before aten::empty", detail_rank_ns=4_010_000, detail_others_ns=0
        ),
        difference("kernels", "gemm", 2, 1, 0.25),
        difference("operator", "aten::cat", 1, 0.9, 0.02),
    ]
    told = said(make_late(5_000, gain=0.4, found=found))
    assert told.why.endswith(
        " 100 % of rank 1's lag: its device waits for the host. "
        "`# arch` takes 5.30 ms on rank 1, 1.20 ms on the others: no operator runs for 4.01 ms before `aten::empty` "
        "(0 ms on the others); this explains 3.00 ms (60 %) of its lag. Kernels, mainly `gemm`, take 2.00 ms on rank "
        "1, 1.00 ms on the others; this explains 1.25 ms (25 %) of its lag. What causes the other 0.65 ms was not "
        "recorded. "
        "The other ranks spend 50 % of their time waiting; replayed without its delays, a step is 40 % shorter."
    )
    assert told.next == "Find out what rank 1 does in `# arch` before `aten::empty`: Python, file I/O or sleeps."


@pytest.mark.parametrize(("basis", "replayed"), [("bound", True), ("replayed", False)])
def test_the_replay_is_named_where_no_recommendation_predicts_the_saving(make_late, basis, replayed):
    """Two shares of one thing would contradict each other."""
    advice = Advice(
        rule="XX101",
        slug="late",
        kind="time",
        impact="high",
        title="Rank 1 arrives late",
        why="w",
        changes=[],
        saves=Saving(low_ms=1, high_ms=2, low_share=0.1, high_share=0.2, basis=basis, how="h"),
        confidence="medium",
        evidence=[],
        numerics="same",
        fingerprint="XX101",
    )
    told = said(make_late(5_000, gain=0.4), [advice])
    assert told.label == "Straggler"
    assert ("a step is 40 % shorter" in told.cause) == replayed
    assert "The other ranks spend 50 % of their time waiting" in told.cause


def test_differences_longer_than_the_lag_say_how_much_of_it_they_explain(make_late):
    """Two stalls of 20 ms on a host make its device 28.7 ms late: each explains 35.2 % of that, 10.1 ms."""
    found = [difference("operator", name, 20.2, 0, 0.352) for name in ("_AlltoAllSingle", "_AlltoAllSingleBackward")]
    told = said(make_late(28_700, cause=None, found=found)).why
    assert told.count("; this explains 10.1 ms (35 %) of its lag.") == 2
    assert "(35 %) of its lag. 30 % of its lag is unexplained." in told


@pytest.mark.parametrize(("cause", "covers"), [(None, 0), ("host", 0.9)])
def test_what_nothing_explains(make_late, cause, covers):
    """Where the class of the device's time covers no more of the lag than the operator found, or is not known."""
    told = said(
        make_late(5_000, cause=cause, covers=covers, found=[difference("operator", "aten::cat", 5.3, 1.2, 0.85)])
    )
    assert "; this explains 4.25 ms (85 %) of its lag. 15 % of its lag is unexplained." in told.why


def test_a_function_is_named_with_its_line(make_late):
    found = [difference("function", "hook", 5, 0, 1.0, at="train.py:15", within="## backward ##")]
    told = said(make_late(5_000, gain=0.0, found=found))
    assert "`hook` (train.py:15) in `## backward ##` takes 5.00 ms on rank 1 and does not run on the others" in told.why
    assert "unexplained" not in told.why
    assert told.why.endswith("replayed without its delays, a step is no shorter.")


@pytest.mark.parametrize(
    ("busy_ms", "kind", "heads"),
    [
        ((5, 5), "host", False),  # without the profiler both do as much
        ((5, 5.9), "host", False),
        ((5, 6.1), "host", True),  # a fifth of the lag
        ((5, 5), "function", True),  # it may sleep in a backward pass
        (None, "host", True),
    ],
)
def test_a_rank_that_is_late_only_while_it_is_traced_heads_nothing(make_late, busy_ms, kind, heads):
    found = [difference(kind, "hook", 5, 0, 0.9)]
    told = said(make_late(5_000, gain=0.4, found=found), busy_ms=busy_ms)
    assert told.verdict.startswith("Straggler: rank 1") == heads


def test_of_many_ranks_next_is_to_look_at_a_late_one_whose_finding_is_doubtful(make_late, make_advice):
    """Its cause is not known, but the outliers name it and its host."""
    late = make_late(4_000, spends="compute_ns", cause=None, gain=0.3)
    known = {"kind": "rank", "place": "1", "ranks": [1], "hosts": ["node7"], "lag_ns": 4_000 * US}
    place = LatePlace(**known, late_share=1.0, cause="unexplained idle time")
    lag = RankLag(rank=1, lag_ns=4_000 * US, steps_ns=[4_000 * US])
    of_many = {"steps": [1], "threshold_ns": 1, "latest_ns": 4_000 * US, "latest_ranks": 1}
    found = OutlierFigures(**of_many, late=[place], ranks=[lag])
    missing = {name: why for name, why in late.missing.items() if name != "outliers"}
    many = late.model_copy(update={"outliers": found, "missing": missing})
    doubtful = make_advice(title="Rank 1 arrives 4.00 ms late", impact="low", confidence="low", changes=[])
    other = make_advice("XX102", impact="low", confidence="low")
    look = "XX101 (low confidence): Find out why rank 1 on node7 is late: unexplained idle time."
    for advice in ([doubtful], [doubtful, other]):
        told = said(many, advice)
        assert (told.label, told.rule) == ("Straggler-bound", "XX101")  # whose commands the first screen shows
        assert told.next.startswith(look)
    assert f"{look} XX102 (low confidence): Use" in told.next
    assert "rank 1" not in said(late, [doubtful]).next
    elsewhere = many.model_copy(
        update={"outliers": found.model_copy(update={"late": [place.model_copy(update={"ranks": [0]})]})}
    )
    assert said(elsewhere, [doubtful, other]).rule == "XX102"


def test_the_card_of_a_straggler_says_what_to_compare(make_late, make_advice):
    """A finding on another rank, one with a remedy and one with a setting stay as they are."""
    measured = make_late(6_000)
    bare = make_advice("DP701", title="Rank 1 arrives late", changes=[])
    others = [
        bare.model_copy(update={"title": "Rank 0 arrives late"}),
        bare.model_copy(update={"remedy": "Do that."}),
    ]
    found, *same = with_comparison([bare, *others], measured, None)
    assert found.remedy == said(measured).next
    assert same == others
    assert with_comparison([bare], make_late(100), None) == [bare]
