"""Steps of fully_shard on CPUs that are small enough to replay by hand, and changes of how their units communicate."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measured import Missing
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.changes import changed
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.steadied import steadied
from dptune.whatif.cpu.uncertainty import unknown_ns
from dptune.whatif.cpu.units import Hybrid, Sharding, UnitCall, ended
from dptune.whatif.cpu.variants import others
from dptune.whatif.cpu.wrappers import apart

LINK = Link(40.0, 1.0)
COLD = 1.12  # times what is computed after waits for collectives
# Two units of 100 and 60 bytes: forward computes 10, 30, 20; backward 0, 0, 25, 0, 35. Hooks are 4 of each stretch.
CALLS = (
    UnitCall(10.0, "gather", "forward", 0, 100.0, 4.0),
    UnitCall(40.0, "gather", "forward", 1, 60.0, 4.0),
    UnitCall(4.0, "gather", "backward", 1, 60.0, 4.0),
    UnitCall(8.0, "gather", "backward", 0, 100.0, 4.0),
    UnitCall(33.0, "reduce", "backward", 1, 60.0, 2.0),
    UnitCall(65.0, "reduce", "backward", 0, 100.0, 2.0),
)
PASS = Pass(5.0, 60.0, 70.0, calls=CALLS)
STEP = RankStep((PASS,), 15.0)
COMPUTE_NS = 5 + 60 + 70 + 15
# An all-reduce of x takes 40 + x, a gather half of that: 70, 50, 50, 70, 100, 140.
COLLECTIVES_NS = 70 + 50 + 50 + 70 + 100 + 140


def model(steps=(STEP,), ranks=2, **more):
    known = {"sharding": Sharding(("a", "b")), "link": LINK}
    return StepModel(
        {rank: list(steps) for rank in range(ranks)}, gradient_bytes=(), caps=Caps.of(), **{**known, **more}
    )


def test_a_collective_starts_once_the_last_rank_issues_it():
    gather, reduction = CALLS[0], CALLS[5]
    assert ended(gather, {0: 100.0, 1: 105.0}, LINK, 1.0) == {0: 175.0, 1: 175.0}
    assert ended(reduction, {0: 100.0, 1: 105.0}, LINK, 1.0) == {0: 245.0, 1: 245.0}
    assert ended(reduction, {0: 100.0, 1: 100.0}, LINK, 1.5) == {0: 310.0, 1: 310.0}


def test_of_two_ranks_the_late_one_has_a_gather_half_a_transfer_later():
    """A hop takes 10: rank 1 arrives 11 later, sends at once, and so ends at 111 + 20 + 1.5 * 50; the other has it
    a hop earlier than if both had arrived together.
    """
    assert ended(CALLS[0], {0: 100.0, 1: 111.0}, LINK, 1.0) == {0: 171.0, 1: 206.0}
    four = {0: 100.0, 1: 111.0, 2: 100.0, 3: 100.0}
    assert ended(CALLS[0], four, LINK, 1.0) == dict.fromkeys(four, 181.0)  # over other connections


def test_of_two_ranks_the_late_one_ends_a_reduction_a_hop_later_and_the_other_a_hop_earlier():
    """A hop takes 10: rank 1 arrives 11 later, and all would end at 111 + 40 + 100."""
    reduction = CALLS[5]
    assert ended(reduction, {0: 100.0, 1: 111.0}, LINK, 1.0) == {0: 241.0, 1: 261.0}
    assert ended(reduction, {0: 111.0, 1: 100.0}, LINK, 2.0) == {0: 391.0, 1: 391.0}  # a hop of 20: not late
    four = {0: 100.0, 1: 111.0, 2: 100.0, 3: 100.0}
    assert ended(reduction, four, LINK, 1.0) == dict.fromkeys(four, 251.0)
    of_a_mesh = Hybrid(2, LINK, Link(30.0, 1.0))  # then all-reduces of ranks 0 and 2, and 1 and 3
    assert ended(reduction, four, LINK, 1.0, of_a_mesh) == dict.fromkeys(four, 251.0 + 130.0)


def test_compute_and_collectives_take_turns():
    assert step_ns(model()) == COMPUTE_NS + COLLECTIVES_NS
    assert step_ns(model(communication_times=2.0)) == COMPUTE_NS + 2 * COLLECTIVES_NS


def test_ranks_wait_for_the_one_that_computes_longer():
    late = replace(STEP, passes=(PASS.lasting(60.0, 170.0),))
    both = replace(model(), steps={0: [STEP], 1: [late]})
    assert step_ns(both) >= COMPUTE_NS + 100 + COLLECTIVES_NS
    assert step_ns(replace(both, link=Link(0.0, float("inf")))) == pytest.approx(COMPUTE_NS + 100)


def test_units_that_stay_gathered_spare_exactly_the_gathers_of_backward_passes():
    kept = changed(model(), {"fsdp.reshard_after_forward": False})
    assert [call.kind for call in kept.steps[0][0].passes[0].calls] == ["gather", "gather", "reduce", "reduce"]
    assert step_ns(kept) == COMPUTE_NS - 8 + COLLECTIVES_NS - 120
    again = changed(kept, {"fsdp.reshard_after_forward": True})
    assert step_ns(again) == step_ns(model())
    order = [(call.kind, call.unit) for call in again.steps[0][0].passes[0].calls if call.direction == "backward"]
    assert order == [("gather", 1), ("gather", 0), ("reduce", 1), ("reduce", 0)]


def test_torch_by_default_keeps_the_root_gathered_and_no_other_unit():
    """`fully_shard` of torch 2.13, whose ranges name the root by nothing."""
    kept = changed(model(), {"fsdp.reshard_after_forward": False})
    of_root = replace(kept, sharding=replace(kept.sharding, names=("", "b")))
    for value, again in ((None, [1]), (True, [1, 0])):
        made = changed(of_root, {"fsdp.reshard_after_forward": value})
        calls = made.steps[0][0].passes[0].calls
        assert [call.unit for call in calls if (call.kind, call.direction) == ("gather", "backward")] == again


def test_units_that_a_pass_does_not_gather_are_not_gathered_again():
    """The script keeps gathered parameters between micro-batches."""
    quiet = replace(PASS, calls=CALLS[4:])
    kept = model([RankStep((replace(PASS, calls=(*CALLS[:2], *CALLS[4:])), quiet), 15.0)])
    again = changed(kept, {"fsdp.reshard_after_forward": True})
    first, second = again.steps[0][0].passes
    assert (len(first.calls), second) == (6, quiet)


@pytest.mark.parametrize(
    "settings",
    [
        {"fsdp.reshard_after_forward": True},
        {"fsdp.reshard_after_forward": None},
        {"fsdp.forward_prefetch": 2},
        {"fsdp.backward_prefetch": 2},
        {"fsdp.reduce_dtype": "fp32"},
        {"fsdp.units": 2},
        {"fsdp.no_sync": True},
        {"fsdp.no_sync": False},
    ],
)
def test_what_changes_nothing_leaves_the_step_as_it_is(settings):
    assert step_ns(changed(model(), settings)) == step_ns(model())


def test_a_dtype_halves_the_bytes_that_it_is_of():
    """160 of latency; 160 of bytes in gathers, 160 in reductions."""
    reduced = changed(model(), {"fsdp.reduce_dtype": "bf16"})
    assert step_ns(reduced) == COMPUTE_NS + COLLECTIVES_NS - 80
    assert step_ns(changed(reduced, {"fsdp.reduce_dtype": None})) == step_ns(model())
    without_compute = changed(model(), {"fsdp.param_dtype": "bf16"})
    assert step_ns(without_compute) == 5 + 15 + COLLECTIVES_NS - 80 - 80
    both = changed(model(), {"fsdp.param_dtype": "bf16", "fsdp.reduce_dtype": "fp32"})
    assert step_ns(both) == 5 + 15 + COLLECTIVES_NS - 80


def test_passes_that_reduce_nothing():
    twice = model([RankStep((PASS, PASS), 15.0)])
    quiet = changed(twice, {"fsdp.no_sync": True})
    assert step_ns(twice) - step_ns(quiet) == 100 + 140 + 4
    assert step_ns(changed(quiet, {"fsdp.no_sync": False})) == pytest.approx(step_ns(twice))


def test_fewer_units_pay_fewer_latencies():
    """A hook of 4 or 2 is none of a unit's size, so it goes with its collective: two gathers and a reduction."""
    one = changed(model(), {"fsdp.units": 1})
    calls = one.steps[0][0].passes[0].calls
    assert [(call.kind, call.direction, call.at_ns, call.message_bytes) for call in calls] == [
        ("gather", "forward", 10.0, 160.0),
        ("gather", "backward", 4.0, 160.0),
        ("reduce", "backward", 59.0, 160.0),
    ]
    assert (one.steps[0][0].passes[0].forward_ns, one.steps[0][0].passes[0].backward_ns) == (56.0, 64.0)
    assert one.sharding.names == ("a, b",)
    assert step_ns(model()) - step_ns(one) == 20 + 20 + 40 + 4 + 4 + 2
    four = changed(model(), {"fsdp.units": 4})
    assert step_ns(four) - step_ns(model()) == 4 * 20 + 2 * 40 + 4 * 4 + 2 * 2
    with pytest.raises(Missing, match="a multiple"):
        changed(model(), {"fsdp.units": 5})


