"""Which ranges are steps, which threads are gloo's, and what a count per step is divided by. Microseconds."""

import pytest

from dptune.measure import measure
from dptune.measure.steps.accumulation import accumulation, samples_per_step
from dptune.measured import Missing
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window

from .handmade import LOADER, NCCL, US, annotation, call, copy, launch, launched, load_events, operator, python, step


def steps(run):
    return [one.number for one in measure(run).ranks[0].devices[0].steps]


STEP = step(1, 0, 100)
MM = operator("aten::mm", 10, 30)


def test_send_and_receive_do_not_hide_the_thread_that_calls_them(tmp_path):
    run = load_events(tmp_path, [STEP, MM, annotation("gloo:send", 40, 60), operator("aten::x", 45, 50)])
    account = measure(run).account
    assert (account.compute_ns, account.exposed_communication_ns) == (20 * US, 20 * US)


def test_send_and_receive_without_steps(tmp_path):
    whole = measure(load_events(tmp_path, [MM, annotation("gloo:recv", 40, 60)])).ranks[0].devices[0].whole
    assert (whole.compute_ns, whole.exposed_communication_ns) == (20 * US, 20 * US)


def test_only_the_loader_of_the_training_thread_is_waited_for(tmp_path):
    background = annotation(LOADER, 50, 90, thread=2)
    with pytest.raises(Missing, match="uses no torch DataLoader"):
        _ = measure(load_events(tmp_path, [STEP, MM, background])).input.wait_share
    measured = measure(load_events(tmp_path, [STEP, MM, background, annotation(LOADER, 0, 5)]))
    assert measured.input.wait_share == pytest.approx(0.05)
    assert measured.account.input_idle_ns == 5 * US


RPC = "rpc_sync#slow(worker0 -> worker1)"
FUTURE = "torch/futures/__init__.py(94): wait"


@pytest.mark.parametrize(
    ("waits", "sync_us"),
    [
        ([operator(RPC, 40, 80)], 40),  # as torch 1.x wrote it
        ([annotation(RPC, 40, 80)], 40),
        ([operator("to_here#(worker0)->(worker1)", 40, 80)], 40),
        ([operator("rpc_async#slow(worker0 -> worker1)", 35, 85), python(FUTURE, 60, 80)], 20),
        ([python("torch/distributed/rpc/api.py(690): rpc_sync", 40, 80)], 40),
        ([python("<built-in method to_here of torch._C._distributed_rpc.PyRRef object at 0x7f>", 40, 80)], 40),
    ],
)
def test_waiting_for_another_process_is_no_compute(tmp_path, waits, sync_us):
    """A step of 100 us computes for 20 us; what runs while a reply is awaited computes, too."""
    account = measure(load_events(tmp_path, [STEP, MM, *waits])).account
    assert (account.compute_ns, account.sync_idle_ns) == (20 * US, sync_us * US)
    account = measure(load_events(tmp_path, [STEP, MM, *waits, operator("aten::add", 62, 72)])).account
    assert (account.compute_ns, account.sync_idle_ns) == (30 * US, (sync_us - 10) * US)


@pytest.mark.parametrize(
    ("until", "others", "sync_us"),
    [
        (80, [], 50),  # from the end of the only operator, at 30, to the reply
        (80, [operator("aten::add", 62, 72)], 8),  # before it the host prepared that operator
        (20, [], 0),  # the host computes as the reply comes
        (80, [python("train.py(3): load", 32, 99)], 0),  # Python functions were recorded, and show no waiting
    ],
)
def test_the_host_waits_for_the_reply_that_it_goes_on_with(tmp_path, until, others, sync_us):
    """A call that returns at once, as torch 1.x wrote it: its range lasts from 12 until the reply."""
    asked = operator("rpc_async#get(worker0 -> worker1)", 12, until)
    assert measure(load_events(tmp_path, [STEP, MM, asked, *others])).account.sync_idle_ns == sync_us * US


def test_a_step_marked_twice_is_one(tmp_path):
    run = load_events(tmp_path, [STEP, operator("ProfilerStep#1", 0, 100), MM])
    assert steps(run) == [1]
    assert [(f.code, f.level) for f in run.findings] == [("steps-marked-twice", "partial")]


def test_a_mark_around_steps_is_none(tmp_path):
    outer = step(7, 0, 300)
    run = load_events(tmp_path, [outer, STEP, step(2, 100, 200), MM])
    assert steps(run) == [1, 2]
    assert [f.code for f in run.findings] == ["steps-marked-twice"]


def test_a_step_without_device_work_is_no_divisor(tmp_path):
    events = [step(n, n * 100, n * 100 + 100) for n in (1, 2, 3)]
    for at in (110, 310):
        events += [launch(at, at, at + 1), copy("HtoD (Pinned -> Device)", at + 5, at + 14, at, bytes=-5)]
        events += launched(NCCL, at + 10, at + 15, at + 24, at + 10)
    run = load_events(tmp_path, events)
    measured = measure(run)
    assert steps(run) == [1, 3]
    assert (measured.copies[0].calls_per_step, measured.collectives[0].calls_per_step) == (1.0, 1.0)
    with pytest.raises(Missing, match="how many bytes"):
        _ = measured.copies[0].total_bytes


def test_the_last_window_ends_where_something_launched_after_its_step_begins(tmp_path):
    """A launch at the end of a step is none of the step's."""
    later = [call("cudaMemcpyAsync", 100, 101, 2), copy("HtoD (Pinned -> Device)", 60, 70, 2, bytes=8)]
    measured = measure(load_events(tmp_path, [STEP, *launched("gemm", 10, 20, 80, 1), *later]))
    assert measured.account.window_ns == 40 * US
    assert measured.copies == []


def test_a_device_that_is_named_only_as_the_process(tmp_path):
    launching, ran = launched("gemm", 10, 20, 30, 1)
    del ran["args"]["device"]
    (device,) = measure(load_events(tmp_path, [STEP, launching, ran | {"pid": 3}])).ranks[0].devices
    assert device.device == "cuda:3"


def test_totals_do_not_wrap(tmp_path):
    large = 2**61
    copies = [copy("HtoD (Pinned -> Device)", at, at + 1, 1, bytes=2 * large) for at in range(5, 10)]
    run = load_events(tmp_path, [STEP, call("cudaMemcpyAsync", 1, 2, 1), *copies])
    assert measure(run).copies[0].total_bytes == 10 * large


def test_samples_are_known_where_no_backward_was_counted():
    facts = [Facts(0, windows=[Window("untraced", 1, [5], loader_samples=[32], backwards=[0])])]
    assert samples_per_step(facts, 2) == (64, "")
    with pytest.raises(Missing, match="no backward call"):
        _ = accumulation(facts).backwards_per_step


def test_a_window_without_steps_is_no_crash(tmp_path):
    run = load_events(tmp_path, [STEP, MM])
    run.facts[0] = Facts(0, windows=[Window("untraced", 1), Window("light", 1, [0])])
    assert measure(run).account.compute_ns == 20 * US
