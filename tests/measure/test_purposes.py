"""What collectives are for, and what sharding takes of the steps: by hand, and in recordings of real wrappers."""

from pathlib import Path

import pytest

from dptune.measured import Missing

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import NCCL, US, annotation, launched, measure_events, operator, step

RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
RELU = "autograd::engine::evaluate_function: ReluBackward0"
EVENTS = [
    step(3, 0, 100),
    step(4, 100, 200),
    annotation("Optimizer.step#AdamW.step", 80, 90),
    annotation("Optimizer.step#AdamW.step", 160, 190),
    *launched("gemm", 1, 10, 20, 1),
    annotation("FSDP::pre_forward (0)", 22, 32),
    *launched(GATHER, 24, 25, 35, 2, stream=8),
    *launched("gemm", 36, 40, 50, 3),
    operator(RELU, 43, 51, thread=2),
    annotation("FSDP::pre_backward (0)", 44, 50, thread=2),
    *launched(GATHER, 46, 47, 60, 4, thread=2, stream=9),
    operator(ACCUMULATES, 52, 58, thread=2),
    *launched(NCCL, 54, 55, 70, 5, thread=2, stream=8),
    *launched("adam", 82, 85, 95, 6),
    *launched(GATHER, 92, 96, 99, 7, stream=8),
    *launched("gemm", 105, 110, 120, 8),
]


def rows(measured):
    return {
        (one.kind, one.phase, one.purpose): (one.calls, one.hidden_ns / US, one.exposed_ns / US)
        for one in measured.overlap.rows
    }


def test_by_hand(tmp_path):
    """Windows [10,110) and [110,120). From 55 to 60 the all-reduce is in flight beside a gather that began earlier."""
    measured = measure_events(tmp_path, EVENTS)
    assert rows(measured) == {
        ("all_gather", "forward", "sharding"): (1, 0, 10),
        ("all_gather", "backward", "sharding"): (1, 3, 10),
        ("all_reduce", "backward", "gradients"): (1, 0, 10),
        ("all_gather", "forward", "other"): (1, 0, 3),
    }
    found = measured.sharding
    assert (found.hooks_ns, found.communication_ns) == (16 * US, 23 * US)
    # [22,35): the first hook and its gather; [50,60): a gather, before it is hidden; [80,95): the optimizer
    assert found.most_share == pytest.approx(38 / 110)
    assert found.units_most_share == pytest.approx(23 / 110)  # without that
    assert found.again_most_share == pytest.approx(13 / 110)


@pytest.mark.parametrize("hook", ["FSDP::post_backward_reduce (0)", "FullyShardedDataParallel._post_backward_hook"])
def test_reductions_take_their_hooks_and_copies_with_them(tmp_path, hook):
    """[60,64) and [67,68): the hook while nothing computes; [64,67): its copy; [70,75): its collective, overlapped."""
    reduction = [
        annotation(hook, 60, 68, thread=2),
        *launched("copy", 62, 64, 67, 11, thread=2),
        *launched(NCCL.replace("AllReduce", "ReduceScatter"), 66, 70, 75, 12, thread=2, stream=9),
        *launched("gemm", 69, 70, 80, 13, thread=2),
    ]
    found = measure_events(tmp_path, [*EVENTS, *reduction]).sharding
    assert found.reduced_most_share == pytest.approx((8 + 5) / 110)
    assert measure_events(tmp_path, EVENTS).sharding.reduced_most_share == 0


def test_the_forward_pass_of_a_sharded_module_is_no_hook(tmp_path):
    """FullyShardedDataParallel marks it as a whole; what the module gathers in it is its own."""
    outer = annotation("FullyShardedDataParallel.forward", 0, 42)
    names = {"FSDP::pre_forward (0)": "FullyShardedDataParallel._pre_forward", "FSDP::pre_backward (0)": "a hook"}
    events = [{**one, "name": names.get(one["name"], one["name"])} for one in EVENTS]
    purposes = {key[2] for key in rows(measure_events(tmp_path, [outer, *events])) if key[0] == "all_gather"}
    assert purposes == {"sharding", "other"}


def test_a_trace_without_hooks_says_so(tmp_path):
    events = [one for one in EVENTS if not one["name"].startswith("FSDP")]
    with pytest.raises(Missing, match="no ranges of FSDP's hooks"):
        _ = measure_events(tmp_path, events).sharding


def test_a_kernel_whose_launch_is_not_in_the_trace_has_no_purpose(tmp_path):
    events = [one for one in EVENTS if one["ts"] != 92]
    (unknown,) = [one for one in measure_events(tmp_path, events).overlap.rows if one.known("purpose") is None]
    assert unknown.kind == "all_gather"
    with pytest.raises(Missing, match="does not show which operator issued it"):
        _ = unknown.purpose


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "purposes"),
    [
        ("wide-gradients", {("all_reduce", "gradients")}),
        ("broadcast-buffers", {("all_reduce", "gradients"), ("broadcast", "other")}),
        ("sharded-parameters", {("all_gather", "sharding"), ("reduce_scatter", "sharding")}),
    ],
)
def test_of_real_wrappers(name, purposes):
    measured = reading.measured(RECORDED / name)
    assert {(one.kind, one.purpose) for one in measured.overlap.rows} == purposes
    exposed = sum(one.exposed_transfer_ns for one in measured.overlap.rows)
    assert exposed == measured.account.exposed_without_waiting_ns


def test_of_a_public_trace_of_gpus(real_traces):
    """Three steps of DDP: five buckets in each, and buffers in two broadcasts."""
    measured = reading.measured(real_traces / "hta_training" / "b4b6dce_nccl_data.json.gz")
    found = {(one.kind, one.phase, one.purpose): one.calls for one in measured.overlap.rows}
    assert found == {("all_reduce", "backward", "gradients"): 15, ("broadcast", "forward", "other"): 6}
