from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dptune.measured import Account, Missing, ProcessGroupFigures, StragglerFigures
from dptune.runfile.communication import DdpFacts
from dptune.runfile.compilation import CompileFacts
from dptune.testing import figures

from .conftest import ask_rule

MIB = 2**20
TINY = MIB // 20


def tiny_ddp(count=40, cap=TINY, **more):
    return DdpFacts("Net", "train.py:31", cap, rebuilt_bucket_sizes=[TINY] * count, **more)


@pytest.fixture
def tiny(make_measured, make_all_reduce, make_facts):
    """40 all-reduces of 51 KiB, 50 us each at the least, and 30 % of the step waits for them."""

    def make(exposed=0.30, shortest_ns=50_000, **changed):
        measured = make_measured(exposed_share=exposed, collectives=[make_all_reduce(TINY, 40, shortest_ns)], **changed)
        return measured, [make_facts(ddp=[tiny_ddp()])]

    return make


def test_many_tiny_buckets_are_to_be_raised(ask, tiny):
    (advice,) = ask("DP101", *tiny())
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("ddp.bucket_cap_mb", 0.05, 1, "train.py:31")
    assert change.paste == "DistributedDataParallel(model, ..., bucket_cap_mb=1)"
    # the 1 MiB buckets may overshoot by one tensor, so 2 of the 40 messages is the fewest; of the step's 10 ms, 30 % is
    # exposed communication and 10 % hidden; 2 x 50 us of it stay
    assert advice.saves.high_share == pytest.approx(0.30 + 0.10 - 2 * 50e3 / 10e6)
    assert advice.saves.high_ms == pytest.approx(3.9)
    assert "latency of the others is about 19 % of a step" in advice.title  # 38 x 50 us of 10 ms
    assert advice.saves.low_ms == 0
    assert advice.saves.basis == "bound"
    assert advice.saves.high_us_per_sample == pytest.approx(3900 / 64)
    assert advice.impact == "high"
    assert "40 all-reduces of 51.2 KiB" in advice.title


def test_a_step_pays_no_more_than_is_exposed(ask, tiny):
    (advice,) = ask("DP101", *tiny(exposed=0.06))
    assert "latency of the others is about 6 % of a step" in advice.title
    assert advice.saves.high_share == pytest.approx(0.06 + 0.10 - 2 * 50e3 / 10e6)
    assert advice.impact == "medium"


def test_hidden_start_ups_cost_nothing(ask, tiny):
    assert ask("DP101", *tiny(exposed=0.001)) == []


def test_fast_start_ups_cost_nothing(ask, tiny):
    assert ask("DP101", *tiny(shortest_ns=2_000)) == []


def test_the_threshold_can_be_set(ask, tiny):
    measured, facts = tiny()
    assert ask("DP101", measured, facts, {"worth_share": 0.2}) == []
    assert ask("DP101", measured, facts, {"small_mib": 0.01}) == []
    assert ask("DP101", measured, facts, {"fewer_times": 100}) == []


def test_default_buckets_are_left_alone(ask, make_measured, make_all_reduce, make_facts):
    collectives = [make_all_reduce(MIB, 1), make_all_reduce(25 * MIB, 4, 3_000_000)]
    facts = make_facts(ddp=[DdpFacts("Net", None, 25 * MIB, rebuilt_bucket_sizes=[MIB, *[25 * MIB] * 4])])
    assert ask("DP101", make_measured(exposed_share=0.3, collectives=collectives), [facts]) == []


def test_a_small_model_in_one_small_bucket_is_left_alone(ask, make_measured, make_all_reduce, make_facts):
    facts = make_facts(ddp=[DdpFacts("Net", None, 25 * MIB, rebuilt_bucket_sizes=[TINY])])
    measured = make_measured(exposed_share=0.3, hidden_share=0, collectives=[make_all_reduce(TINY, 1)])
    assert ask("DP101", measured, [facts]) == []


