"""Memory of the devices of two ranks, every figure by hand; and of real traces, by a plain second reading."""

import gzip
import json
from itertools import pairwise
from statistics import median

import pytest

from dptune.measure import measure
from dptune.runfile import json_files
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.record import RunRecord
from dptune.runfile.window import Window
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import US, allocation, call, kernel, launch, measure_events, operator, step, write

NOT_RECORDED = "allocations are recorded in the detailed window only"


def kernels(device=0):
    """One in each step."""
    return [
        event
        for at in (50, 150, 250)
        for event in (launch(at, at, at + 2), kernel("gemm", at + 5, at + 25, at, device=device))
    ]


STEPS = [step(n, 100 * n, 100 * n + 100) for n in range(3)]
# Allocated: 1000 before; 900, 1300 and 1100 in step 0; 1600 and 1120 in step 1; 1620 and 1130 in step 2. In the file
# the first comes last, and what lies outside the steps, on the CPU or on another device does not count.
ALLOCATIONS = [
    allocation(20, 400, 1300, 1500),
    allocation(30, -200, 1100, 1500),
    allocation(110, 500, 1600, 2000),
    allocation(120, -480, 1120, 2000),
    allocation(210, 300, 1420, 2000),
    allocation(220, 200, 1620, 2000),
    allocation(230, -490, 1130, 1800),
    allocation(310, 9000, 10130, 12000),
    allocation(40, 70, 5000, 0, device_type=0, device=-1),
    allocation(10, -100, 900, 1500),
]
MALLOCS = [
    call("cudaMalloc", 60, 70),
    call("cudaFree", 190, 210),  # 10 of it in the next step
    call("cudaMallocHost", 270, 280),
    call("cudaMalloc", 310, 320),
]
DEVICES = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 8000}]


def test_the_least_growth_is_of_three_or_more(tmp_path):
    """1100, 1120, 1130 and 1170 at the ends of four steps: 20, 10 and 40 more."""
    fourth = [step(3, 300, 400), launch(350, 350, 352), kernel("gemm", 355, 375, 350)]
    ends = [allocation(390, 100, 1170, 1800) if at is ALLOCATIONS[7] else at for at in ALLOCATIONS]
    (one,) = measure_events(tmp_path, STEPS + kernels() + fourth + ends, deviceProperties=DEVICES).memory
    assert (one.growth_bytes_per_step, one.least_growth_bytes) == (20, 10)


def test_without_kernels_the_devices_are_those_of_the_allocations(tmp_path):
    """Those of the CPU are no device's."""
    measured = measure_events(tmp_path, STEPS + ALLOCATIONS)
    assert [(figures.device, figures.known("peak_allocated_bytes")) for figures in measured.memory] == [
        ("cuda:0", 1620)
    ]


def test_a_foreign_trace_with_allocations(tmp_path):
    events = STEPS + kernels() + ALLOCATIONS + MALLOCS
    (one,) = measure_events(tmp_path, events, deviceProperties=DEVICES).memory
    assert one.model_dump() == {
        "missing": {
            "least_growth_bytes": "growth needs four consecutive steps, with the allocated total after each allocation"
        },
        "rank": 0,
        "device": "cuda:0",
        "window": "light",
        "basis": "steps",
        "capacity_bytes": 8000,
        "peak_allocated_bytes": 1620,
        "peak_reserved_bytes": 2000,
        "peak_share": 0.25,
        "allocations_per_step": 1.0,  # 1, 1 and 2
        "allocated_bytes_per_step": 500,  # 400, 500 and 500
        "fragmentation": pytest.approx(1 - 1620 / 2000),
        "growth_bytes_per_step": 15,  # 1100, 1120, 1130
        "least_growth_bytes": None,
        "malloc_calls_per_step": 1.0,  # cudaMalloc and cudaFree: the last step is excluded
        "malloc_ns": 20 * US,
        "malloc_share": 0.1,
        "malloc_steps_ns": [10 * US, 10 * US],
    }


