from dataclasses import replace

import pytest

from dptune.advise.engine import _leads
from dptune.measured import Account, InputFigures, LagDifference, LoadFigures, Missing, StragglerFigures
from dptune.predicted import Prediction
from dptune.rule import RunView
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import DeviceFacts
from dptune.runfile.load import LoadFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import Window


def late(lag_ms=3.0, steps_share=1.0, waiting_share=0.12, gain=None, differences=(), work_ratio=None):
    known = {"gain_share": gain, "work_ratio": work_ratio}
    return StragglerFigures(
        rank=1,
        lag_ns=int(lag_ms * 1e6),
        steps_share=steps_share,
        waiting_share=waiting_share,
        **known,
        differences=list(differences),
        missing={name: "it was not measured" for name, figure in known.items() if figure is None},
    )


def difference(share=0.9, kind="function"):
    """`hook` takes 2.7 ms on the late rank, and the others have none."""
    return LagDifference.only(
        "made by hand",
        kind=kind,
        name="hook",
        at="train.py:15" if kind == "function" else None,
        rank_ns=2_700_000,
        others_ns=0,
        share=share,
    )


OWN_WORK = "without the delays their own host and device work sets the pace."


def lags(*of_rank_1):
    return [[0.0] * len(of_rank_1), list(of_rank_1)]


def test_the_rank_that_is_late_and_why(ask, make_measured):
    run = make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: ("host", 0.95)})
    (advice,) = ask("DP701", run)
    assert advice.title == (
        "Rank 1 arrives 3.00 ms late in the median traced step and holds up the others: its device idles "
        "while the host "
        "runs Python, file I/O, sleeps, blocking calls or launches"
    )
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("medium", "medium", "bound")
    assert advice.saves.high_share == pytest.approx(0.3)  # what it is late; 12 % over two ranks are 24 % of the other
    assert {one.label: one.value for one in advice.evidence} == {
        "mean lag": pytest.approx(0.3),
        "last to arrive": 1.0,
        "the other ranks wait": pytest.approx(0.24),  # 12 % over both ranks, of which the late one waits for none
        "its device waits for the host": 0.95,
    }
    assert [one.unit for one in advice.evidence if "lag" in one.unit] == ["of rank 1's lag"]


def test_seconds_are_written_out(ask, make_measured):
    (advice,) = ask("DP701", make_measured(straggler=late(lag_ms=1010.4), lags_ms=lags(*[1010.4] * 5)))
    assert advice.title.startswith("Rank 1 arrives 1,010 ms late in the median traced step")


@pytest.mark.parametrize("causes", [{}, {1: ("host", 0.6)}, {1: ("unexplained", 0.99)}])
def test_a_note_where_why_is_not_known(ask, make_measured, causes):
    (advice,) = ask("DP701", make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes=causes))
    assert (advice.impact, advice.confidence) == ("low", "low")
    assert advice.title.endswith("the cause is not known")


def test_late_in_all_of_few_steps_is_no_chance(ask, make_measured):
    told = {"straggler": late(), "causes": {1: ("host", 0.95)}, "steps": 3}
    assert len(ask("DP701", make_measured(lags_ms=lags(3, 3.2, 2.9), **told))) == 1
    assert ask("DP701", make_measured(lags_ms=lags(3, 3.2, 1.2), **told)) == []  # once it was less than half


@pytest.mark.parametrize(
    ("figures", "steps"),
    [
        (late(steps_share=0.8), lags(3, 3, 3, 3, 0)),  # 4 of 5 steps: 2 * 6 / 32, so one of two equal ranks often is
        (late(lag_ms=0.5), lags(0.5, 0.5, 0.5, 0.5, 0.5)),
        (late(waiting_share=0.03), lags(3, 3, 3, 3, 3)),
        (None, lags(3, 0, 0, 0, 0)),
    ],
)
def test_quiet(ask, make_measured, figures, steps):
    assert ask("DP701", make_measured(straggler=figures, lags_ms=steps, causes={1: ("host", 0.95)})) == []