def test_of_a_longer_hook_only_a_part_goes_with_its_collective():
    """1.4 ms of 2 ms for each of 2 gathers and a reduction that go; half of that, or all, in the interval."""
    calls = tuple(replace(call, at_ns=3e6 + 3e6 * place, around_ns=2e6) for place, call in enumerate(CALLS))
    longer = model([RankStep((Pass(0.0, 9e6, 21e6, calls=calls),), 0.0)])
    one, four = (changed(longer, {"fsdp.units": count}) for count in (1, 4))
    assert step_ns(longer) - step_ns(one) == pytest.approx(20 + 20 + 40 + 3 * 1.4e6)
    assert [call.around_ns for call in one.steps[0][0].passes[0].calls] == pytest.approx([2.6e6] * 3)
    assert step_ns(four) - step_ns(longer) == pytest.approx(4 * 20 + 2 * 40 + 6 * 1.4e6)
    assert {call.around_ns for call in four.steps[0][0].passes[0].calls} == {1.7e6}
    asked = {"fsdp.units": 1}
    assert sorted(step_ns(longer) - step_ns(changed(other, asked)) for other in others(longer, asked)) == [
        80 + 3 * 0.7e6,
        80 + 3 * 2e6,
    ]


def test_where_calling_an_operator_takes_longer_so_do_hooks():
    calls = tuple(replace(call, at_ns=3e6 + 3e6 * place, around_ns=2e6) for place, call in enumerate(CALLS))
    longer = model([RankStep((Pass(0.0, 9e6, 21e6, calls=calls),), 0.0)], wrapper_times=0.5)
    asked = {"fsdp.units": 1}
    assert step_ns(longer) - step_ns(changed(longer, asked)) == pytest.approx(80 + 3 * 0.7e6)
    spared = sorted(step_ns(longer) - step_ns(changed(other, asked)) for other in others(longer, asked))
    assert spared == pytest.approx([80 + 3 * 0.35e6, 80 + 3 * 1.05e6])


