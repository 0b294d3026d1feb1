"""Runs of other makers' devices, as Kineto writes them: what the device is, what it talks through, and its account.

Steps of 100 us: a product of 40 us on one queue, an all-reduce of 30 us that begins 20 us before its end on another.
"""

import pytest

from dptune.advise.trust import judge
from dptune.measure import measure
from dptune.measure.lanes import RankLanes

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import event, load_events, operator, step

ONECCL = "oneccl_allreduce_pcie<float, RingTransmit>"


def run_of(folder, runtime, launching, collective, ranks=2, queued=False, **header):
    """Queues have numbers in `stream`, or where `queued` only as threads of the device's process."""
    events = []
    for number in range(5):
        begin = 100 * number
        events.append(step(number, begin, begin + 100))
        for at, (name, queue, start, end) in enumerate(
            [("gemm_kernel", 64, begin + 10, begin + 50), (collective, 71, begin + 30, begin + 60)]
        ):
            correlation = 2 * number + at
            where = {"device": 0, "correlation": correlation} | ({} if queued else {"stream": queue})
            events.append(event(runtime, launching, begin + 1 + at, begin + 2 + at, correlation=correlation))
            events.append(event("kernel", name, start, end, queue, **where) | {"pid": 0})
    return load_events(folder, *[events] * ranks, **header)


@pytest.mark.parametrize(
    ("runtime", "launching", "collective", "backend", "kind", "device"),
    [
        ("xpu_runtime", "urEnqueueKernelLaunch", ONECCL, "xccl", "xpu", "xpu:0"),
        ("xpu_driver", "zeCommandListAppendLaunchKernel", ONECCL, "xpu:xccl,cpu:gloo", "xpu", "xpu:0"),
        ("hpu_op", "synLaunchExt", "hccl_all_reduce", "hccl", "hpu", "hpu:0"),
        ("cuda_runtime", "hipLaunchKernel", "ncclDevKernel_Generic_1(ncclDevComm*)", "nccl", "rocm", "cuda:0"),
        ("cuda_runtime", "cudaLaunchKernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "nccl", "cuda", "cuda:0"),
    ],
)
def test_makers_are_told_apart(tmp_path, runtime, launching, collective, backend, kind, device):
    measured = measure(run_of(tmp_path, runtime, launching, collective, backend=backend))
    assert measured.device_kind == kind
    assert measured.backend == backend.removeprefix("xpu:").partition(",")[0]
    assert [own.device for rank in measured.ranks for own in rank.devices] == [device] * 2
    account = measured.account  # of each rank 4 windows of 100 us: the last one lacks its trailing wait
    assert (account.window_ns, account.compute_ns) == (2 * 400_000, 2 * 4 * 40_000)
    assert (account.exposed_communication_ns, account.hidden_communication_ns) == (2 * 4 * 10_000, 2 * 4 * 20_000)


def test_without_a_named_backend_the_kernels_tell_it(tmp_path):
    run = run_of(tmp_path, "xpu_runtime", "urEnqueueKernelLaunch", ONECCL, ranks=1)
    assert measure(run).backend == "xccl"


def test_queues_that_only_threads_tell_are_queues(tmp_path):
    run = run_of(tmp_path, "xpu_runtime", "urEnqueueKernelLaunch", ONECCL, ranks=1, queued=True)
    labels = [lane.label for lane in RankLanes(run, 0).between(0, 10**9)]
    assert labels == ["script", "stream 71", "stream 64"]


def test_an_ascend_npu_is_refused_by_name_and_is_no_cpu(tmp_path):
    """As torch_npu writes it: operations of the device without a category, on a process of that name."""
    names = {"ph": "M", "name": "process_name", "pid": 800, "tid": 0, "args": {"name": "Ascend Hardware"}}
    events = [names]
    for number in range(4):
        begin = 100 * number
        events += [
            step(number, begin, begin + 100),
            operator("aten::add", begin + 1, begin + 9),
            event("enqueue", "Enqueue", begin + 2, begin + 4),
            {"ph": "X", "name": "aclnnAdd_AddAiCore_Add", "pid": 800, "tid": 3, "ts": begin + 10, "dur": 50},
        ]
    run = load_events(tmp_path, events)
    measured = measure(run)
    assert measured.device_kind == "npu"
    assert measured.known("account") is None
    trust = judge(measured, [], run.findings)
    (finding,) = (one for one in trust.findings if one.level == "unjudgeable")
    assert finding.code == "device-unknown"
    assert "is a trace of an Ascend NPU" in finding.text


def test_oneccl_on_an_xpu(findings):
    measured = reading.measured(findings / "traces" / "made_xpu_oneccl")
    assert (measured.backend, measured.device_kind) == ("xccl", "xpu")
    shares = [measured.account.share(part) for part in ("compute_ns", "exposed_communication_ns")]
    assert [round(share, 2) for share in shares] == [0.74, 0.21]
    assert {one.kind for one in measured.collectives} == {"all_reduce"}