def test_what_was_allocated_before_the_first_free_of_a_step_counts(tmp_path):
    allocations = [allocation(10, -3000, 500, 4000), allocation(20, 100, 600, 4000)]
    (one,) = measure_events(tmp_path, STEPS + kernels() + allocations).memory
    assert one.peak_allocated_bytes == 3500


def test_sizes_that_together_exceed_64_bits_are_summed_exactly(tmp_path):
    """Three of 2^62 bytes in each step: 3 x 2^62 is more than 2^63."""
    allocations = [allocation(100 * n + at, 1 << 62, 1 << 62, 1 << 62) for n in range(3) for at in (10, 20, 30)]
    (one,) = measure_events(tmp_path, STEPS + kernels() + allocations).memory
    assert (one.allocations_per_step, one.allocated_bytes_per_step) == (3.0, 3 << 62)


def test_memory_does_not_grow_over_a_step_that_was_set_aside(tmp_path):
    """Step 2 takes 900 and allocates 8000; from step 0 to step 1 it grows by 10."""
    bounds = [0, 100, 200, 1100, 1200]
    events = []
    for number, (start, end) in enumerate(pairwise(bounds)):
        events += [step(number, start, end), launch(number, start, start + 1), kernel("gemm", start + 5, end, number)]
    grown = ((50, 1000), (150, 10), (250, 8000), (1150, 30))
    events += [
        allocation(at, size, sum(own for _, own in grown[: n + 1]), 10_000) for n, (at, size) in enumerate(grown)
    ]
    measured = measure_events(tmp_path, events)
    assert [one.number for one in measured.steps.set_aside] == [2]
    assert measured.memory[0].growth_bytes_per_step == 10


def test_a_device_that_rocm_numbers_in_two_ways(tmp_path):
    events = [*STEPS, *kernels(device=5), allocation(10, 8, 8, 16, device_type=6)]
    (one,) = measure_events(tmp_path, events, deviceProperties=DEVICES).memory
    assert (one.device, one.peak_allocated_bytes, one.capacity_bytes) == ("cuda:5", 8, 8000)


def test_old_traces_say_what_is_allocated_and_not_how_much_that_leaves(tmp_path):
    event = {"ph": "i", "name": "[memory]", "pid": 9, "tid": 9, "ts": 10}
    event["args"] = {"Bytes": 64, "Device Type": 1, "Device Id": 0}
    events = [*STEPS, *kernels(), event, event | {"ts": 110}, event | {"ts": 210}]
    (one,) = measure_events(tmp_path, events).memory
    assert (one.allocations_per_step, one.allocated_bytes_per_step) == (1.0, 64)
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "peak_share", "fragmentation", "growth_bytes_per_step"):
        assert one.known(name) is None
    assert "the trace has sizes of allocations but no totals" in one.missing["peak_allocated_bytes"]


def recorded(folder, device, detailed):
    """A run of two ranks: both with facts and a light window, and with the detailed window `detailed`."""
    json_files.write(folder / "run.json", RunRecord(dptune="0.1.0", command=["python", "t.py"], world_size=2))
    for rank in range(2):
        windows = [Window("light", 0, durations_ns=[100 * US] * 3), Window("detailed", 5, durations_ns=[100 * US] * 3)]
        facts = Facts(rank, world_size=2, host="box", device=device(rank), windows=windows)
        json_files.write(folder / f"rank-{rank:05d}.facts.json", facts)
        light = STEPS + kernels(rank)
        if device(rank).kind == "cpu":
            light = STEPS + [operator("aten::mm", 100 * n + 10, 100 * n + 60) for n in range(3)]
        write(folder / f"rank-{rank:05d}.trace.json.gz", light)
        write(folder / f"rank-{rank:05d}.detail.trace.json.gz", light + detailed(rank))
    return measure(load([folder]))