def test_a_cap_that_is_large_already_is_not_raised(ask, make_measured, make_all_reduce, make_facts):
    facts = make_facts(ddp=[tiny_ddp(cap=25 * MIB)])
    measured = make_measured(exposed_share=0.3, collectives=[make_all_reduce(TINY, 40)])
    assert ask("DP101", measured, [facts]) == []


def test_other_small_all_reduces_are_not_buckets(ask, make_measured, make_all_reduce, make_facts):
    """Statistics of SyncBatchNorm: other sizes than the buckets'."""
    collectives = [make_all_reduce(8192, 60), make_all_reduce(MIB, 1), make_all_reduce(20 * MIB, 1)]
    facts = make_facts(ddp=[DdpFacts("Net", None, MIB, rebuilt_bucket_sizes=[MIB, 20 * MIB])])
    assert ask("DP101", make_measured(exposed_share=0.3, collectives=collectives), [facts]) == []


def test_a_reduced_loss_is_not_a_bucket(ask, make_measured, make_all_reduce):
    assert ask("DP101", make_measured(exposed_share=0.3, collectives=[make_all_reduce(4, 50)])) == []


def test_without_facts_it_is_less_sure(ask, tiny):
    measured, _ = tiny()
    (advice,) = ask("DP101", measured)
    assert advice.confidence == "low"
    assert [(c.now, c.then, c.at) for c in advice.changes] == [(None, 1, None)]


def test_without_facts_and_beside_other_collectives_it_cannot_tell(ask, make_measured, make_all_reduce):
    collectives = [make_all_reduce(TINY, 40), make_all_reduce(TINY, 40, kind="all_gather")]
    with pytest.raises(Missing, match="cannot be identified"):
        ask("DP101", make_measured(exposed_share=0.3, collectives=collectives))


def test_collectives_without_a_name_or_a_size_are_not_guessed_at(ask, make_measured, make_all_reduce):
    with pytest.raises(Missing, match="do not name every collective"):
        ask("DP101", make_measured(collectives=[make_all_reduce(TINY, 40, kind="unknown")]))
    with pytest.raises(Missing, match="message_bytes was not measured"):
        ask("DP101", make_measured(collectives=[make_all_reduce(None, 40)]))


def test_a_run_that_communicates_nothing_is_quiet(ask, make_measured):
    assert ask("DP101", make_measured(collectives=[])) == []


def test_accumulation_repeats_the_start_ups(ask, make_measured, make_all_reduce, make_facts):
    """160 messages in 4 backward passes are 40 buckets, not 160."""
    measured = make_measured(exposed_share=0.9, collectives=[make_all_reduce(TINY, 160, 10_000)], synchronised=4)
    (advice,) = ask("DP101", measured, [make_facts(ddp=[tiny_ddp()])])
    assert "in 40 all-reduces" in advice.title
    assert "latency of the others is about 15 % of a step" in advice.title  # 4 x 38 x 10 us of 10 ms
    assert advice.saves.high_share == pytest.approx(0.9 + 0.1 - 4 * 2 * 10e3 / 10e6)


@pytest.fixture
def single(make_measured, make_all_reduce, make_facts):
    """40 MiB of gradients in one message that leaves when backward is over."""

    def make(exposed=0.3, hidden=0.0, tensors=60):
        ddp = DdpFacts("Net", "train.py:9", 100 * MIB, rebuilt_bucket_sizes=[40 * MIB], parameter_tensors=tensors)
        measured = make_measured(
            exposed_share=exposed, hidden_share=hidden, collectives=[make_all_reduce(40 * MIB, 1, 3_000_000)]
        )
        return measured, [make_facts(ddp=[ddp])]

    return make


def test_a_single_bucket_that_nothing_hides_is_to_be_split(ask, single):
    (advice,) = ask("DP101", *single())
    assert [(c.now, c.then) for c in advice.changes] == [(100, 10)]
    assert advice.saves.high_share == pytest.approx(0.3)
    assert advice.saves.low_share == 0
    assert advice.confidence == "low"