def test_many_units_merge_into_like_ones():
    sizes = (10.0, 10.0, 10.0, 70.0, 50.0, 50.0)
    calls = [UnitCall(float(at), "gather", "forward", at, size) for at, size in enumerate(sizes)]
    known = model([RankStep((Pass(0.0, 10.0, 0.0, calls=tuple(calls)),), 0.0)], sharding=Sharding(tuple("abcdef")))
    merged = changed(known, {"fsdp.units": 2})
    assert merged.sharding.names == ("a, b, c, d", "e, f")
    assert [call.message_bytes for call in merged.steps[0][0].passes[0].calls] == [100.0, 100.0]
    for count in range(1, 7):
        found = changed(known, {"fsdp.units": count})
        assert len(found.sharding.names) == len(found.steps[0][0].passes[0].calls) == count
        assert sum(call.message_bytes for call in found.steps[0][0].passes[0].calls) == sum(sizes)


def test_a_larger_batch_and_fewer_micro_batches_keep_the_collectives():
    twice = changed(model(), {"compute.times": 2.0})
    assert step_ns(twice) == 2 * (COMPUTE_NS - 5) + 5 + COLLECTIVES_NS
    steps = model([RankStep((PASS, PASS, PASS), 15.0)])
    assert step_ns(changed(steps, {"accumulation.micro_batches": 1})) == step_ns(model())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ddp.bucket_cap_mb": 1.0}, "ddp.bucket_cap_mb has no effect: the model is sharded by fully_shard"),
        ({"ddp.no_sync": True}, "ddp.no_sync has no effect"),
        ({"fsdp.reshard_after_forward": 2}, "groups of ranks"),
        ({"fsdp.unshard_in_backward": False}, "embeddings"),
        ({"fsdp.reshard_after_backward": False}, "micro-batches"),
    ],
)
def test_what_cannot_be_predicted_is_said_by_name(settings, why):
    with pytest.raises(Missing, match=why):
        changed(model(), settings)