@pytest.mark.parametrize(
    ("device", "forward_ms", "computed_ms", "told"),
    [
        ("cpu", 5.7, 4.0, 1),  # 0.7 of the 3 ms outside of its backward passes
        ("cpu", 5.0, 4.7, 1),  # or in them
        ("cpu", 5.5, 4.0, 0),  # less than a fifth
        ("cpu", 4.0, 4.0, 0),
        ("cuda", 4.0, 4.0, 1),  # whose host does not tell what its device does
    ],
)
def test_a_rank_that_is_late_only_while_it_is_traced(
    ask, make_measured, make_facts, device, forward_ms, computed_ms, told
):
    """Rank 0 does 5 ms alone, and computes 4 in backward passes; all wait there until 10 ms are over."""

    def facts(rank, forward_ms, computed_ms):
        alone, computed = int(forward_ms * 1e6), int(computed_ms * 1e6)
        window = Window("untraced", 3, [10_000_000] * 5, backward_ns=[10_000_000 - alone] * 5)
        return make_facts(rank=rank, windows=[replace(window, backward_cpu_ns=[computed] * 5)])

    run = make_measured(
        straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: ("slower compute", 0.95)}, device=device
    )
    assert len(ask("DP701", run, [facts(0, 5, 4), facts(1, forward_ms, computed_ms)])) == told
    assert len(ask("DP701", run, [facts(0, 5, 4)])) == 1  # nothing is told of rank 1


@pytest.mark.parametrize(
    ("cause", "forward_ms", "high"),
    [
        # rank 0 does 3.0 + 2 of 10 ms, and so on; from 5.5 ms on, what rank 1 is late is more
        *(("host", 3.0, 0.5), ("host", 4.0, 0.4), ("host", 5.5, 0.3), ("host", 7.0, 0.3)),
        *(("more compute", 3.0, 0.5), ("more compute", 4.0, 0.4), ("more compute", 5.5, 0.3)),
    ],
)
def test_a_step_saves_at_most_all_but_what_the_others_do(ask, make_measured, make_facts, cause, forward_ms, high):
    """Rank 1 is 3 of 10 ms late; rank 0 is busy for 2 ms in backward passes and some outside of them."""
    window = Window("untraced", 3, [10_000_000] * 5, backward_cpu_ns=[2_000_000] * 5)
    ranks = [
        make_facts(rank=rank, windows=[replace(window, backward_ns=[int((10 - alone) * 1e6)] * 5)])
        for rank, alone in enumerate((forward_ms, 8.0))
    ]
    run = make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: (cause, 0.95)}, device="cpu")
    (advice,) = ask("DP701", run, ranks)
    assert advice.saves.high_share == pytest.approx(high)
    longer = 0.8 - forward_ms / 10  # than rank 0, or late for something else; more compute may move there
    is_busy = cause == "host" and longer > high / 2
    predicted = ("timed", pytest.approx(0.8 * longer)) if is_busy else ("bound", 0)
    assert (advice.saves.basis, advice.saves.low_share) == predicted


@pytest.mark.parametrize(
    ("more_ms", "other_cores", "hosts", "found"),
    [
        (2.5, 1.0, "aa", 0),  # 0.5 ms of the 3 are left, of a step of 10
        (9.0, 0.25, "aa", 0),  # others run 2.5 ms in a step, and withhold no more
        (1.5, 1.0, "aa", 1),
        (9.0, 0.1, "aa", 1),  # what it waits for are threads of the job itself
        (2.5, 1.0, "ab", 1),  # on a machine of its own: then these are to be looked for there
        (None, 1.0, "aa", 1),  # not recorded
    ],
)
def test_a_rank_that_other_processes_slow_down(ask, make_measured, make_facts, more_ms, other_cores, hosts, found):
    """Two ranks of five traced steps; rank 0 waits 4 ms for a core in a step, and rank 1 more."""

    def facts(rank):
        waited = None if more_ms is None else int((4 + rank * more_ms) * 5e6)
        load = LoadFacts(wall_ns=50_000_000, cores=2, training_waited_ns=waited)
        return make_facts(rank=rank, windows=[Window("light", 3, [10_000_000] * 5, load=load)], host=hosts[rank])

    loads = [
        LoadFigures(
            host=host,
            window="light",
            cores=2,
            job_cores=1.0,
            other_cores=other_cores,
            waiting_cores=0.5,
            withheld_share=0.1,
        )
        for host in sorted(set(hosts))
    ]
    run = make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: ("slower compute", 0.95)}, load=loads)
    own = [facts(0), facts(1)]
    assert len(ask("DP701", run, own)) == found
    assert _leads(RunView(run, own)) == bool(found)  # nor does the verdict name it