def test_a_recorded_run_tells_its_peaks_and_the_detailed_window_of_one_rank_the_steps(tmp_path):
    def card(rank):
        return DeviceFacts(
            "cuda", index=rank, memory_bytes=80_000, peak_allocated_bytes=40_000 + rank, peak_reserved_bytes=60_000
        )

    first, second = recorded(tmp_path, card, lambda _: ALLOCATIONS).memory
    for rank, one in enumerate((first, second)):
        assert (one.rank, one.device, one.basis) == (rank, f"cuda:{rank}", "run")
        assert (one.peak_allocated_bytes, one.peak_reserved_bytes, one.peak_share) == (40_000 + rank, 60_000, 0.75)
    assert (first.window, first.growth_bytes_per_step) == ("detailed", 15)
    assert first.malloc_calls_per_step == 0
    for name in ("window", "allocations_per_step", "growth_bytes_per_step", "fragmentation"):
        assert second.missing[name].startswith(NOT_RECORDED)


@pytest.mark.parametrize(
    ("capability", "tensor_cores"),
    [("sm_60", False), ("6.1", False), ("sm_70", True), ("²", None), ("abc", None), ("9" * 5000, None)],
)
def test_a_compute_capability_however_it_is_spelt(tmp_path, capability, tensor_cores):
    def card(_):
        return DeviceFacts("cuda", name="some card", compute_capability=capability)

    assert recorded(tmp_path, card, lambda _: ALLOCATIONS).matmul.known("tensor_cores") is tensor_cores


def test_on_a_cpu_only_what_steps_ask_for_is_known(tmp_path):
    def cpu_memory(_):
        return [allocation(10, 64, 64, 0, 0, -1), allocation(110, 64, 96, 0, 0, -1), allocation(210, 32, 128, 0, 0, -1)]

    one, _ = recorded(tmp_path, lambda _: DeviceFacts("cpu"), cpu_memory).memory
    assert (one.device, one.window, one.allocated_bytes_per_step, one.growth_bytes_per_step) == (
        "cpu",
        "detailed",
        64,
        32,
    )
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "fragmentation"):
        assert one.missing[name] == "torch counts CPU memory only while the profiler runs"


@pytest.mark.parametrize(
    ("file", "kinds", "growing"),
    [
        ("single_gpu/c4adadd*", (1,), True),
        pytest.param("large_single/64cc6ea*", (1,), False, marks=pytest.mark.thorough),
        pytest.param("vendor_pairs/3610297*", (6,), False, marks=pytest.mark.thorough),
        ("vendor_pairs/fa7c06f*", (6,), False),
        ("vendor_pairs/737b43a*", (1,), False),
    ],
)
def test_real_traces_by_a_plain_second_reading(real_traces, file, kinds, growing):
    path = next(real_traces.glob(file))
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    )
    kept = [e for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] in kinds]
    kept.sort(key=lambda e: e["ts"])
    sizes = [[e["args"]["Bytes"] for e in kept if start <= e["ts"] < end] for start, end in steps]
    inside = [e["args"] for e in kept if steps[0][0] <= e["ts"] < steps[-1][1]]
    peak = max(args["Total Allocated"] - min(args["Bytes"], 0) for args in inside)
    reserved = max(args["Total Reserved"] for args in inside)
    at_peak = max(inside, key=lambda args: args["Total Allocated"])
    ends = [[e["args"]["Total Allocated"] for e in kept if e["ts"] < end][-1] for _, end in steps]
    (one,) = reading.measured(path).memory
    assert one.allocations_per_step == median(len([s for s in own if s > 0]) for own in sizes)
    assert one.allocated_bytes_per_step == median(sum(s for s in own if s > 0) for own in sizes)
    assert (one.peak_allocated_bytes, one.peak_reserved_bytes) == (peak, reserved)
    assert one.peak_share == reserved / one.capacity_bytes
    assert one.fragmentation == pytest.approx(1 - at_peak["Total Allocated"] / at_peak["Total Reserved"])
    assert (one.known("growth_bytes_per_step") is not None) == growing
    if growing:
        assert one.growth_bytes_per_step == median(b - a for a, b in pairwise(ends))
