"""Collectives that compute could overlap and does not: by hand, and in recordings."""

from pathlib import Path

import pytest

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import NCCL, US, annotation, launch, launched, measure_events, on_device, operator, step

ROOT = Path(__file__).parents[2]
PLAIN = ROOT / "tests" / "rules" / "recorded" / "plain"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
MULTIPLIES = "autograd::engine::evaluate_function: MmBackward0"
MIB_OF_FLOATS = 2**18
STEPS = (step(3, 0, 200), step(4, 200, 400), *launched("gemm", 205, 210, 220, 99))


def reduced(called, start, end, correlation, stream, thread=2, elements=MIB_OF_FLOATS):
    sent = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float"}
    sent |= {"Group size": 2, "Process Group Name": "0"}
    kernel = on_device("kernel", NCCL, start, end, correlation, stream, **sent)
    return launch(correlation, called, called + 1, thread), kernel


def backward(*collectives):
    """Three layers, whose gradients are ready at 60, 80 and 100 where nothing else runs on their stream."""
    return [
        *STEPS,
        operator("aten::mm", 2, 8),
        *launched("gemm", 4, 10, 40, 1),
        annotation("Optimizer.step#AdamW.step", 70, 80),
        operator(MULTIPLIES, 20, 30, thread=2),
        *launched("gemm", 22, 40, 60, 2, thread=2),
        operator(ACCUMULATES, 31, 35, thread=2),
        operator(MULTIPLIES, 36, 40, thread=2),
        operator(ACCUMULATES, 41, 45, thread=2),
        operator(MULTIPLIES, 46, 50, thread=2),
        operator(ACCUMULATES, 51, 55, thread=2),
        *(event for collective in collectives for event in collective),
    ]


def in_turn(stream):
    """After each layer its all-reduce, and then the next layer."""
    return backward(
        reduced(32, 60, 80, 3, stream),
        launched("gemm", 37, 80, 100, 4, thread=2),
        reduced(42, 100, 120, 5, stream),
        launched("gemm", 47, 120, 140, 6, thread=2),
        reduced(52, 140, 160, 7, stream),
    )


def found(tmp_path, events):
    return {delay.cause: delay for delay in measure_events(tmp_path, events).delayed}


def times(delay):
    return delay.exposed_ns / US, delay.could_hide_ns / US, delay.calls_per_step


def test_collectives_on_the_compute_stream(tmp_path):
    """Three of 20 us; two layers of 20 us are computed after the first of them."""
    delays = found(tmp_path, in_turn(stream=7))
    assert times(delays["waited_for_in_backward"]) == (60, 40, 3 / 2)
    assert delays["waited_for_in_backward"].on_compute_stream
    assert [*delays] == ["waited_for_in_backward"]


def test_collectives_on_a_stream_that_the_compute_stream_waits_for(tmp_path):
    """Nothing of the pass waits for the last one."""
    (delay,) = found(tmp_path, in_turn(stream=8)).values()
    assert (delay.cause, *times(delay)) == ("waited_for_in_backward", 40, 40, 2 / 2)
    assert (delay.on_compute_stream, delay.streams, delay.group) == (False, [8], "0")
    assert delay.most_share == pytest.approx(40 / 210)  # the windows are [10,210) and [210,220)


def test_the_host_limits_what_overlapping_them_gains(tmp_path):
    """Each layer is launched 5 us before the collective in front of it ends: the last one could end 5 us earlier."""
    late = [
        *STEPS,
        operator("aten::mm", 2, 8),
        *launched("gemm", 4, 10, 40, 1),
        operator(MULTIPLIES, 20, 30, thread=2),
        *launched("gemm", 22, 40, 60, 2, thread=2),
        operator(ACCUMULATES, 31, 35, thread=2),
        *reduced(32, 60, 80, 3, 7),
        operator(MULTIPLIES, 70, 76, thread=2),
        *launched("gemm", 75, 80, 100, 4, thread=2),
        operator(ACCUMULATES, 77, 80, thread=2),
        *reduced(78, 100, 120, 5, 7),
        operator(MULTIPLIES, 110, 116, thread=2),
        *launched("gemm", 115, 120, 140, 6, thread=2),
        operator(ACCUMULATES, 117, 120, thread=2),
        *reduced(118, 140, 160, 7, 7),
        annotation("Optimizer.step#AdamW.step", 130, 140),
    ]
    assert times(found(tmp_path, late)["waited_for_in_backward"]) == (60, 5, 3 / 2)


def test_collectives_that_the_pass_overlaps_are_not_delayed(tmp_path):
    events = backward(
        reduced(32, 60, 80, 3, 8),
        launched("gemm", 37, 60, 80, 4, thread=2),
        reduced(42, 80, 100, 5, 8),
        launched("gemm", 47, 80, 100, 6, thread=2),
        reduced(52, 100, 120, 7, 8),
    )
    assert found(tmp_path, events) == {}