def test_what_other_collectives_bring_later_is_theirs(ask, make_measured):
    """It receives what another rank sends first."""
    told = make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: ("communication", 0.95)})
    assert ask("DP701", told) == []


def test_of_eight_ranks_three_of_four_steps_are_no_chance(ask, make_measured):
    """One of eight is last in 3 or 4 of 4 steps by chance with 8 * (4 * 7 + 1) / 8**4 = 5.7 %."""
    eight = [[0.0] * 4 for _ in range(8)]
    eight[1] = [0.0, 3.0, 3.0, 3.0]
    run = make_measured(world=8, steps=4, straggler=late(steps_share=0.75), lags_ms=eight, causes={1: ("host", 0.95)})
    assert len(ask("DP701", run)) == 1
    assert ask("DP701", run, limits={"most_chance": 0.05}) == []


def test_a_wait_for_the_loader_has_a_rule_of_its_own(ask, make_measured, hand_made):
    told = {"straggler": late(), "lags_ms": lags(3, 3, 3, 3, 3), "causes": {1: ("input", 0.95)}}
    waits = hand_made.figures(InputFigures, wait_share=0.06)
    assert ask("DP701", make_measured(**told, input=waits)) == []
    assert len(ask("DP701", make_measured(**told))) == 1


def test_garbage_has_a_rule_of_its_own(ask, make_measured, make_facts):
    told = {"straggler": late(), "lags_ms": lags(3, 3, 3, 3, 3), "causes": {1: ("gc", 0.95)}}
    assert ask("DP701", make_measured(**told), [make_facts()]) == []
    assert len(ask("DP701", make_measured(**told))) == 1  # which needs a recording


def test_one_rank_waits_for_nobody_and_one_of_several_does_not_tell(ask, make_measured):
    assert ask("DP701", make_measured(world=1)) == []
    with pytest.raises(Missing, match="the traces of all ranks"):
        ask("DP701", make_measured(world=1, world_size=8))


def test_where_the_profiler_slows_steps_much_who_is_late_is_not_known(ask, make_measured):
    """Traced steps of 10 ms, and 6 ms without the profiler."""
    step = make_measured().step.model_copy(update={"median_ns": 6_000_000, "untraced_median_ns": 6_000_000})
    run = make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: ("host", 0.95)}, step=step)
    with pytest.raises(Missing, match=r"1\.7 times as long"):
        ask("DP701", run)


@pytest.mark.parametrize(("left", "impact"), [(0.6, "high"), (0.93, "medium")])
def test_what_it_saves_is_predicted_where_a_model_tells(ask, make_measured, predict, left, impact):
    told = make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: ("host", 0.95)})
    (advice,) = ask("DP701", told, predictor=predict("straggler.removed", {True: left}))
    assert (advice.saves.basis, advice.impact, advice.changes) == ("replayed", impact, [])
    assert advice.saves.predicted_share == pytest.approx(1 - left)
    assert advice.saves.high_share == pytest.approx(1 - left + 0.05)


def test_quiet_where_the_model_says_that_nothing_is_saved(ask, make_measured, predict):
    told = make_measured(straggler=late(), lags_ms=lags(3, 3, 3, 3, 3), causes={1: ("host", 0.95)})
    assert ask("DP701", told, predictor=predict("straggler.removed", {True: 0.99})) == []


def test_the_difference_is_named_with_its_line(ask, make_measured):
    run = make_measured(straggler=late(gain=0.25, differences=[difference()]), lags_ms=lags(3, 3, 3, 3, 3))
    (advice,) = ask("DP701", run)
    assert advice.title.endswith(
        "holds up the others: `hook` (train.py:15) takes 2.70 ms on rank 1 and does not run on the others"
    )
    assert (advice.impact, advice.confidence) == ("high", "medium")
    assert advice.saves.high_share == pytest.approx(0.25)
    shown = {one.label: one.value for one in advice.evidence}
    assert (advice.saves.replayed_share, shown["explained by `hook`"]) == (0.25, 0.9)


