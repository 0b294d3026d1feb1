"""The parts of a step of DistributedDataParallel on a CPU, from a trace written by hand. Times in microseconds.

The script's thread: forward [10,40), then the backward pass: a function [50,70), a gradient [70,90) of which its hooks
take all but the first 5, and in them starting the collective [80,88); a function [90,130), a gradient [130,150) with
another start [140,148). The collectives are in flight [88,180) and [148,220). Buckets are copied back [220,230). The
step ends at 300.
"""

from dataclasses import replace

import pytest

from dptune.measure.views import view
from dptune.measured import Missing
from dptune.whatif.cpu.timeline import timeline

from ..measure.handmade import US, annotation, load_events, operator, step  # noqa: TID252 - tests are no installed package

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
BACKWARD = [
    operator(f"{EVALUATE}AddmmBackward0", 50, 70),
    operator(EVALUATE + ACCUMULATE, 70, 90),
    operator(ACCUMULATE, 70, 75),
    operator(f"{EVALUATE}AddmmBackward0", 90, 130),
    operator(EVALUATE + ACCUMULATE, 130, 150),
    operator(ACCUMULATE, 130, 135),
]
STARTS = [operator("c10d::allreduce_", 80, 88), operator("c10d::allreduce_", 140, 148)]
FLIGHTS = [operator("gloo:all_reduce", 88, 180, thread=5), operator("gloo:all_reduce", 148, 220, thread=6)]
COPIES = [operator(COPY, 220, 224), operator(COPY, 224, 230)]
REST = [step(0, 0, 300), annotation("DistributedDataParallel.forward", 10, 40), step(1, 300, 310)]


def parts(tmp_path, events, computed_us):
    run = load_events(tmp_path, events, backend="gloo")
    return timeline(view(0, run.ranks[0].light), computed_us * US)


def us(values):
    return [value / US for value in values]


def test_a_thread_that_lost_nothing(tmp_path):
    """It computes 100 of the pass and the 10 of copies. Starts are taken out: 84, ready after 40 - 8 and 100 - 16.

    54 of them lie beside the collective. As if another 11, a tenth of all, lay there and were 1.3 times as long with
    it.
    """
    found = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES], 110)
    assert found.slowdown == pytest.approx((54 + 11) / (54 + 11 / 1.3))
    (one,) = found.steps
    (only,) = one.passes
    lost = 54 - 54 * (54 + 11 / 1.3) / (54 + 11)
    assert us([only.loader_ns, only.forward_ns, only.backward_ns, one.after_ns]) == pytest.approx(
        [0, 50, 84 - lost, 70]
    )
    assert us(only.ready_ns) == pytest.approx([32 - 2 * lost / 54, 84 - lost])
    assert 2 < lost < 3
    assert us([found.start_ns, found.copy_ns]) == [8, 10]


def test_hooks_are_what_gradients_take_beside_accumulating_them(tmp_path):
    """Nothing is in flight while they run, and the starts are not theirs."""
    flights = [operator("gloo:all_reduce", 150, 180, thread=5), operator("gloo:all_reduce", 150, 220, thread=6)]
    (only,) = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *flights, *COPIES], 110).steps[0].passes
    assert only.hooks_ns / US == 2 * 20 - 2 * 5 - 16


def test_a_thread_is_slowed_three_times_at_most(tmp_path):
    """60 seem lost of the 54 beside the collective: 36 of them are its own, and the others stay compute of the pass."""
    found = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES], 50)
    assert found.slowdown == pytest.approx((54 + 11) / (18 + 11 / 1.3))
    (only,) = found.steps[0].passes
    assert only.backward_ns / US == pytest.approx(84 - 54 + 54 / found.slowdown)


def test_a_thread_that_lost_30_beside_the_collective(tmp_path):
    """54 of the pass lie beside it, starts left out: they take 24 without, and what is usual draws that up a little."""
    found = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES], 80)
    assert found.slowdown == pytest.approx((54 + 11) / (24 + 11 / 1.3))