@pytest.mark.parametrize(("last", "high"), [(0, None), (1, 0.3 * 39 / 40)])
def test_the_gradient_that_is_ready_last_is_sent_last_whatever_the_buckets(ask, single, last, high):
    """Of 40 MiB, one gradient has 38 and another 1: if the large one is ready last, only 2 MiB can be sent earlier."""
    measured, (facts,) = single()
    ddp = replace(facts.ddp[0], gradient_sizes=[38 * MIB, MIB, MIB], grad_ready_order=[2, 1 - last, last])
    advice = ask("DP101", measured, [replace(facts, ddp=[ddp])])
    assert [found.saves.high_share for found in advice] == ([] if high is None else [pytest.approx(high)])


def test_waiting_for_other_ranks_is_not_a_tail(ask, make_measured, make_all_reduce, make_facts):
    """12 % of the step is exposed, but the transfer itself takes 0.1 ms of its 10 ms."""
    ddp = DdpFacts("Net", None, 25 * MIB, rebuilt_bucket_sizes=[2 * MIB], parameter_tensors=60)
    measured = make_measured(exposed_share=0.12, hidden_share=0, collectives=[make_all_reduce(2 * MIB, 1, 100_000)])
    assert ask("DP101", measured, [make_facts(ddp=[ddp])]) == []


def test_gradients_that_the_smallest_buckets_may_not_part_are_left_alone(
    ask, make_measured, make_all_reduce, make_facts
):
    """As DDP's own first bucket makes them: 1.5 MiB, of which the last tensor closes it."""
    for size, told in ((1.5, 0), (2, 1)):
        ddp = DdpFacts("Net", None, 25 * MIB, rebuilt_bucket_sizes=[int(size * MIB)], parameter_tensors=60)
        calls = [make_all_reduce(int(size * MIB), 1, 3_000_000)]
        measured = make_measured(exposed_share=0.3, hidden_share=0, collectives=calls)
        assert len(ask("DP101", measured, [make_facts(ddp=[ddp])])) == told


def test_a_single_bucket_is_as_severe_as_what_splitting_it_saves(ask, single, predict):
    """30 % of the step wait for it; a replay says that 7 % go."""
    told = predict("ddp.bucket_cap_mb", dict.fromkeys((0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50), 0.93))
    (advice,) = ask("DP101", *single(), predictor=told)
    assert (advice.impact, advice.saves.predicted_share) == ("medium", pytest.approx(0.07))


def test_what_is_exposed_need_not_be_stretched_by_the_profiler(ask, single):
    """30 % of a traced step of 10 ms are 37.5 % of one of 8 ms."""
    measured, facts = single()
    times = dict.fromkeys(("median_ns", "untraced_median_ns"), 8_000_000)
    step = measured.step.model_copy(update=times)
    (traced,), (advice,) = (
        ask("DP101", measured, facts),
        ask("DP101", measured.model_copy(update={"step": step}), facts),
    )
    assert advice.saves.high_share == pytest.approx(1.25 * traced.saves.high_share)


@pytest.mark.parametrize("what", [{"exposed": 0.04}, {"hidden": 0.2}, {"tensors": 1}])
def test_a_single_bucket_is_left_alone_where_splitting_cannot_help(ask, single, what):
    assert ask("DP101", *single(**what)) == []


def test_thresholds_of_the_tail_can_be_set(ask, single):
    measured, facts = single()
    assert ask("DP101", measured, facts, {"tail_share": 0.5}) == []
    measured, facts = single(hidden=0.2)
    assert len(ask("DP101", measured, facts, {"hidden_share": 0.9})) == 1


def test_fingerprint_does_not_hold_the_numbers(ask, tiny, single):
    assert ask("DP101", *tiny())[0].fingerprint == ask("DP101", *tiny(exposed=0.1))[0].fingerprint
    assert ask("DP101", *tiny())[0].fingerprint != ask("DP101", *single())[0].fingerprint