def test_a_difference_that_explains_little_is_no_reason(ask, make_measured):
    run = make_measured(straggler=late(gain=0.25, differences=[difference(0.3)]), lags_ms=lags(3, 3, 3, 3, 3))
    (advice,) = ask("DP701", run)
    assert (advice.impact, advice.title.endswith("the cause is not known")) == ("low", True)


@pytest.mark.parametrize(("gain", "high"), [(0.06, 0.1), (0.2, 0.2)])
def test_it_saves_at_most_what_the_replay_gains_or_all_others_wait(ask, make_measured, gain, high):
    """The other rank waits 1 of 10 ms."""
    waits = Account(
        window_ns=10_000_000, compute_ns=9_000_000, exposed_waiting_ns=1_000_000, communication_ns=1_000_000
    )
    none = Account(window_ns=10_000_000, compute_ns=10_000_000)
    run = make_measured(straggler=late(gain=gain), lags_ms=lags(3, 3, 3, 3, 3), spent=[waits, none])
    (advice,) = ask("DP701", run)
    assert advice.saves.high_share == pytest.approx(high)
    assert advice.saves.replayed_share == gain
    assert ("the shortest wait of the other ranks, 10.0 %" in advice.saves.how) == (gain < 0.1)


def test_a_lag_whose_end_gains_nothing_is_at_most_a_note(ask, make_measured):
    named = late(gain=0.0, differences=[difference()])
    (advice,) = ask("DP701", make_measured(straggler=named, lags_ms=lags(3, 3, 3, 3, 3)))
    assert advice.impact == "low"
    assert ask("DP701", make_measured(straggler=late(gain=0.0), lags_ms=lags(3, 3, 3, 3, 3))) == []


def test_a_stall_in_a_backward_hook_that_sleeps_is_no_matter_of_tracing(ask, make_measured, make_facts):
    """Outside of backward passes both ranks do 5 ms, and compute 4 in them: a sleep in one shows in neither."""
    window = Window("untraced", 3, [10_000_000] * 5, backward_ns=[5_000_000] * 5, backward_cpu_ns=[4_000_000] * 5)
    facts = [make_facts(rank=rank, windows=[window]) for rank in range(2)]
    told = {"lags_ms": lags(3, 3, 3, 3, 3), "device": "cpu"}
    assert len(ask("DP701", make_measured(straggler=late(differences=[difference()]), **told), facts)) == 1
    assert ask("DP701", make_measured(straggler=late(differences=[difference(kind="host")]), **told), facts) == []


@pytest.mark.parametrize(
    ("found", "work_ratio", "cause", "scenario"),
    [
        ([difference()], None, "host", "straggler.removed"),  # the others never run `hook`
        ([difference(kind="work")], 1.0, "slower compute", "straggler.removed"),  # the same tensors, more slowly
        ([difference(kind="work")], 2.0, "slower compute", "straggler.balanced"),  # larger tensors
        ([difference(kind="work")], None, "more compute", "straggler.balanced"),
        ([difference()], 2.0, "host", "straggler.removed"),  # it has more data, but `hook` is why it is late
    ],
)
def test_work_is_balanced_and_what_only_one_rank_does_is_removed(
    ask, make_measured, predict, found, work_ratio, cause, scenario
):
    named = late(gain=0.25, differences=found, work_ratio=work_ratio)
    run = make_measured(straggler=named, lags_ms=lags(3, 3, 3, 3, 3), causes={1: (cause, 0.95)})
    (advice,) = ask("DP701", run, predictor=predict(scenario, {True: 0.8}))
    assert (advice.saves.basis, advice.saves.predicted_share) == ("replayed", pytest.approx(0.2))
    waits = f" The others wait 24 % of a step, but a replay saves less: {OWN_WORK}"  # 12 % over both ranks
    assert advice.why.endswith(waits) == (advice.saves.high_share < 0.24)