def test_units_of_a_replicated_model():
    replicated = StepModel({0: [RankStep((Pass(0, 1, 1, (1.0,)),), 0)]}, (8,), Caps.of(), LINK)
    with pytest.raises(Missing, match="the script does not call fully_shard"):
        changed(replicated, {"fsdp.reshard_after_forward": False})


@given(st.floats(1.0, 100.0), st.floats(0.01, 1.0), st.integers(2, 4))
def test_a_faster_link_never_lengthens_the_step(rate, latency, ranks):
    slower = model(ranks=ranks)
    faster = replace(slower, link=Link(LINK.alpha_ns * latency, LINK.bytes_per_ns * rate))
    assert COMPUTE_NS <= step_ns(faster) <= step_ns(slower)


def test_more_ranks_send_more():
    """A ring of four takes three hops in place of one, and 3/4 of the bytes in place of half."""
    assert step_ns(changed(model(), {"world_size": 4})) == pytest.approx(COMPUTE_NS + 3 * 160 + 1.5 * 320)


def test_stretches_that_others_took_are_cut_to_twice_the_median():
    late = replace(
        PASS, calls=(*CALLS[:1], *(replace(call, at_ns=call.at_ns + 500) for call in CALLS[1:2]), *CALLS[2:])
    )
    late = replace(late, forward_ns=PASS.forward_ns + 500)
    found = steadied([STEP, STEP, RankStep((late,), 15.0)])
    assert found[:2] == [STEP, STEP]
    (cut,) = found[2].passes
    assert [call.at_ns for call in cut.calls] == [10.0, 70.0, *(call.at_ns for call in CALLS[2:])]
    assert (cut.forward_ns, cut.backward_ns) == (90.0, 70.0)


