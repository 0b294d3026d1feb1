"""Why a device was idle, by hand: one gap for each cause, in a step of 2,080 us. Times in microseconds.

Device  k1 [20,100) k2 [200,300) k3 [400,500) k4 [600,700) k5 [800,900) k6 [1000,1100) k7 [1200,1300) k8 [1400,1500)
        next step: k9 [2100,2150)
A  100-200    the loader until 180, launched [190,195)            input 80, host 10, launch 10
B  300-400    held by a synchronise until 350, then an operator   sync 50 + 35, host 5, launch 10
              from 355 on that launches [380,390)
C  500-600    garbage until 570, launched [585,590)               gc 70, host 15, launch 15
D  700-800    nothing, launched [790,795)                         host 90, launch 10
E  900-1000   launched [850,855), before the gap                  dependency 100
F  1100-1200  an operator, launched [1180,1190)                   launch 100
G  1300-1400  no launch recorded                                  unexplained 100
H  1500-2100  nothing, launched [2010,2015)                       host 510, launch 90
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measured import IDLE, Missing

from .handmade import (
    LOADER,
    US,
    annotation,
    call,
    copy,
    event,
    kernel,
    launch,
    launched,
    measure_events,
    operator,
    python,
    step,
)

LAUNCHES = {1: (10, 15), 2: (190, 195), 3: (380, 390), 4: (585, 590), 5: (790, 795), 6: (850, 855), 7: (1180, 1190)}
KERNELS = {n: (200 * n - 200, 200 * n - 100) for n in range(2, 9)} | {1: (20, 100), 9: (2100, 2150)}

EVENTS = [
    step(3, 0, 2000),
    step(4, 2000, 2200),
    *(kernel(f"k{number}", *times, number) for number, times in KERNELS.items()),
    *(launch(number, *times) for number, times in (LAUNCHES | {9: (2010, 2015)}).items()),
    annotation(LOADER, 90, 180),
    call("cudaStreamSynchronize", 210, 350),
    operator("aten::add", 355, 395),
    python("<built-in function collect>", 500, 570),
    operator("aten::conv2d", 1090, 1195),
    # Other threads neither wait for the device nor prepare its work.
    call("cudaDeviceSynchronize", 700, 760, thread=77),
    operator("aten::stack", 700, 780, thread=77),
]


OF_THE_SCRIPT = ("cpu_op", "user_annotation", "python_function")


@pytest.fixture
def measured(tmp_path):
    return measure_events(tmp_path, EVENTS)


def test_each_cause(measured):
    (device,) = measured.ranks[0].devices
    account = device.steps[0].account
    assert account.window_ns == 2080 * US
    assert account.compute_ns == 780 * US
    found = {name.removesuffix("_idle_ns"): getattr(account, name) / US for name in IDLE}
    assert found == {
        "input": 80,
        "gc": 70,
        "malloc": 0,
        "sync": 50 + 35,
        "launch": 10 + 10 + 15 + 10 + 100 + 90,
        "dependency": 100,
        "host": 10 + 5 + 15 + 90 + 510,
        "unexplained": 100,
    }


def test_without_events_of_the_script_its_time_is_not_known(tmp_path):
    """With ProfilerActivity.CUDA alone: calls of the runtime tell what they took, and not what was between them."""
    measured = measure_events(tmp_path, [each for each in EVENTS if each["cat"] not in OF_THE_SCRIPT])
    (device,) = measured.ranks[0].devices
    found = {name.removesuffix("_idle_ns"): getattr(device.whole, name) / US for name in IDLE}
    assert found == {
        "input": 0,
        "gc": 0,
        "malloc": 0,
        "sync": 50 + 10,
        "launch": 10 + 10 + 15 + 10 + 20 + 90,
        "dependency": 100,
        "host": 0,
        "unexplained": 90 + 30 + 85 + 90 + 80 + 100 + 510,
    }


@pytest.mark.parametrize(("starts_us", "cause"), [(1125, "launch"), (1126, "dependency"), (463380, "dependency")])
def test_what_starts_a_millisecond_after_its_launch_waits_for_something_else(tmp_path, starts_us, cause):
    """Idle from 80: launched [120,125), then a copy of HIP holds the host. As Qwen3 decodes on an MI300X."""
    events = [
        operator("aten::mul", 4, 7),
        *launched("k1", 5, 10, 80, 1),
        event("cuda_runtime", "hipLaunchKernel", 120, 125, correlation=2),
        event("cuda_runtime", "hipMemcpyWithStream", 360, starts_us + 40, correlation=3),
        kernel("k2", starts_us, starts_us + 10, 2),
        copy("DtoH (Device -> Host)", starts_us + 20, starts_us + 25, 3),
    ]
    (device,) = measure_events(tmp_path, events).ranks[0].devices
    found = {name.removesuffix("_idle_ns"): getattr(device.whole, name) for name in IDLE}
    # 40 before the launch and 5 in it; between the kernel and the copy the host is in the call for 10
    expected = {"host": 40, "launch": 5, "sync": 10}
    expected[cause] = expected.get(cause, 0) + starts_us - 125
    assert {name: ns / US for name, ns in found.items() if ns} == expected


def test_ranges_that_old_torch_wrote_as_operators_are_none(tmp_path):
    """Between two kernels the script is in its own range for 90, in an operator for 10 and a node for 5 of them."""
    events = [
        step(1, 0, 400),
        event("Operator", "## forward ##", 5, 300),
        *launched("gemm", 10, 20, 100, 1),
        event("Operator", "aten::mm", 120, 130),
        event("Operator", "MmBackward", 140, 145),
        *launched("gemm", 190, 200, 210, 2),
    ]
    (gap,) = measure_events(tmp_path, events).gaps
    assert gap.causes_ns == {"launch": (10 + 5 + 1 + 9) * US, "host": 75 * US}


def test_ranges_that_old_torch_wrote_as_operators_compute_nothing_on_a_cpu(tmp_path):
    events = [
        step(1, 0, 100),
        event("Operator", "## forward ##", 5, 90),
        event("Operator", "aten::mm", 20, 50),
        step(2, 100, 200),
        event("Operator", "## forward ##", 105, 190),
        event("Operator", "aten::mm", 120, 150),
    ]
    account = measure_events(tmp_path, events).ranks[0].devices[0].steps[0].account
    assert account.compute_ns == 30 * US


def test_the_longest_gaps(measured):
    longest, second = measured.gaps[:2]
    assert longest.model_dump() == {
        "missing": {"meanwhile": "no range of the launching thread covers half of it"},
        "rank": 0,
        "device": "cuda:0",
        "step": 3,
        "start_ns": 1500 * US,
        "length_ns": 600 * US,
        "causes_ns": {"launch": 90 * US, "host": 510 * US},
        "before": "k8",
        "after": "k9",
        "launched_by": "cudaLaunchKernel",
        "launched_ns": 510 * US,
        "meanwhile": None,
    }
    assert len(measured.gaps) == 8
    assert second.length_ns == 100 * US
    by_start = {gap.start_ns // US: gap for gap in measured.gaps}
    assert by_start[100].meanwhile.startswith("enumerate(DataLoader)")
    assert by_start[300].meanwhile == "cudaStreamSynchronize"  # 50 of 100; the operator after it 40
    assert by_start[1100].meanwhile == "aten::conv2d"
    assert {start for start, gap in by_start.items() if gap.known("meanwhile") is None} == {500, 700, 900, 1300, 1500}
    assert by_start[900].launched_ns == -50 * US
    assert by_start[1300].missing["launched_by"] == "its launch was not recorded"
    for gap in measured.gaps:
        assert sum(gap.causes_ns.values()) == gap.length_ns


def test_launching(measured):
    """k6 is launched while k5 runs; the others find the device idle, after 10, 10, 20, 15, 10, 20 and 90 us."""
    launching = measured.launching
    assert (launching.operations, launching.empty_share, launching.queue_median) == (8, 7 / 8, 0)
    assert launching.latency_median_ns == 15 * US
    assert launching.latency_p90_ns == 48 * US  # 0.4 of the way from 20 to 90


def test_a_queue(tmp_path):
    """Four launches at once: when the first begins three wait, then two, one, none."""
    events = [step(1, 0, 100)]
    events += [launch(n, n, n + 1) for n in range(4)] + [kernel("gemm", 10 + 10 * n, 20 + 10 * n, n) for n in range(4)]
    launching = measure_events(tmp_path, events).launching
    assert (launching.queue_median, launching.empty_share, launching.latency_median_ns) == (1.5, 0.25, 10 * US)


def test_what_no_step_launched_has_no_latency(tmp_path):
    """The first is launched before the step, and begins 50 later; the second in it, and begins 5 later."""
    events = [step(1, 100, 300), *launched("gemm", 10, 60, 70, 1), *launched("gemm", 110, 115, 125, 2)]
    launching = measure_events(tmp_path, events).launching
    assert (launching.operations, launching.empty_share, launching.latency_median_ns) == (1, 1, 5 * US)


def test_behind_what_was_launched_before_recording_it_is_no_latency(tmp_path):
    """Two kernels were in the queue when the third was launched, which begins 55 later; the fourth finds none."""
    events = [step(1, 0, 100), kernel("gemm", 20, 40, 1), kernel("gemm", 40, 60, 2)]
    events += [*launched("gemm", 5, 60, 70, 3), *launched("gemm", 80, 90, 95, 4)]
    launching = measure_events(tmp_path, events).launching
    assert (launching.operations, launching.empty_share, launching.latency_median_ns) == (2, 0.5, 10 * US)


def test_clocks_that_differ_tell_no_latency(tmp_path):
    events = [step(1, 0, 100), *launched("gemm", 30, 25, 28, 1), *launched("gemm", 60, 50, 55, 2)]
    launching = measure_events(tmp_path, events).launching
    with pytest.raises(Missing, match="begin before the calls that launch them"):
        print(launching.latency_median_ns)


def test_the_kernels_of_a_graph_have_one_latency(tmp_path):
    events = [
        step(1, 0, 100),
        call("cudaGraphLaunch", 5, 8, correlation=1),
    ]
    events += [kernel("gemm", 10 + 10 * n, 19 + 10 * n, 1) for n in range(4)]
    measured = measure_events(tmp_path, events)
    assert (measured.launching.operations, measured.launching.empty_share) == (4, 0.25)
    assert measured.launching.latency_median_ns == 5 * US
    assert measured.account.dependency_idle_ns == 3 * US  # between them: the graph was launched before


def test_of_causes_that_hold_at_once_the_first_has_the_time(tmp_path):
    """The gap is [100,300); what the call lets go of at 250 works until 290, where the launch is over."""
    events = [
        step(1, 0, 400),
        launch(1, 10, 11),
        kernel("gemm", 20, 100, 1),
        annotation(LOADER, 100, 150),
        python("<built-in function collect>", 100, 200),
        call("cudaStreamSynchronize", 100, 250),
        operator("aten::add", 100, 290),
        launch(2, 280, 290),
        kernel("gemm", 300, 310, 2),
    ]
    (gap,) = measure_events(tmp_path, events).gaps
    assert gap.causes_ns == {"input": 50 * US, "gc": 50 * US, "sync": (50 + 40) * US, "launch": 10 * US}


def test_of_many_gaps_the_ten_longest_are_told(tmp_path):
    lengths = [3, 12, 1, 7, 10, 2, 5, 8, 11, 4, 9, 6]
    events, at = [step(1, 0, 400), launch(0, 0, 1), kernel("gemm", 20, 25, 0)], 25
    for number, length in enumerate(lengths, 1):
        events += [launch(number, number, number + 1), kernel("gemm", at + length, at + length + 5, number)]
        at += length + 5
    assert [gap.length_ns // US for gap in measure_events(tmp_path, events).gaps] == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]


@pytest.mark.parametrize(
    ("ranges", "meanwhile"),
    [
        ([], "my model"),
        ([operator("aten::linear", 31, 46), operator("aten::addmm", 32, 42)], "aten::addmm"),  # 15 and 10 of 20
        ([operator("aten::linear", 31, 46), operator("aten::addmm", 32, 41)], "aten::linear"),  # 9 is too little
        ([operator("aten::linear", 25, 65), operator("aten::t", 37, 42)], "aten::linear"),
        ([operator("aten::linear", 32, 42), operator("aten::addmm", 32, 42)], "aten::addmm"),
        ([operator("aten::linear", 31, 46, thread=2)], "my model"),
    ],
)
def test_of_a_gap_the_innermost_range_is_told_that_covers_half_of_it(tmp_path, ranges, meanwhile):
    """The gap is [30,50), the launch of what ends it [45,46)."""
    events = [
        step(1, 0, 100),
        annotation("my model", 5, 70),
        *launched("gemm", 6, 20, 30, 1),
        *ranges,
        *launched("gemm", 45, 50, 60, 2),
    ]
    (gap,) = measure_events(tmp_path, events).gaps
    assert gap.meanwhile == meanwhile


TIMES = st.tuples(st.integers(0, 300), st.integers(1, 40)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.long
@given(
    st.lists(st.tuples(TIMES, TIMES, st.booleans()), min_size=1, max_size=12), st.lists(TIMES, max_size=6), st.data()
)
def test_idle_time_has_one_cause_and_sums_to_the_step(tmp_path_factory, kernels, ranges, data):
    """Whatever lies where: every nanosecond against a plain walk over microseconds."""
    names = ["enumerate(DataLoader)#x.__next__", "<built-in function collect>", "cudaEventSynchronize", "aten::mm"]
    categories = ["user_annotation", "python_function", "cuda_runtime", "cpu_op"]
    kinds = [data.draw(st.integers(0, 3)) for _ in ranges]
    events = [step(1, 0, 400)]
    events += [kernel("gemm", *own, n) for n, (own, _, _) in enumerate(kernels)]
    events += [launch(n, *called) for n, (_, called, known) in enumerate(kernels) if known]
    events += [event(categories[kind], names[kind], *times) for kind, times in zip(kinds, ranges, strict=True)]
    measured = measure_events(tmp_path_factory.mktemp("t"), events)
    (device,) = measured.ranks[0].devices
    found = {name.removesuffix("_idle_ns"): getattr(device.whole, name) // US for name in IDLE}
    assert found == plain(kernels, ranges, kinds)


def plain(kernels, ranges, kinds):
    """The causes of each idle microsecond, one by one."""
    begin, end = min(own[0] for own, _, _ in kernels), max(own[1] for own, _, _ in kernels)
    busy = np.zeros(500, dtype=bool)
    for (start, stop), _, _ in kernels:
        busy[start:stop] = True
    doing = [np.zeros(500, dtype=bool) for _ in range(4)]
    for kind, (start, stop) in zip(kinds, ranges, strict=True):
        doing[kind][start:stop] = True
    for _, (start, stop), known in kernels:
        if known:
            doing[3][start:stop] = True
    loading, garbage, held, working = doing
    counted = dict.fromkeys(("input", "gc", "malloc", "sync", "launch", "dependency", "host", "unexplained"), 0)
    at = begin
    while at < end:
        if busy[at]:
            at += 1
            continue
        stop = at
        while not busy[stop]:
            stop += 1
        calls = [called for own, called, known in kernels if own[0] == stop and known]
        call = min(calls, default=None)
        freed = [t for t in range(at + 1, stop + 1) if held[t - 1] and not held[t]]
        for t in range(at, stop):
            if call is not None and t >= call[1]:
                counted["dependency" if call[1] <= at else "launch"] += 1
            elif loading[t]:
                counted["input"] += 1
            elif garbage[t]:
                counted["gc"] += 1
            elif held[t]:
                counted["sync"] += 1
            elif working[t]:
                counted["sync" if freed and t >= freed[-1] else "launch"] += 1
            else:
                counted["host" if call is not None else "unexplained"] += 1
        at = stop
    return counted


def test_idle_while_the_driver_frees_or_allocates_memory_is_not_launching(tmp_path):
    """Idle 100 to 200: an operator from 100 on that frees until 160, allocates until 180 and launches [190,195)."""
    events = [
        step(1, 0, 500),
        launch(1, 10, 15),
        kernel("k1", 20, 100, 1),
        operator("aten::add", 100, 198),
        call("hipFree", 110, 160),
        call("hipMalloc", 165, 180),
        call("hipFree", 180, 189, thread=77),  # of no thread of the script
        launch(2, 190, 195),
        kernel("k2", 200, 500, 2),
    ]
    measured = measure_events(tmp_path, events)
    account, path = measured.account, measured.path
    assert (path.malloc_ns, path.launching_ns) == ((50 + 15) * US, (10 + 5 + 10) * US)
    assert (path.compute_ns, path.latency_ns) == (300 * US, 10 * US)
    assert account.malloc_idle_ns == (50 + 15) * US
    assert account.launch_idle_ns == (10 + 5 + 10 + 5 + 5) * US
    assert account.idle_ns == 100 * US
