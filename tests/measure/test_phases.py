"""Phases, and who shares the step with whom: by hand, against a plain count of microseconds, and on real traces."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dptune.measure.device.phases import INFERENCE, NO_BACKWARD, host_phases
from dptune.measure.steps.repeating import NO_COMPUTE
from dptune.measure.views import view
from dptune.measured import Missing

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import BACKWARD, NCCL, US, annotation, kernel, launched, load_events, measure_events, operator, step

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def told(measured):
    return {
        one.phase: tuple(
            time / US for time in (one.compute_ns, one.hidden_communication_ns, one.exposed_communication_ns)
        )
        for one in measured.phases
    }


GPU = [
    step(3, 0, 100),
    step(4, 100, 200),
    annotation("Optimizer.step#AdamW.step", 60, 90),
    annotation("Optimizer.step#AdamW.step", 160, 190),
    operator("aten::mm", 5, 20),
    # autograd's own thread: what lies outside its ranges is backward too
    operator(BACKWARD, 30, 50, thread=2),
    operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", 52, 55, thread=2),
    operator(BACKWARD, 130, 150, thread=2),
    *launched("gemm", 10, 20, 50, 1),
    *launched("gemm_bwd", 35, 50, 80, 2, thread=2),
    *launched(NCCL, 40, 60, 100, 3, thread=2, stream=8),
    *launched("copy_bucket", 53, 80, 85, 4, thread=2),
    *launched("adam", 70, 95, 105, 5),
    *launched(GATHER, 75, 90, 120, 6, stream=8),
    *launched("gemm", 110, 120, 150, 7),
    kernel("lost", 150, 155, 8),
    *launched("of a thread without ranges", 140, 160, 166, 9, thread=3),
    *launched("gemm_bwd", 135, 170, 180, 10, thread=2),
]


def test_a_gpu_by_hand(tmp_path):
    """Windows [20,120) and [120,180). In flight at once: the all-reduce to 100, then the all-gather to 120."""
    measured = measure_events(tmp_path, GPU)
    assert told(measured) == {
        "forward": (30 + 30, 0, 0),
        "backward": (30 + 5 + 10, 20 + 5 + 5, 40 - 30),
        "optimizer": (10, 5, 20 - 5),
        "unknown": (5 + 6, 0, 0),
    }
    hosts = {one.phase: one.known("host_ns") for one in measured.phases}
    # backward: [30,50) [52,55) [130,150); forward the rest of two steps
    assert hosts == {"forward": 97 * US, "backward": 43 * US, "optimizer": 60 * US, "unknown": None}
    rows = {(one.kind, one.phase): (one.calls, one.hidden_ns, one.exposed_ns) for one in measured.overlap.rows}
    assert rows == {
        ("all_reduce", "backward"): (1, 30 * US, 10 * US),
        ("all_gather", "optimizer"): (1, 5 * US, 15 * US),
    }
    assert {one.kind: one.most_share for one in measured.overlap.rows} == {
        "all_reduce": 10 / 160,
        "all_gather": 15 / 160,
    }
    assert measured.overlap.compute_per_communication == pytest.approx(126 / 60)
    with pytest.raises(
        Missing,
        match=r"^1 operation of a step overlapped communication in some steps only; comparing needs at least 30",
    ):
        _ = measured.overlap.slowdown


def test_an_optimizer_with_a_closure_has_what_comes_after_the_backward_pass(tmp_path):
    events = [
        step(3, 0, 100),
        annotation("Optimizer.step#LBFGS.step", 10, 90),
        operator(BACKWARD, 40, 60, thread=2),
        *launched("gemm", 20, 30, 40, 1),
        *launched("gemm_bwd", 45, 50, 65, 2, thread=2),
        *launched("adam", 70, 80, 84, 3),
    ]
    assert told(measure_events(tmp_path, events)) == {
        "forward": (10, 0, 0),
        "backward": (15, 0, 0),
        "optimizer": (4, 0, 0),
    }


def test_backward_ranges_of_no_duration_leave_the_other_phases_as_they_are(tmp_path):
    """As a trace of whole microseconds, or a damaged one, may have all of them."""
    events = [step(1, 0, 100), annotation("Optimizer.step#SGD.step", 60, 90), operator(BACKWARD, 30, 30, thread=2)]
    events += [*launched("gemm", 10, 20, 50, 1), *launched("adam", 70, 75, 95, 2)]
    hosts = {one.phase: one.known("host_ns") for one in measure_events(tmp_path, events).phases}
    assert hosts == {"forward": 70 * US, "backward": 0, "optimizer": 30 * US}


def test_an_optimizer_that_a_backward_pass_outlasts_is_no_closure(tmp_path):
    events = [
        step(3, 0, 100),
        annotation("Optimizer.step#SGD.step", 10, 90),
        operator(BACKWARD, 80, 95, thread=2),
        *launched("sgd", 20, 30, 40, 1),
        *launched("gemm_bwd", 85, 90, 97, 2, thread=2),
    ]
    assert told(measure_events(tmp_path, events)) == {
        "forward": (0, 0, 0),
        "backward": (7, 0, 0),
        "optimizer": (10, 0, 0),
    }


def test_an_optimizer_inside_the_backward_pass_is_the_optimizer(tmp_path):
    events = [
        step(3, 0, 100),
        operator(BACKWARD, 20, 80),
        annotation("Optimizer.step#SGD.step", 40, 60),
        *launched("gemm", 10, 30, 40, 1),
        *launched("gemm_bwd", 30, 50, 65, 2),
        *launched("sgd", 50, 80, 84, 3),
    ]
    found = measure_events(tmp_path, events)
    assert told(found) == {"forward": (10, 0, 0), "backward": (15, 0, 0), "optimizer": (4, 0, 0)}
    assert [one.host_ns for one in found.phases] == [40 * US, 40 * US, 20 * US]


def test_operators_of_a_cpu_and_who_asked_for_a_collective(tmp_path):
    """The all-reduce is asked for in the backward pass, and runs into the optimizer's step."""
    events = [
        step(3, 0, 200),
        operator("aten::mm", 10, 50),
        operator("aten::mm", 20, 30),
        operator(BACKWARD, 60, 100),
        operator("aten::mm", 65, 80),
        operator("c10d::allreduce_", 90, 95),
        annotation("Optimizer.step#SGD.step", 110, 160),
        operator("aten::add_", 120, 150),
        annotation("gloo:all_reduce", 92, 130, thread=4),
    ]
    found = measure_events(tmp_path, events)
    # the call itself is not arithmetic: backward computes [60,90) and [95,100)
    assert told(found) == {"forward": (40, 0, 0), "backward": (35, 5 + 10, 23), "optimizer": (30, 0, 0)}
    (row,) = found.overlap.rows
    assert (row.kind, row.phase, row.calls, row.hidden_ns) == ("all_reduce", "backward", 1, 15 * US)