class TestBound:
    @given(
        exposed=st.floats(0, 0.95),
        size=st.integers(65, 2 * MIB),
        calls=st.integers(1, 500),
        shortest=st.integers(1, 10**7),
        passes=st.integers(1, 4),
    )
    def test_a_saving_never_exceeds_the_communication_nor_its_cost_the_start_ups(
        self, hand_made, exposed, size, calls, shortest, passes
    ):
        measured = hand_made.measured_run(
            exposed_share=exposed,
            hidden_share=0,
            collectives=[hand_made.all_reduce(size, calls * passes, shortest)],
            synchronised=passes,
        )
        said = ask_rule("DP101", measured)
        assume(said)
        (advice,) = said
        assert 0 <= advice.saves.low_share <= advice.saves.high_share <= measured.share("exposed_communication_ns")
        if advice.fingerprint.endswith("raise"):
            (pays,) = [e.value for e in advice.evidence if e.label == "latency saved"]
            starts = (calls - 1) * passes * shortest / hand_made.STEP_NS
            assert 0.02 <= pays <= min(exposed, starts) + 1e-9


SIZES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50)


def test_with_a_step_model_the_size_with_the_shortest_step_is_proposed(ask, tiny, predict):
    """2 MiB hold all 40 times 51 KiB of gradients: larger buckets would be the same one, and are not tried."""
    steps = dict(zip(SIZES, (0.9, 0.8, 0.7, 0.7, 0.65, 0.75, 0.75, 0.75, 0.75), strict=True))
    measured, facts = tiny()
    (advice,) = ask("DP101", measured, facts, predictor=predict("ddp.bucket_cap_mb", steps))
    assert advice.changes[0].then == 2
    assert advice.saves.basis == "replayed"
    assert (advice.saves.low_share, advice.saves.high_share) == (pytest.approx(0.30), pytest.approx(0.40))
    assert "2 MiB buckets need about 1, which saves about 35 % of a step" in advice.title
    told = {one.label: one.value for one in advice.evidence if one.label.startswith("saved with")}
    assert told == {f"saved with {size:g} MiB buckets": share for size, share in (
        (0.1, 0.1), (0.2, 0.2), (0.5, 0.3), (2, 0.35)
    )}  # fmt: skip


def test_of_a_compiled_module_sizes_that_torch_refuses_are_not_proposed(ask, tiny, predict):
    """Below 1 MiB, which would be the quickest here. Without its graph being split at buckets they are allowed."""
    measured, (facts,) = tiny()
    told = predict("ddp.bucket_cap_mb", dict(zip(SIZES, (0.5, 0.5, 0.5, *[0.7] * 6), strict=True)))
    for graphs, then in (([3], 1), ([], 0.1)):
        (advice,) = ask("DP101", measured, [replace(facts, compiled=CompileFacts([], graphs))], predictor=told)
        assert advice.changes[0].then == then


def test_quiet_where_no_size_is_predicted_to_save(ask, tiny, predict):
    measured, facts = tiny()
    assert ask("DP101", measured, facts, predictor=predict("ddp.bucket_cap_mb", dict.fromkeys(SIZES, 1.0))) == []


@pytest.fixture
def one_bucket(make_measured, make_all_reduce):
    """A step of 10 ms of two ranks, 20 MiB in one all-reduce that nothing hides; the rest is compute."""

    def make(shortest_ns, *exposed):
        spent = [
            Account(
                window_ns=10**7,
                compute_ns=10**7 - sum(each.values()),
                communication_ns=sum(each.values()),
                **{f"exposed_{name}_ns": ns for name, ns in each.items()},
            )
            for each in exposed
        ]
        return make_measured(spent=spent, collectives=[make_all_reduce(20 * MIB, 1, shortest_ns)])

    return make


