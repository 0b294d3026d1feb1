"""Copies of two GPU ranks, every figure by hand. Times in microseconds.

Both steps   aten::to [10,40) > aten::_to_copy > aten::copy_: cudaMemcpyAsync [13,30), cudaStreamSynchronize [31,36)
             copies 2 MiB of pageable memory to the device in [20,28), on rank 1 in [20,26); gemm [44,74)
Step 1 only  aten::item [62,80) > aten::_local_scalar_dense: cudaMemcpyAsync [64,66), cudaStreamSynchronize [66,77)
             copies 4 bytes to the host in [74,76); in no operator 1 MiB of pinned memory in [81,91), beside a kernel in
             [85,95), and 100 bytes on the device in [97,99), after which the script waits for the device
Windows      [20,120) and [120,174)
"""

import gzip
import json
from decimal import Decimal

import pytest

from dptune.measured import Missing

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import US, call, copy, kernel, launch, measure_events, operator, python, step

MIB = 2**20


def both_steps(at, rank, number):
    return [
        step(number, at, at + 100),
        operator("aten::to", at + 10, at + 40),
        operator("aten::_to_copy", at + 11, at + 39),
        operator("aten::copy_", at + 12, at + 38),
        call("cudaMemcpyAsync", at + 13, at + 30, 10 * number + 1),
        call("cudaStreamSynchronize", at + 31, at + 36, 10 * number + 2),
        copy("HtoD (Pageable -> Device)", at + 20, at + (26 if rank else 28), 10 * number + 1, bytes=2 * MIB),
        launch(10 * number + 3, at + 42, at + 43),
        kernel("ampere_sgemm_128x64_tn", at + 44, at + 74, 10 * number + 3),
    ]


def events(rank):
    stacks = [
        python("train.py(10): main", 0, 200),
        python("torch/nn/modules/module.py(1501): _call_impl", 2, 199),
        python("nn.Module: Net_0", 5, 60),
        python("nn.Module: Net_0", 105, 160),
        python("<built-in method to of Tensor object at 0x7f>", 9, 41),
    ]
    first = [
        operator("aten::item", 62, 80),
        operator("aten::_local_scalar_dense", 63, 79),
        call("cudaMemcpyAsync", 64, 66, 104),
        call("cudaStreamSynchronize", 66, 77, 105),
        copy("DtoH (Device -> Pageable)", 74, 76, 104, bytes=4),
        call("cudaMemcpyAsync", 80, 82, 106),
        copy("HtoD (Pinned -> Device)", 81, 91, 106, bytes=MIB),
        launch(107, 82, 83),
        kernel("vectorized_elementwise_kernel", 85, 95, 107),
        call("cudaMemcpyAsync", 96, 97, 108),
        call("cudaDeviceSynchronize", 97, 99, 109),
        copy("DtoD (Device -> Device)", 97, 99, 108, bytes=100),
    ]
    return both_steps(0, rank, 1) + both_steps(100, rank, 2) + first + (stacks if rank == 0 else [])


@pytest.fixture
def found(tmp_path):
    copies = measure_events(tmp_path, events(0), events(1)).copies
    return {(one.direction, one.known("pinned")): one for one in copies}


def test_pageable_memory_holds_the_script_and_is_seen_in_every_step(found):
    one = found["h2d", False]
    (site,) = one.sites
    assert one.model_dump(exclude={"sites"}) == {
        "missing": {},
        "direction": "h2d",
        "pinned": False,
        "calls": 4,
        "calls_per_step": 1.0,
        "total_bytes": 8 * MIB,
        "total_ns": 28 * US,
        "exposed_ns": 28 * US,
        "most_share": 16 / 154,  # rank 0 copies 8 us in each step, rank 1 6
        "most_held_share": 44 / 154,
        "hidden_ns": 0,
        "step_share": 28 / 308,
        "gb_per_s": 8 * MIB / (28 * US),
        "large_gb_per_s": (2 * MIB / (8 * US) + 2 * MIB / (6 * US)) / 2,
        "blocking_calls": 4,
        "held_ns": 4 * (17 + 5) * US,
    }
    assert site.model_dump() == {
        "missing": {},
        "rank": 0,
        "window": "light",
        "operator": "aten::to",
        "module": "Net_0",
        "function": "train.py(10): main",
        "copy_bytes": 2 * MIB,
        "calls_per_step": 1.0,
        "every_step": True,
        "total_ns": 16 * US,
        "blocking_calls": 2,
    }