def test_a_collective_that_nobody_is_known_to_have_asked_for_has_no_phase(tmp_path):
    events = [
        step(3, 0, 200),
        operator("aten::mm", 10, 50),
        operator(BACKWARD, 60, 100),
        annotation("Optimizer.step#SGD.step", 110, 160),
        annotation("gloo:all_reduce", 92, 130, thread=4),
    ]
    assert told(measure_events(tmp_path, events))["unknown"] == (0, 8, 30)


@pytest.mark.parametrize(("dropped", "why"), [(BACKWARD, "backward pass"), ("Optimizer", "optimizer's step")])
def test_without_the_ranges_the_phases_are_missing_and_overlap_has_none(tmp_path, dropped, why):
    measured = measure_events(tmp_path, [event for event in GPU if not event["name"].startswith(dropped)])
    with pytest.raises(Missing, match=why):
        _ = measured.phases
    for row in measured.overlap.rows:
        assert why in row.missing["phase"]
    exposed = {row.kind: row.exposed_ns for row in measured.overlap.rows}
    assert exposed == {"all_reduce": 10 * US, "all_gather": 15 * US}


def test_collectives_alone_look_like_neither_training_nor_inference(tmp_path):
    collectives = [
        step(1, 0, 100),
        operator("aten::empty", 1, 2),
        annotation("gloo:all_reduce", 10, 60),
        step(2, 100, 200),
        annotation("gloo:all_reduce", 110, 160),
    ]
    assert measure_events(tmp_path, collectives).missing["phases"] == NO_BACKWARD
    forward = [*collectives, operator("aten::linear", 70, 90)]
    assert measure_events(tmp_path, forward).missing["phases"] == INFERENCE
    assert NO_COMPUTE in view(0, load_events(tmp_path, collectives[1:3]).ranks[0].light).no_steps