def test_units_in_buckets():
    """Two ranks, no latency of a bucket but the link's: what sharding takes goes, and no code of DDP's own comes."""
    sharding = Sharding(("a", "b"), tensors=2, hooks_ns=(7.0, 9.0))
    known = model(sharding=sharding, link=Link(40.0, 1e-3), wrapper_times=0.0)
    replicated = changed(known, {"wrapper": "ddp"})
    (only,) = replicated.steps[0][0].passes
    assert (only.calls, len(only.ready_ns), sum(replicated.gradient_bytes)) == ((), 16, 160)
    assert only.forward_ns == pytest.approx((60 - 8 - 7) / COLD)
    assert only.backward_ns == pytest.approx((70 - 8 - 4 - 9) / COLD)  # gathers and reductions of two units
    assert 0 <= only.ready_ns[0] < only.ready_ns[-1] <= only.backward_ns
    assert replicated.sharding is None
    assert changed(known, {"wrapper": "fsdp"}) == known
    buckets = changed(known, {"wrapper": "ddp", "ddp.bucket_cap_mb": 1.0})
    assert buckets.caps == Caps.of(1.0)


def test_hooks_of_each_tensor_in_buckets():
    """0.06 ms of a forward pass for the first use of each of 100 tensors; DDP's own hooks take 0.01 ms for each."""
    step = RankStep((Pass(0.0, 60e6, 70e6, calls=CALLS),), 400e6)
    known = model([step], sharding=Sharding(("a", "b"), tensors=100, hooks_ns=(7e6, 9e6)))
    (only,) = (replicated := changed(known, {"wrapper": "ddp"})).steps[0][0].passes
    assert only.forward_ns == pytest.approx((60e6 - 7e6 - 6e6) / COLD, rel=1e-4)
    assert only.backward_ns == pytest.approx((70e6 - 9e6) / COLD + 1e6, rel=1e-4)
    assert only.hooks_ns == 1e6
    assert replicated.steps[0][0].after_ns == pytest.approx(400e6 - 100 * 0.56e6, rel=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_units_in_16_bits_do_not_show_steps_in_fp32(dtype):
    known = model()
    narrow = replace(known, sharding=replace(known.sharding, parameter_dtype=dtype))
    with pytest.raises(Missing, match="units compute in 16 bits"):
        changed(narrow, {"wrapper": "ddp"})


def test_gradients_in_units():
    """The gradient that is ready first is in the unit that runs last."""
    gradients = Pass(5.0, 60.0, 80.0, (20.0, 40.0, 60.0, 80.0))
    replicated = StepModel(
        {rank: [RankStep((gradients,), 15.0)] for rank in range(2)},
        (10,) * 4,
        Caps.of(),
        LINK,
        apart_share=0.0,
        wrapper_times=0.0,
    )
    with pytest.raises(Missing, match=r"set fsdp\.units too"):
        changed(replicated, {"wrapper": "fsdp"})
    with pytest.raises(Missing, match="1 to 4 units"):
        changed(replicated, {"wrapper": "fsdp", "fsdp.units": 5})
    two = changed(replicated, {"wrapper": "fsdp", "fsdp.units": 2})
    (only,) = two.steps[0][0].passes
    around = 20 * 0.5
    assert [(call.kind, call.direction, call.unit, call.message_bytes) for call in only.calls] == [
        ("gather", "forward", 0, 20.0),
        ("gather", "forward", 1, 20.0),
        ("gather", "backward", 1, 20.0),
        ("gather", "backward", 0, 20.0),
        ("reduce", "backward", 1, 20.0),
        ("reduce", "backward", 0, 20.0),
    ]
    assert [call.at_ns for call in only.calls[:2]] == pytest.approx([around, 30 * COLD + 2 * around])
    assert only.forward_ns + only.backward_ns == pytest.approx(COLD * (60 + 80) + 4 * around + 2 * 20 * 0.8)
    (hooked,) = changed(replace(replicated, wrapper_times=2.0), {"wrapper": "fsdp", "fsdp.units": 2}).steps[0][0].passes
    each_ns = 2 * (1.4e6 + 2 * 35e3)  # of a collective of two tensors
    assert hooked.forward_ns - only.forward_ns == pytest.approx(2 * each_ns + 2 * 4 * (27e3 + 60e3))
    assert hooked.backward_ns - only.backward_ns == pytest.approx(4 * each_ns + 2 * 4 * 8e3)
    kept = changed(replicated, {"wrapper": "fsdp", "fsdp.units": 2, "fsdp.reshard_after_forward": False})
    assert len(kept.steps[0][0].passes[0].calls) == 4


SLOW = Link(4e6, 1 / 40)  # a hop takes 1 ms; 2 MB take 42 ms to gather, 40 of them for the transfer


def in_two_units(ranks=2, **more):
    """Gradients of 4 MB in two units, from a recording whose ranks compute alike; all compute of a step."""
    gradients = Pass(5e6, 30e6, 40e6, (10e6, 20e6, 30e6, 40e6))
    steps = {rank: [RankStep((gradients,), 20e6)] * 4 for rank in range(ranks)}
    replicated = StepModel(steps, (10**6,) * 4, Caps.of(), SLOW, **more)
    units = changed(replicated, {"wrapper": "fsdp", "fsdp.units": 2})
    computed = [
        step.after_ns + sum(pass_.forward_ns + pass_.backward_ns for pass_ in step.passes)
        for of_rank in units.steps.values()
        for step in of_rank
    ]
    return step_ns(units), sum(computed) / len(computed)


def test_of_new_units_gathers_before_the_first_reduction_take_half_a_transfer_longer():
    """Ranks compute some 20 ms apart by a tenth: 2 ms, more than a hop. The rank that leaves the last reduction two
    hops later is the quicker one in the next forward pass, so they meet at its first gather. The other one, and two
    before the first reduction of the backward pass, take 20 ms longer each, and each wait for the slower rank counts.
    """
    alike_ns, compute_ns = in_two_units(apart_share=0.0)
    step, same_ns = in_two_units()
    assert same_ns == pytest.approx(compute_ns)
    assert 3 * 20e6 < step - alike_ns < 3 * 20e6 + 0.1 * compute_ns


def test_ranks_less_than_a_hop_apart_and_more_than_two_only_wait_for_the_slower_half():
    for ranks, share in ((2, 0.01), (4, 0.1)):
        alike_ns, compute_ns = in_two_units(ranks, apart_share=0.0)
        assert 0 < in_two_units(ranks, apart_share=share)[0] - alike_ns < share * compute_ns


@given(st.floats(0.0, 0.5), st.integers(2, 5))
def test_ranks_that_take_turns_are_no_slower_on_average(share, ranks):
    steps = {rank: [STEP] * 6 for rank in range(ranks)}
    turned = apart(steps, share)
    for of_rank in turned.values():
        assert sum(step.after_ns for step in of_rank) == pytest.approx(6 * STEP.after_ns)
        assert sum(step.passes[0].forward_ns for step in of_rank) == pytest.approx(6 * PASS.forward_ns)
    assert step_ns(replace(model(), steps=turned)) >= step_ns(replace(model(), steps=steps)) * (1 - 1e-9)


def test_what_ranks_compute_apart_is_one_of_the_causes_of_the_interval():
    gradients = Pass(5.0, 60.0, 80.0, (20.0, 40.0, 60.0, 80.0))
    replicated = StepModel({rank: [RankStep((gradients,), 15.0)] for rank in range(2)}, (10,) * 4, Caps.of(), LINK)
    shares = {other.apart_share for other in others(replicated, {"wrapper": "fsdp", "fsdp.units": 2})}
    assert min(shares) < replicated.apart_share < max(shares)


def test_how_far_processes_differ_counts_once():
    """Where several were timed their spread is in the slack; what else a step may be off by is then less."""
    one, several = (unknown_ns(model(), model(), 1e3, 1.0, 0.0, several=more, crowded=False) for more in (False, True))
    replicated = StepModel({0: [RankStep((Pass(0, 1, 1, (1.0,)),), 0)]}, (8,), Caps.of(), LINK)
    least, *_ = unknown_ns(replicated, replicated, 1e3, 1.0, 0.0, several=True, crowded=False)
    assert least < several[0] < one[0]
    assert several[1] == one[1]  # of compute