def test_waiting_for_a_late_rank_is_not_promised_by_smaller_buckets(ask, one_bucket):
    """Both ranks transfer for 1 ms of 10; rank 0 waits 4 ms before. At most 10 % can be hidden, not 30."""
    ms = 10**6
    measured = one_bucket(ms, {"transfer": ms, "waiting": 4 * ms}, {"transfer": ms})
    (advice,) = ask("DP101", measured)
    assert (advice.saves.high_share, advice.saves.high_ms) == (pytest.approx(0.1), pytest.approx(1.0))
    assert "a step spends 10 % of its time waiting for the transfer" in advice.title
    assert "separate" not in advice.saves.how
    shown = {evidence.label: evidence.value for evidence in advice.evidence}
    assert shown["exposed communication"] == pytest.approx(0.1)


def test_what_cannot_be_split_is_called_transfer_or_waiting(ask, one_bucket):
    """A rank is missing: of the 3 ms that each all-reduce takes, all may be waiting for it."""
    ms = 10**6
    measured = one_bucket(3 * ms, {"unsplit": 3 * ms})
    (advice,) = ask("DP101", measured)
    assert advice.saves.high_share == pytest.approx(0.3)
    assert (
        "30 % of its time waiting for the transfer or for late ranks, which the traces do not separate" in advice.title
    )
    assert advice.saves.how.startswith("the exposed communication or waiting, which cannot be separated")
    assert "exposed communication or waiting" in {evidence.label for evidence in advice.evidence}


@pytest.mark.parametrize(("lag_ms", "high"), [(2, 0.4 - 0.1 - 2 * 0.005), (0.5, 0.4 - 2 * 0.005)])
def test_fewer_buckets_still_wait_for_one_late_rank(ask, make_measured, make_all_reduce, make_facts, lag_ms, high):
    """Of 4 ms of communication 1 ms is waiting, and 2 all-reduces of 50 us stay; a step takes 10 ms."""
    ms = 10**6
    one = Account(
        window_ns=10 * ms,
        compute_ns=6 * ms,
        exposed_transfer_ns=3 * ms,
        exposed_waiting_ns=ms,
        communication_ns=4 * ms,
    )
    straggler = StragglerFigures.only(
        "made by hand", rank=1, lag_ns=int(lag_ms * ms), steps_share=1.0, waiting_share=0.1
    )
    measured = make_measured(
        spent=[one], collectives=[make_all_reduce(TINY, 40, 50_000)], straggler=straggler, lags_ms=[[0] * 5, [2] * 5]
    )
    (advice,) = ask("DP101", measured, [make_facts(ddp=[tiny_ddp()])])
    assert advice.saves.high_share == pytest.approx(high)


def test_all_reduces_of_tensor_parallelism_are_no_buckets(ask, tiny):
    """As many as before, in a group that splits tensors: nothing is left that could be a bucket."""
    measured, facts = tiny()
    (row,) = measured.collectives
    tensor = figures(ProcessGroupFigures, name="1", size=4, dimensions=["tensor"], confidence="high", basis="'mesh_tp'")
    row = row.model_copy(update={"group": "1", "missing": {k: v for k, v in row.missing.items() if k != "group"}})
    in_group = measured.model_copy(update={"collectives": [row], "process_groups": [tensor]})
    assert ask("DP101", in_group, facts) == []
    data = tensor.model_copy(update={"dimensions": ["data"]})
    assert ask("DP101", in_group.model_copy(update={"process_groups": [data]}), facts)


def test_of_sizes_with_ranges_the_best_middle_is_proposed_and_none_named(ask, single, predict_range):
    told = predict_range("ddp.bucket_cap_mb", {size: (0.4 if size == 1 else 0.45, 0.9) for size in SIZES})
    (advice,) = ask("DP101", *single(), predictor=told)
    assert advice.changes[0].then == 1
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.1, 0.6))
    assert not [one for one in advice.evidence if one.label.startswith("saved with")]