def test_a_public_trace_of_collectives_alone_is_not_called_inference(real_traces):
    (trace,) = (real_traces / "cpu_only").glob("1aff90f*")
    assert "inference" not in reading.reported(trace).headline.next


def test_a_collective_that_no_step_launched_takes_its_time_and_is_no_call_of_them(tmp_path):
    """It is launched between the steps, and runs in the window of the first, [20,140)."""
    events = [
        step(3, 0, 100),
        step(4, 120, 200),
        *launched("gemm", 10, 20, 30, 1),
        *launched(NCCL, 40, 50, 60, 2, stream=8),
        *launched(NCCL, 105, 106, 112, 3, stream=8),
        *launched("gemm", 130, 140, 150, 4),
    ]
    (row,) = measure_events(tmp_path, events).overlap.rows
    assert (row.calls, row.exposed_ns) == (1, 16 * US)


def test_of_ranks_that_pay_unlike_the_most_is_told(tmp_path):
    """Rank 0 sends for 20 of 100 us, rank 1 receives for 60, 10 of them behind compute."""
    first = [step(3, 0, 100), *launched("gemm", 0, 0, 20, 1), *launched(NCCL, 40, 40, 60, 2, stream=8)]
    second = [step(3, 0, 100), *launched("gemm", 0, 0, 50, 1), *launched(NCCL, 40, 40, 100, 2, stream=8)]
    (row,) = measure_events(tmp_path, first, second).overlap.rows
    assert (row.exposed_ns, row.hidden_ns, row.most_share) == ((20 + 50) * US, 10 * US, 0.5)