def test_a_scalar_that_is_read_waits_in_the_call_after_the_copy(found):
    one = found["d2h", False]
    assert (one.calls, one.calls_per_step, one.total_bytes) == (2, 0.5, 8)
    assert (one.exposed_ns, one.hidden_ns) == (4 * US, 0)
    assert (one.blocking_calls, one.held_ns) == (2, 22 * US)
    assert one.gb_per_s == 8 / 4000
    assert one.missing == {"large_gb_per_s": "no copy is as large as 1 MiB, below which latency dominates"}
    (site,) = one.sites
    assert (site.operator, site.calls_per_step, site.every_step) == ("aten::item", 0.5, False)
    assert site.function == "train.py(10): main"
    assert site.missing == {"module": "no nn.Module is around the call"}


def test_pinned_memory_is_copied_beside_compute(found):
    one = found["h2d", True]
    assert (one.total_ns, one.hidden_ns, one.exposed_ns) == (20 * US, 12 * US, 8 * US)
    assert (one.blocking_calls, one.held_ns) == (0, 0)
    assert one.large_gb_per_s == MIB / (10 * US)
    assert one.sites[0].missing["operator"] == "no operator is around the call"


def test_waiting_for_the_device_after_a_copy_on_it_is_the_scripts_own(found):
    one = found["d2d", None]
    assert (one.blocking_calls, one.held_ns, one.total_bytes) == (0, 0, 200)
    assert one.missing["pinned"] == "copy within the device"
    assert one.missing["large_gb_per_s"].startswith("no copy is as large as 8 MiB")


def test_without_stacks_the_operator_is_still_told(tmp_path):
    (site,) = next(c for c in measure_events(tmp_path, events(1)).copies if c.known("pinned") is False).sites
    assert site.operator == "aten::item"
    assert site.missing == dict.fromkeys(("module", "function"), "the window was recorded without Python's stacks")


STEP = step(1, 0, 100)
PAGEABLE, PINNED = "HtoD (Pageable -> Device)", "HtoD (Pinned -> Device)"


@pytest.mark.parametrize(
    ("kind", "name", "returns", "after", "blocks"),
    [
        (PINNED, "cudaMemcpy", 12, None, True),
        (PINNED, "cudaMemcpyAsync", 45, None, False),  # it came back late, but not for the copy
        (PAGEABLE, "cudaMemcpyAsync", 12, None, False),
        (PAGEABLE, "cudaMemcpyAsync", 30, None, False),  # the middle
        (PAGEABLE, "cudaMemcpyAsync", 31, None, True),  # staged: the end of it may come later
        ("HtoD (Host -> Device)", "hipMemcpyAsync", 31, None, True),
        ("DtoD (Device -> Device)", "cudaMemcpy", 39, None, False),
        ("DtoD (Device -> Device)", "hipMemcpyWithStream", 40, None, True),
        ("PtoP (Device -> Device)", "cudaMemcpyPeerAsync", 45, None, False),
        (PINNED, "cudaMemcpyAsync", 12, "cudaStreamSynchronize", True),
        (PINNED, "cudaMemcpyAsync", 12, "cudaLaunchKernel", False),
        (PINNED, "cudaMemcpyAsync", 12, "other operator", False),
        (PINNED, "cudaGraphLaunch", 45, "cudaStreamSynchronize", False),
    ],
)
def test_what_holds_the_script(tmp_path, kind, name, returns, after, blocks):
    """The call begins at 10, the copy lies in [20,40)."""
    listed = [
        STEP,
        operator("aten::copy_", 5, 70 if after == "cudaStreamSynchronize" else 48),
        call(name, 10, returns, 1),
        copy(kind, 20, 40, 1, bytes=8),
    ]
    if after == "other operator":
        listed += [call("cudaStreamSynchronize", 50, 60, 2)]
    elif after:
        listed += [call(after, 50, 60, 2)]
    (one,) = measure_events(tmp_path, listed).copies
    assert one.blocking_calls == int(blocks)
    waits = 10 if after == "cudaStreamSynchronize" else returns - 10
    assert one.held_ns == (waits * US if blocks else 0)


def test_copies_at_once_are_in_the_step_as_their_union(tmp_path):
    """In [20,50), of which a kernel covers [35,50)."""
    listed = [
        STEP,
        call("cudaMemcpyAsync", 10, 12, 1),
        call("cudaMemcpyAsync", 13, 15, 2),
        copy(PINNED, 20, 40, 1, bytes=8),
        copy(PINNED, 30, 50, 2, stream=8, bytes=8),
        launch(3, 16, 17),
        kernel("gemm", 35, 60, 3, stream=9),
    ]
    (one,) = measure_events(tmp_path, listed).copies
    assert (one.total_ns, one.exposed_ns, one.hidden_ns) == (40 * US, 15 * US, 15 * US)
    assert one.step_share == 30 / 40