@pytest.mark.parametrize("computed_us", [110, 100, 60])
def test_where_hardly_anything_is_in_flight_noise_tells_no_slowdown(tmp_path, computed_us):
    """One collective, which begins 1 before the pass has computed: whatever the pass seems to have lost."""
    flights = [operator("gloo:all_reduce", 149, 220, thread=5)]
    found = parts(tmp_path, [*REST, *BACKWARD, STARTS[1], *flights, *COPIES], computed_us)
    assert found.slowdown == pytest.approx(1.3, abs=0.1)


def test_gradients_that_are_views_of_the_buckets(tmp_path):
    """Nothing is copied back: the step resumes when the last collective is over, at 220."""
    found = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS], 100)
    assert found.steps[0].after_ns / US == 80
    assert found.copy_ns == 0


def test_collectives_that_begin_after_the_pass_has_computed(tmp_path):
    """Two of four begin then: from 160 to 205 on two threads. One of the script after the pass is none of them."""
    flights = [
        operator("gloo:all_reduce", 88, 160, thread=5),
        operator("gloo:all_reduce", 148, 180, thread=6),
        operator("gloo:all_reduce", 160, 200, thread=5),
        operator("gloo:all_reduce", 180, 205, thread=6),
        operator("gloo:all_reduce", 250, 290, thread=5),
    ]
    starts = [*STARTS, operator("c10d::allreduce_", 141, 142), operator("c10d::allreduce_", 142, 143)]
    found = parts(tmp_path, [*REST, *BACKWARD, *starts, *flights, *COPIES], 110)
    assert found.tails == ((2, 45 * US),)
    assert parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES], 110).tails == ()


def test_a_collective_of_the_script_after_the_pass_is_none_of_its(tmp_path):
    """Under no_sync: the loss is averaged at 160."""
    averaged = [operator("c10d::allreduce_", 160, 165), operator("gloo:all_reduce", 165, 190, thread=5)]
    found = parts(tmp_path, [*REST, *BACKWARD, *averaged], 100)
    (only,) = found.steps[0].passes
    assert only.ready_ns == ()
    assert only.hooks_ns == 0
    assert us([only.backward_ns, found.steps[0].after_ns]) == [100, 150]


def test_without_a_backward_pass_there_are_no_parts(tmp_path):
    with pytest.raises(Missing, match="AccumulateGrad"):
        parts(tmp_path, [*REST, operator("aten::mm", 50, 60)], 100)


def test_what_is_communicated_outside_of_the_pass(tmp_path):
    """Buffers from 12 to 30 before it, the loss from 240 to 250 after it; the buckets' own are not among them."""
    more = [operator("gloo:broadcast", 12, 30, thread=5), operator("gloo:all_reduce", 240, 250, thread=6)]
    found = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES, *more], 110)
    assert (found.others, found.others_ns / US) == (2, 28)
    (one,), (without,) = (
        own.steps for own in (found, parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES], 110))
    )
    (only,), (other,) = one.passes, without.passes
    assert (only, one.after_ns) == (replace(other, sent_ns=18 * US), without.after_ns)


def test_what_a_pass_takes_between_its_operators(tmp_path):
    """None runs in the 50 before it, of which the batch takes 8, a broadcast 18 and a transpose 4: 20 are left."""
    found = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES], 110)
    assert us([found.calls.between_ns, found.calls.view_ns]) == [50, 0]
    more = [
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 8),
        operator("aten::select", 2, 5),  # of the data set: no part of the pass
        operator("gloo:broadcast", 12, 30, thread=5),
        operator("aten::transpose", 40, 44),
    ]
    found = parts(tmp_path, [*REST, *BACKWARD, *STARTS, *FLIGHTS, *COPIES, *more], 110)
    assert (us([found.calls.between_ns, found.calls.view_ns]), found.calls.operators) == ([20, 4], 6 + 2 + 1)


def test_what_is_longer_is_the_scripts_own_work(tmp_path):
    """Of 350 without an operator 100 count."""
    late = [operator(f"{EVALUATE}AddmmBackward0", 350, 370), operator(EVALUATE + ACCUMULATE, 370, 390)]
    found = parts(
        tmp_path, [step(0, 0, 500), step(1, 500, 510), annotation("DistributedDataParallel.forward", 10, 40), *late], 40
    )
    assert us([found.calls.between_ns]) == [100]