SPANS = st.lists(st.tuples(st.integers(0, 190), st.integers(1, 30)), max_size=3)
KERNELS = st.lists(
    st.tuples(
        st.integers(0, 199),
        st.integers(0, 60),
        st.integers(1, 40),
        st.sampled_from(["gemm", NCCL, GATHER]),
        st.sampled_from([1, 2, 3]),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(backward=SPANS, optimizer=SPANS, kernels=KERNELS)
def test_every_microsecond_counted_one_by_one(tmp_path, backward, optimizer, kernels):
    """Thread 1 marks the steps and runs passes and the optimizer, thread 2 forward operators, 3 launches only."""
    runs, free = [], 0
    for start, length in sorted(optimizer):  # beside each other, and in no pass: those are tested by hand
        if start >= free and not any(s < start + length and start < s + n for s, n in backward):
            runs.append((start, length))
            free = start + length
    assume(backward and runs)
    events = [
        step(0, 0, 70),  # what is launched between the two is of neither
        step(1, 100, 200),
        *(operator(BACKWARD, start, start + length) for start, length in backward),
        *(annotation("Optimizer.step#SGD.step", start, start + length) for start, length in runs),
        operator("aten::mm", 0, 1, thread=2),
        *(
            event
            for number, (called, later, length, name, thread) in enumerate(kernels)
            for event in launched(name, called, called + later, called + later + length, number, number, thread)
        ),
    ]
    measured = measure_events(tmp_path, events)
    assume(measured.known("account") is not None)
    (device,) = measured.ranks[0].devices
    numbers = {one.number for one in device.steps}

    def phase(called, thread):
        if thread == 3:
            return "unknown"
        if thread == 1 and any(start <= called < start + length for start, length in runs):
            return "optimizer"
        if thread == 1 and any(start <= called < start + length for start, length in backward):
            return "backward"
        return "forward" if (0 if called < 70 else 1 if called >= 100 else None) in numbers else "unknown"

    plain = {name: np.zeros(3, dtype=int) for name in ("optimizer", "backward", "forward", "unknown")}
    kinds = {}
    for window in device.steps:
        for moment in range(window.start_ns // US, (window.start_ns + window.account.window_ns) // US):
            active = [one for one in kernels if one[0] + one[1] <= moment < one[0] + one[1] + one[2]]
            computing = {phase(one[0], one[4]) for one in active if one[3] == "gemm"}
            communicating = [one for one in active if one[3] != "gemm"]
            if computing:
                plain[next(name for name in plain if name in computing)][0] += 1
            if communicating:
                first = min(communicating, key=lambda one: (one[0] + one[1], kernels.index(one)))
                plain[phase(first[0], first[4])][1 if computing else 2] += 1
                kind = "all_reduce" if first[3] == NCCL else "all_gather"
                kinds.setdefault((kind, phase(first[0], first[4])), [0, 0])[0 if computing else 1] += 1
    found = told(measured)
    assert {name: tuple(times) for name, times in plain.items() if name != "unknown" or any(times)} == found
    if measured.known("overlap") is None:
        assert not kinds
    else:
        rows = {
            (one.kind, one.phase): [one.hidden_ns // US, one.exposed_ns // US]
            for one in measured.overlap.rows
            if one.communication_ns
        }
        assert rows == kinds


def balanced(measured):
    """The parts sum to the account; returns whether the phases are known."""
    account = measured.account
    overlap = measured.known("overlap")
    if overlap is None:
        assert account.communication_ns == 0
    else:
        assert sum(one.hidden_ns for one in overlap.rows) == account.hidden_communication_ns
        assert sum(one.exposed_ns for one in overlap.rows) == account.exposed_communication_ns
        assert sum(one.exposed_transfer_ns for one in overlap.rows) == account.exposed_without_waiting_ns
    found = measured.known("phases")
    if found is None:
        return False
    assert sum(one.compute_ns for one in found) == account.compute_ns
    assert sum(one.hidden_communication_ns for one in found) == account.hidden_communication_ns
    assert sum(one.exposed_communication_ns for one in found) == account.exposed_communication_ns
    return True


REAL = {
    "nanogpt_8xh100": True,
    "nanogpt_adam_hook_h100/3608dcf_modded-nanogpt-hook-gpu-rank-00-chrome-trace.json.gz": True,
    "torchrec_straggler_4xv100": False,
    "torchrec_qcomm_a_4xv100": True,
    "hta_training/b1ceb4c_control.json.gz": True,
    "hta_training/b4b6dce_nccl_data.json.gz": True,
    "hta_training/e8fe4d1_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": True,
    "kineto_resnet50_loader/2d19c63_worker0.pt.trace.json.gz": True,
    "single_gpu/1eeffb3_trace_05.json.gz": True,
}


@pytest.mark.parametrize("name", REAL)
def test_the_parts_of_real_traces_sum_to_the_account(real_traces, name):
    assert balanced(reading.measured(real_traces / name)) is REAL[name]


@pytest.mark.parametrize(
    "name",
    [
        "kineto_resnet50_loader/2d19c63_worker0.pt.trace.json.gz",  # nodes of autograd are operators, of its own thread
        "hta_training/e8fe4d1_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        "single_gpu/1eeffb3_trace_05.json.gz",
        "nanogpt_8xh100",
    ],
)
def test_a_backward_pass_computes_about_twice_what_the_forward_pass_does(real_traces, name):
    """It makes two products, by the input and by the weights, for each of the forward pass."""
    found = {one.phase: one.compute_ns for one in reading.measured(real_traces / name).phases}
    assert 1.5 < found["backward"] / found["forward"] < 2.5
    assert found["optimizer"] < 0.2 * found["forward"] + 0.1 * found["backward"]
    assert "unknown" not in found


def test_nanogpt_gathers_in_the_optimizer_and_scatters_in_the_backward_pass_too(real_traces):
    found = reading.measured(real_traces / "nanogpt_8xh100")
    assert {(one.kind, one.phase) for one in found.overlap.rows} == {
        ("all_gather", "optimizer"),
        ("reduce_scatter", "optimizer"),
        ("reduce_scatter", "backward"),
    }
    calls = sum(one.calls for one in found.collectives)
    assert sum(one.calls for one in found.overlap.rows) == calls


def test_calls_of_a_last_step_that_is_cut_short_are_not_counted(tmp_path):
    """Five steps of 100 whose device idles until 45; the last lacks that wait and is excluded: four calls in four."""
    events = []
    for number in range(5):
        at = 100 * number
        events += [step(number, at, at + 100), *launched("gemm", at + 45, at + 47, at + 77, 10 * number)]
        events += launched(NCCL, at + 46, at + 77, at + 97, 10 * number + 1, stream=8)
    measured = measure_events(tmp_path, events)
    assert measured.steps.cut_short == [4]
    (row,) = measured.overlap.rows
    assert (row.calls, row.communication_ns) == (4, 80 * US)


def test_phases_of_a_trace_are_found_once(tmp_path):
    events = [operator(BACKWARD, 0, 5), annotation("Optimizer.step#SGD.step", 6, 9)]
    columns = load_events(tmp_path, events).ranks[0].light.columns
    assert not isinstance(host_phases(columns), str)
    assert host_phases(columns) is host_phases(columns)
