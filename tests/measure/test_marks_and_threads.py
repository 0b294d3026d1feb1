"""Which ranges are steps, which threads are gloo's, and what a count per step is divided by. Microseconds."""

import json

import pytest

from dptune.measure import measure
from dptune.measure.steps.accumulation import accumulation, samples_per_step
from dptune.measured import Missing
from dptune.runfile.facts import Facts, Window
from dptune.trace import load

US = 1000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def event(category, name, start, end, tid=1, **args):
    shared = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": tid}
    return {**shared, "ts": start, "dur": end - start, "args": args}


def read(tmp_path, *events):
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return load([tmp_path / "t.json"])


def steps(run):
    return [step.number for step in measure(run).ranks[0].devices[0].steps]


STEP = event("user_annotation", "ProfilerStep#1", 0, 100)
MM = event("cpu_op", "aten::mm", 10, 30)


def test_send_and_receive_do_not_hide_the_thread_that_calls_them(tmp_path):
    run = read(tmp_path, STEP, MM, event("user_annotation", "gloo:send", 40, 60), event("cpu_op", "aten::x", 45, 50))
    account = measure(run).account
    assert (account.compute_ns, account.exposed_communication_ns) == (20 * US, 20 * US)


def test_send_and_receive_without_steps(tmp_path):
    whole = measure(read(tmp_path, MM, event("user_annotation", "gloo:recv", 40, 60))).ranks[0].devices[0].whole
    assert (whole.compute_ns, whole.exposed_communication_ns) == (20 * US, 20 * US)


def test_only_the_loader_of_the_training_thread_is_waited_for(tmp_path):
    background = event("user_annotation", LOADER, 50, 90, tid=2)
    with pytest.raises(Missing, match="no DataLoader range"):
        _ = measure(read(tmp_path, STEP, MM, background)).input.wait_share
    measured = measure(read(tmp_path, STEP, MM, background, event("user_annotation", LOADER, 0, 5)))
    assert measured.input.wait_share == pytest.approx(0.05)
    assert measured.account.input_idle_ns == 5 * US


def test_a_step_marked_twice_is_one(tmp_path):
    run = read(tmp_path, STEP, event("cpu_op", "ProfilerStep#1", 0, 100), MM)
    assert steps(run) == [1]
    assert [(f.code, f.level) for f in run.findings] == [("steps-marked-twice", "partial")]


def test_a_mark_around_steps_is_none(tmp_path):
    outer = event("user_annotation", "ProfilerStep#7", 0, 300)
    run = read(tmp_path, outer, STEP, event("user_annotation", "ProfilerStep#2", 100, 200), MM)
    assert steps(run) == [1, 2]
    assert [f.code for f in run.findings] == ["steps-marked-twice"]


def test_a_step_without_device_work_is_no_divisor(tmp_path):
    def gpu(category, name, start, correlation):
        return event(category, name, start, start + 9, 7, device=0, stream=7, correlation=correlation, bytes=-5)

    copy = "Memcpy HtoD (Pinned -> Device)"
    run = read(
        tmp_path,
        *(event("user_annotation", f"ProfilerStep#{n}", n * 100, n * 100 + 100) for n in (1, 2, 3)),
        *(event("cuda_runtime", "cudaLaunchKernel", at, at + 1, correlation=at) for at in (110, 120, 310, 320)),
        *(gpu("gpu_memcpy", copy, at + 5, at) for at in (110, 310)),
        *(gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 5, at) for at in (120, 320)),
    )
    measured = measure(run)
    assert steps(run) == [1, 3]
    assert (measured.copies[0].calls_per_step, measured.collectives[0].calls_per_step) == (1.0, 1.0)
    with pytest.raises(Missing, match="how many bytes"):
        _ = measured.copies[0].total_bytes


def test_totals_do_not_wrap(tmp_path):
    large = 2**61
    copies = [
        event("gpu_memcpy", "Memcpy HtoD", at, at + 1, 7, device=0, correlation=1, bytes=2 * large)
        for at in range(5, 10)
    ]
    launch = event("cuda_runtime", "cudaMemcpyAsync", 1, 2, correlation=1)
    assert measure(read(tmp_path, STEP, launch, *copies)).copies[0].total_bytes == 10 * large


def test_samples_are_known_where_no_backward_was_counted():
    facts = [Facts(0, windows=[Window("unprofiled", 1, [5], loader_samples=[32], backwards=[0])])]
    assert samples_per_step(facts, 2) == (64, "")
    with pytest.raises(Missing, match="no backward call"):
        _ = accumulation(facts).backwards_per_step


def test_a_window_without_steps_is_no_crash(tmp_path):
    run = read(tmp_path, STEP, MM)
    run.facts[0] = Facts(0, windows=[Window("unprofiled", 1), Window("lean", 1, [0])])
    assert measure(run).account.compute_ns == 20 * US