@pytest.mark.parametrize(("times", "less"), [(0.9, True), (0.6, False)])
def test_it_says_why_a_replay_saves_less_than_the_others_wait(ask, make_measured, predict, times, less):
    """They wait 24 %."""
    run = make_measured(straggler=late(gain=0.25, differences=[difference()]), lags_ms=lags(3, 3, 3, 3, 3))
    (advice,) = ask("DP701", run, predictor=predict("straggler.removed", {True: times}))
    assert (f"The others wait 24 % of a step, but a replay saves less: {OWN_WORK}" in advice.why) is less


def test_the_bound_holds_if_the_late_ranks_extra_work_is_dropped_and_not_balanced(ask, make_measured):
    """What a replay without its delays saves is evidence: no bound is below it."""
    run = make_measured(straggler=late(gain=0.25, work_ratio=2.0), lags_ms=lags(3, 3, 3, 3, 3))
    (advice,) = ask("DP701", run)
    assert advice.saves.high_share == pytest.approx(0.25)


def untraced(make_facts, *latest):
    """By step without the profiler the rank that works for 10 ms, the other for 5."""
    return [
        make_facts(
            rank=rank,
            windows=[
                Window(
                    "untraced",
                    3,
                    [10_000_000] * len(latest),
                    backward_ns=[6_000_000] * len(latest),
                    backward_cpu_ns=[6_000_000 if rank == late_rank else 1_000_000 for late_rank in latest],
                )
            ],
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("latest", "late_rank", "turns"),
    [
        ([1] * 12, 1, 0),  # as traced: rank 1 is late in all steps
        ([0, 1] * 6, 0, 1),  # five traced steps were chance
        ([0] * 12, 0, 0),  # who was late while traced is not who is late
    ],
)
def test_of_one_delay_only_one_of_the_two_rules_speaks(
    ask, make_measured, make_facts, hand_made, latest, late_rank, turns
):
    whole = 2 * hand_made.STEPS * hand_made.STEP_NS
    waits = Account(
        window_ns=whole, compute_ns=whole * 4 // 5, exposed_waiting_ns=whole // 5, communication_ns=whole // 5
    )
    told = {"account": waits, "straggler": late(), "lags_ms": lags(3, 3, 3, 3, 3), "device": "cpu"}
    run, facts = make_measured(**told), untraced(make_facts, *latest)
    assert len(ask("DP701", run, facts)) == late_rank
    assert len(ask("DP702", run, facts)) == turns


def dealt(make_facts, samples=8, *, ddp=True, batches=1):
    """Two replicas whose loader deals rank 1 so many samples a step, and rank 0 eight."""
    loader = LoaderFacts("train.py:20", batches_drawn=9, own_batches=True, batch_sampler="ByLength")
    return [
        make_facts(
            rank=rank,
            ddp=[DdpFacts("Net")] if ddp else [],
            loaders=[loader],
            windows=[Window("untraced", 3, [10_000_000] * 5, loader_samples=[each] * 5, loader_batches=[drawn] * 5)],
        )
        for rank, each, drawn in ((0, 8, 1), (1, samples, batches))
    ]


def more_work(ratio=1.8, others_ns=1_500_000):
    """`forward` takes 2.7 ms on the late rank, and the others run it too."""
    longer = difference(kind="work").model_copy(update={"name": "forward", "others_ns": others_ns})
    return late(gain=0.25, work_ratio=ratio, differences=[longer])


@pytest.mark.parametrize(
    ("samples", "hold", "remedy"),
    [
        (8, "longer samples", "batches of about equal length"),
        (9, "longer samples", "batches of about equal length"),  # 1.1 times the samples, 1.8 times the work
        (14, "1.8 times the samples", "batches of equal size"),
    ],
)
def test_a_rank_whose_batches_hold_more_is_named_with_its_loader(ask, make_measured, make_facts, samples, hold, remedy):
    run = make_measured(straggler=more_work(), lags_ms=lags(3, 3, 3, 3, 3))
    (advice,) = ask("DP701", run, dealt(make_facts, samples))
    assert advice.title == (
        f"Rank 1 arrives 3.00 ms late: its batches hold {hold} (1.8 times the work of the other ranks, by "
        f"tensor shapes). "
        f"Give all ranks {remedy} (`ByLength`, train.py:20)"
    )
    assert {one.label: one.value for one in advice.evidence}["work of the rank"] == 1.8


def test_batches_are_not_named_where_something_else_may_differ(ask, make_measured, make_facts):
    """Ten ms of compute of 1.1 times the work are 0.9 ms longer: less than half of the 3 ms that rank 1 is late."""
    told = {"lags_ms": lags(3, 3, 3, 3, 3), "causes": {1: ("more compute", 0.95)}}
    named = make_measured(straggler=more_work(), **told)
    for run, facts in (
        (make_measured(straggler=more_work(1.1), **told), dealt(make_facts)),
        (make_measured(straggler=more_work(others_ns=0), **told), dealt(make_facts)),  # the others have no `forward`
        (named, dealt(make_facts, ddp=False)),  # its part of a model may be larger
        (named, dealt(make_facts, batches=2)),  # it may evaluate, too
        (named, []),
    ):
        (advice,) = ask("DP701", run, facts)
        assert "holds up the others: `forward` takes" in advice.title


@pytest.mark.parametrize("left", [0.9, 0.96])
def test_a_delay_that_was_measured_is_advice_where_a_replay_may_save_nothing(ask, make_measured, left):
    """The replay saves 10 or 4 % in the middle, and 0 at least; the delays themselves 25 % of the traced steps."""
    run = make_measured(straggler=more_work(), lags_ms=lags(3, 3, 3, 3, 3))
    found = ask("DP701", run, predictor=unsure(left))
    if left > 0.95:  # half of what a late rank is worth: quiet, as before
        assert found == []
        return
    (advice,) = found
    assert (advice.saves.basis, advice.saves.may_be_nothing) == ("bound", False)
    assert advice.saves.high_share == pytest.approx(0.25)  # all of it, if the work is dropped
    assert advice.saves.unpredicted == (
        "a replay saves 0 to 20.0 % of a step, which includes zero; the delay itself is measured, and without it the "
        "traced steps are 25 % shorter"
    )


@pytest.mark.parametrize(
    "figures",
    [
        late(gain=0.08, work_ratio=1.8, differences=[difference(kind="work")]),  # less than a late rank is worth
        late(gain=0.25, work_ratio=1.8, differences=[difference(0.3, kind="work")]),  # why it is late is not known
    ],
)
def test_a_prediction_that_may_save_nothing_stays_one_where_the_delay_is_not_located(ask, make_measured, figures):
    run = make_measured(straggler=figures, lags_ms=lags(3, 3, 3, 3, 3))
    (advice,) = ask("DP701", run, predictor=unsure(0.9))
    assert advice.saves.may_be_nothing  # so that no report gives it


def unsure(left):
    """A replay that leaves this share of the step in the middle, all of it at most."""
    return lambda changes: Prediction.only(
        "not needed",
        changes=dict(changes),
        step_ns=int(left * 10_000_000),
        low_ns=int((2 * left - 1) * 10_000_000),
        high_ns=10_000_000,
        global_batch=64,
    )


@pytest.mark.parametrize("work_ratio", [None, 2.0])
def test_an_extra_kernel_is_saved_whole(ask, make_measured, work_ratio):
    """Of four ranks, rank 1 computes for 9 of 10 ms and communicates for 1; the others compute for 6 and wait 3.

    Without its extra kernel of 3 ms a step takes 7 ms: 30 %, not the mean over the ranks of what they wait, 22.5 %.
    """
    ms = 10**6
    one = Account(window_ns=10 * ms, compute_ns=9 * ms, exposed_transfer_ns=ms, communication_ns=ms)
    other = Account(
        window_ns=10 * ms, compute_ns=6 * ms, exposed_transfer_ns=ms, exposed_waiting_ns=3 * ms, communication_ns=4 * ms
    )
    run = make_measured(
        world=4,
        spent=[other, one, other, other],
        straggler=late(waiting_share=0.225, gain=0.3, differences=[difference(kind="kernels")], work_ratio=work_ratio),
        lags_ms=lags(3, 3, 3, 3, 3),
        causes={1: ("more compute", 0.95)},
    )
    (advice,) = ask("DP701", run)
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.3))
    assert advice.saves.high_ms == pytest.approx(3.0)
    shown = {evidence.label: evidence.value for evidence in advice.evidence}
    assert advice.saves.high_share >= max(advice.saves.replayed_share, shown["mean lag"])