def test_of_many_sites_the_five_with_the_most_time_are_told(tmp_path):
    """Of one step, which does not tell what comes in every step."""
    listed = [STEP]
    for n in range(1, 8):
        listed += [call("cudaMemcpyAsync", n, n + 1, n), copy(PINNED, 10 * n, 10 * n + n, n, bytes=n)]
    (one,) = measure_events(tmp_path, listed).copies
    assert [(site.copy_bytes, site.total_ns // US) for site in one.sites] == [(7, 7), (6, 6), (5, 5), (4, 4), (3, 3)]
    assert not any(site.every_step for site in one.sites)


def test_peers_and_unknown_sizes(tmp_path):
    listed = [STEP, call("hipMemcpyPeerAsync", 10, 12, 1), copy("PtoP (Device -> Device)", 20, 40, 1)]
    (one,) = measure_events(tmp_path, listed).copies
    assert one.direction == "p2p"
    for name in ("total_bytes", "gb_per_s", "large_gb_per_s"):
        assert one.missing[name] == "the trace does not show how many bytes were copied"


def test_copies_whose_launch_was_not_recorded_belong_to_no_step(tmp_path):
    ran = [launch(2, 10, 12), kernel("gemm", 50, 60, 2), copy(PINNED, 20, 40, 1, bytes=8)]
    found = measure_events(tmp_path, [STEP, *ran])
    with pytest.raises(Missing, match="does not show which calls launched them"):
        _ = found.copies


@pytest.mark.thorough
def test_of_the_mtia_trace_it_is_said_that_launches_are_missing(real_traces):
    with pytest.raises(Missing, match="does not show which calls launched them"):
        _ = reading.measured(real_traces / "mtia").copies


@pytest.mark.parametrize(
    ("file", "kinds"),
    [
        pytest.param("nanogpt_8xh100/42f4e74*", 2, marks=pytest.mark.thorough),
        pytest.param("large_single/64cc6ea*", 3, marks=pytest.mark.thorough),
        pytest.param("vendor_pairs/3610297*", 2, marks=pytest.mark.thorough),
        ("kineto_resnet50_loader/234cf25*", 1),
    ],
)
def test_real_traces_by_a_plain_second_reading(real_traces, file, kinds):
    path = next(real_traces.glob(file))
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    for event in events:
        event["span"] = int(event["ts"] * 1000), int(event["ts"] * 1000) + int(event["dur"] * 1000)
    run = reading.measured(path)
    numbers = {step.number for step in run.ranks[0].devices[0].steps}
    steps = [
        e["span"]
        for e in events
        if e["name"].startswith("ProfilerStep#")
        and e["cat"] in ("user_annotation", "Operator")
        and int(e["name"].split("#")[1]) in numbers
    ]
    launches = {
        int(e["args"]["correlation"]): e["span"]
        for e in events
        if e["cat"] in ("cuda_runtime", "Runtime") and "correlation" in e["args"]
    }
    above = sorted(e["span"] for e in events if e["cat"] in ("kernel", "Kernel"))
    found: dict[str, list[dict[str, object]]] = {}
    for event in events:
        if event["cat"] in ("gpu_memcpy", "Memcpy"):
            called, _ = launches.get(int(event["args"]["correlation"]), (-1, -1))
            if any(start <= called < end for start, end in steps):
                found.setdefault(event["name"], []).append(event)
    assert len(run.copies) == len(found) == kinds
    for alike in found.values():
        spans = [e["span"] for e in alike]
        total = sum(int(e["args"]["bytes"]) for e in alike)
        (one,) = [copy for copy in run.copies if (copy.calls, copy.total_bytes) == (len(alike), total)]
        assert one.total_ns == sum(end - start for start, end in spans)
        assert one.gb_per_s == total / one.total_ns
        exposed = sum(uncovered(span, above) for span in spans)
        assert (one.exposed_ns, one.hidden_ns) == (exposed, one.total_ns - exposed)
        assert sum(site.total_ns for site in one.sites) <= one.total_ns


def uncovered(span, above):
    """How much of a span no other lies beside, by walking."""
    at, end = span
    free = 0
    for low, high in above:
        if high <= at or low >= end:
            continue
        free += max(low - at, 0)
        at = max(at, high)
    return free + max(end - at, 0)