@pytest.mark.parametrize(
    ("called", "elements", "delayed"), [(60, MIB_OF_FLOATS, True), (60, MIB_OF_FLOATS - 1, False), (85, 2**20, False)]
)
def test_gradients_that_are_sent_after_the_pass(tmp_path, called, elements, delayed):
    """60 us, after two layers of 20 us each; less than a MiB is no gradients, nor is what follows the optimizer."""
    layers = (launched("gemm", 37, 60, 80, 4, thread=2), launched("gemm", 47, 80, 100, 6, thread=2))
    events = backward(*layers, reduced(called, 100, 160, 7, 8, thread=1, elements=elements))
    delays = found(tmp_path, events)
    assert [*delays] == (["after_backward"] if delayed else [])
    if delayed:
        assert times(delays["after_backward"]) == (60, 40, 1 / 2)
        assert delays["after_backward"].bytes_per_step == 2**20 / 2


def test_what_an_optimizer_averages_beside_gradients_is_left_alone(tmp_path):
    """DDP sent more in the pass."""
    bucket = reduced(42, 60, 62, 5, 8, elements=MIB_OF_FLOATS + 1)
    layers = (launched("gemm", 37, 60, 80, 4, thread=2), launched("gemm", 47, 80, 100, 6, thread=2))
    assert found(tmp_path, backward(bucket, *layers, reduced(60, 100, 160, 7, 8, thread=1))) == {}


OWN = ("FSDP::pre_forward ({})", "FullyShardedDataParallel._pre_forward")
AHEAD = ("FSDP::forward_prefetch for {}", "FullyShardedDataParallel._pre_forward_prefetch")


@pytest.mark.parametrize("own", OWN)
def test_units_that_gather_when_they_are_needed(tmp_path, own):
    """Each gather of 20 us follows the unit before; units 0 and 1 take 30 us each."""
    events = [
        *STEPS,
        *(annotation(own.format(unit), 2 + 10 * unit, 8 + 10 * unit) for unit in range(3)),
        *launched(GATHER, 3, 10, 30, 1, stream=9),
        *launched("gemm", 9, 30, 60, 2),
        *launched(GATHER, 13, 60, 80, 3, stream=9),
        *launched("gemm", 19, 80, 110, 4),
        *launched(GATHER, 23, 110, 130, 5, stream=9),
        *launched("gemm", 29, 130, 150, 6),
    ]
    (delay,) = found(tmp_path, events).values()
    assert (delay.cause, *times(delay)) == ("not_prefetched", 40, 40, 2 / 2)


@pytest.mark.parametrize(("own", "ahead"), [*zip(OWN, AHEAD, strict=True)])
def test_units_that_are_gathered_ahead(tmp_path, own, ahead):
    """Unit 1 in the hook of unit 0, and unit 2 in that of unit 1; they are exposed, since the link is slow."""
    events = [
        *STEPS,
        annotation(own.format(0), 2, 12),
        *launched(GATHER, 3, 10, 30, 1, stream=9),
        annotation(ahead.format(1), 7, 11),
        *launched(GATHER, 8, 30, 90, 2, stream=9),
        *launched("gemm", 14, 30, 60, 3),
        annotation(own.format(1), 16, 24),
        annotation(ahead.format(2), 19, 23),
        *launched(GATHER, 20, 90, 150, 4, stream=9),
        *launched("gemm", 25, 90, 120, 5),
        *launched("gemm", 30, 150, 180, 6),
    ]
    assert found(tmp_path, events) == {}


@pytest.mark.long
def test_gathers_of_a_recording_on_a_card():
    """Four units: three gathers of a forward pass follow another. Those of backward passes are issued ahead."""
    measured = reading.measured(ROOT / "sample_traces" / "gpu" / "ranks-nccl-fsdp")
    (delay,) = measured.delayed
    assert (delay.cause, delay.kinds, delay.calls_per_step) == ("not_prefetched", ["all_gather"], 3)
    exposed = next(row for row in measured.overlap.rows if (row.kind, row.phase) == ("all_gather", "forward"))
    assert 0.75 * exposed.exposed_transfer_ns < delay.exposed_ns < exposed.exposed_transfer_ns


def test_gradients_of_a_script_that_sends_them_itself():
    """Eight layers of 384 x 384 and 384 floats, in one all-reduce; DDP sends them in its backward pass."""
    (delay,) = reading.measured(PLAIN / "gradients-after-backward").delayed
    assert (delay.cause, delay.calls_per_step) == ("after_backward", 1)
    assert delay.bytes_per_step == 8 * (384 * 384 + 384) * 4
    assert reading.measured(PLAIN / "gradients-after-backward-mended").delayed == []


def test_copies_out_of_buckets_of_a_public_trace(real_traces):
    """161 gradients in each of three steps; the ranges of the copies last 26.4 of the 667 ms."""
    copies = reading.measured(real_traces / "hta_training" / "b4b6dce_nccl_data.json.gz").bucket_copies
    assert copies.copies_per_step == 161
    assert copies.host_share == pytest.approx((8.963 + 8.753 + 8.695) / (222.442 + 219.727 + 224.936), rel=1e-3)