def compared(kind, rank_ms, others_ms, share, detail=(), name="sleep"):
    """What the late rank and the others take for the same thing, and for what is inside it."""
    inside = dict(zip(("detail_rank_ns", "detail_others_ns"), (int(ms * 1e6) for ms in detail), strict=False))
    return LagDifference.only(
        "made by hand",
        kind=kind,
        name="train_step",
        rank_ns=int(rank_ms * 1e6),
        others_ns=int(others_ms * 1e6),
        detail=name if detail else None,
        share=share,
        **inside,
    )


@pytest.mark.parametrize(
    ("differences", "device", "threads", "impact"),
    [
        ([compared("host", 17, 13.5, 0.62), compared("operator", 6, 4.7, 0.2)], "cpu", (1, 1), "low"),
        ([compared("function", 104, 82, 0.44), compared("work", 20, 16, 0.2)], "cpu", (1, 1), "low"),
        ([compared("host", 17, 13.5, 0.62)], "cpu", (2, 1), "medium"),  # fewer threads make each operator slower
        ([compared("host", 17, 13.5, 0.62)], "cuda", (1, 1), "medium"),
        ([compared("function", 23, 20, 0.9)], "cpu", (1, 1), "medium"),  # one function explains most of it
        ([compared("function", 23, 20, 0.4, (3, 0)), compared("host", 9, 8, 0.3)], "cpu", (1, 1), "medium"),  # a sleep
        ([compared("operator", 6, 2, 0.4), compared("host", 9, 8, 0.3)], "cpu", (1, 1), "medium"),  # other work
    ],
)
def test_the_same_work_on_slower_cores_is_no_fault_of_the_script(
    ask, make_measured, make_facts, differences, device, threads, impact
):
    run = make_measured(
        straggler=late(differences=differences, work_ratio=1.0), lags_ms=lags(3, 3, 3, 3, 3), device=device
    )
    facts = [
        make_facts(rank=rank, device=DeviceFacts(kind=device, torch_threads=count))
        for rank, count in enumerate(threads)
    ]
    (advice,) = ask("DP701", run, facts)
    assert (advice.impact, advice.confidence) == (impact, "low" if impact == "low" else "medium")
    assert ("does the same work more slowly" in advice.title) == (impact == "low")


@pytest.mark.parametrize(
    ("detail", "name", "work_ratio", "impact"),
    [
        ((15.7, 12.2), "aten::mm", 1.0, "low"),
        ((15.7, 12.2), "aten::mm", 1.2, "medium"),  # more of it
        ((15.7, 12.2), "aten::mm", None, "medium"),  # how much is not known
        ((15.7, 7.2), "aten::mm", 1.0, "medium"),  # more than twice as long
        ((15.7, 12.2), "before aten::mm", 1.0, "medium"),  # no operator: the script does something else
    ],
)
def test_one_function_whose_operator_is_slower(ask, make_measured, make_facts, detail, name, work_ratio, impact):
    """Two equal ranks: the whole training loop explains 71 % of the lag, by one operator on the same sizes."""
    differences = [compared("function", 44.7, 39.3, 0.71, detail, name), compared("function", 16, 14.5, 0.2)]
    run = make_measured(
        straggler=late(differences=differences, work_ratio=work_ratio), lags_ms=lags(3, 3, 3, 3, 3), device="cpu"
    )
    facts = [make_facts(rank=rank, device=DeviceFacts(kind="cpu", torch_threads=1)) for rank in (0, 1)]
    (advice,) = ask("DP701", run, facts)
    assert advice.impact == impact
    assert ("Check the load and the clock of its cores" in advice.title) == (impact == "low")
