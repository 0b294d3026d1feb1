"""The critical path: by hand, and what holds of any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure.device.critical import Walk
from dptune.measure.views import view
from dptune.measured import PATH

from . import test_idle
from .handmade import (
    DRAWN,
    US,
    all_reduce,
    call,
    drawn,
    kernel,
    launch,
    launched,
    load_events,
    measure_events,
    operator,
    step,
)


def test_by_hand(tmp_path):
    """The step of test_idle, from its end at 2100 back; then the last window, of k9 alone.

    k9 begins at 2100, launched at 2010: latency 90. The host since the synchronise ended at 350: 1660, of which garbage
    70, operators and calls 40 + 5 + 5 + 5 + 105. The synchronise waited for k2, over at 300: 50. k2 from 200 on: 100.
    It was launched at 190: latency 10. The host since 20: 170, of which the loader 90. The device is idle in these:
    from 350, 500, 700, 900, 1100, 1300 and 1500 on 50 + 5 * 100 + 600, from 300 on 50, from 100 on 100.
    """
    path = measure_events(tmp_path, test_idle.EVENTS).path
    found = {name.removesuffix("_ns"): getattr(path, name) / US for name in PATH if getattr(path, name)}
    assert found == {
        "latency": 90 + 10,
        "gc": 70,
        "launching": 160,
        "host": 1660 - 70 - 160 + 80,
        "sync": 50,
        "compute": 100 + 50,
        "input": 90,
    }
    assert path.path_ns == (2080 + 50) * US
    assert path.steps == 2
    assert path.idle_share == pytest.approx((50 + 500 + 600 + 50 + 100) / 2130)
    assert {(one.name, one.total_ns / US, one.count) for one in path.longest if one.kind == "compute"} == {
        ("k2", 100, 1),
        ("k9", 50, 1),
    }


def test_without_events_of_the_script_its_time_is_not_known(tmp_path):
    """With ProfilerActivity.CUDA alone the host's time between calls of the runtime is that of no known work."""
    names = ("ampere_sgemm", "sgemm_backward", "multi_tensor_apply_kernel")
    events = []
    for number in range(36):
        called = 300 * number
        events += launched(names[number % 3], called, called + 10, called + 110, number)
    path = measure_events(tmp_path, events).path
    assert path.steps >= 2
    assert path.host_ns == 0
    assert path.unexplained_ns > path.path_ns / 3


def test_a_stream_that_waits_for_another(tmp_path):
    """Everything is launched by 5. a on stream 7 until 100, b on stream 20 from 102 to 180, c on stream 7 from 183.

    c waited for b, because a was over long before; b for a, which is the last that ended: queued 3 and 2.
    """
    events = [
        step(0, 0, 300),
        step(1, 300, 400),
        *(launch(number, number, number + 1) for number in range(1, 4)),
        kernel("a", 10, 100, 1),
        kernel("b", 102, 180, 2, stream=20),
        kernel("c", 183, 290, 3),
        launch(4, 295, 296),
        kernel("d", 310, 320, 4),
    ]
    path = measure_events(tmp_path, events).path
    found = {name.removesuffix("_ns"): getattr(path, name) / US for name in PATH if getattr(path, name)}
    # From d, which begins at 310: latency since 295, and the host before, who never waited, since the step began at 10.
    assert found == {"compute": 10, "latency": 15, "host": 285}
    waiting = [one for one in events if one["name"] not in ("cudaLaunchKernel",) or one["ts"] < 290]
    waiting += [call("cudaStreamSynchronize", 250, 294), launch(4, 295, 296)]
    path = measure_events(tmp_path, waiting).path
    found = {name.removesuffix("_ns"): getattr(path, name) / US for name in PATH if getattr(path, name)}
    assert found["compute"] == 10 + 90 + 78 + 107
    assert found["queued"] == 3 + 2
    assert found["sync"] == 4
    assert found["latency"] == 15


@pytest.mark.parametrize(("begin", "kind", "took"), [(1311, "latency", 1001), (1312, "queued", 1001)])
def test_an_operation_that_starts_more_than_a_millisecond_after_its_launch_was_held_up(tmp_path, begin, kind, took):
    """b is launched by a call of 1 us that ends at 311; the account counts the time after it to the same cause."""
    events = [step(0, 0, 300), step(1, 300, 3000), *launched("a", 5, 10, 50, 1), launch(2, 310, 311)]
    measured = measure_events(tmp_path, [*events, kernel("b", begin, begin + 90, 2)])
    found = {name.removesuffix("_ns"): getattr(measured.path, name) / US for name in PATH}
    assert found[kind] == took
    assert found["queued"] == measured.account.dependency_idle_ns / US == (took if kind == "queued" else 0)


def late_host(steps):
    """Steps of 100 us on the device, numbered from 0: the first kernel takes 30, then an all-reduce 20 beside nothing.

    The host launches the second kernel, of 10, at 70 in each, and waits for it. A next step is launched 20 later.
    """
    events = []
    for number in range(steps):
        at, first = 100 * number, 10 * number + 1
        events += [
            step(number, at, at + 95),
            *launched("first", at + 1, at + 5, at + 35, first),
            launch(first + 1, at + 2, at + 3),
            all_reduce(at + 36, at + 56, first + 1, 1000, "0", 1) | {"tid": 20},
            *launched("second", at + 70, at + 74, at + 84, first + 2),
            call("cudaDeviceSynchronize", at + 72, at + 85),
        ]
    return events


def test_the_host_is_late_beside_a_collective_and_the_end_of_the_last_step_is_not_known(tmp_path):
    """Of each 100 us, the path is the second kernel's for 10, from 74 on; a microsecond later it lets go of the host,
    whose the rest is. The device computes beside it for 30: 60 are left, 20 of them with an all-reduce alone. The fifth
    step ends with its last kernel at 484, so the 20 us until a next one are not known of it.
    """
    path = measure_events(tmp_path, late_host(5)).path
    assert path.steps == 4
    assert path.path_ns == 4 * 100 * US
    assert path.compute_ns == 4 * 10 * US
    assert path.idle_share == pytest.approx((100 - 10 - 30) / 100)


@pytest.mark.long
@given(st.lists(DRAWN, min_size=1, max_size=30))
def test_the_path_covers_each_step_once(tmp_path_factory, parts):
    events, moments = drawn(parts)
    half = moments[-1] // 2
    events += [step(0, 0, half), step(1, half, moments[-1])]
    run = load_events(tmp_path_factory.mktemp("path"), events)
    own = view(0, run.ranks[0].light)
    for device in own.devices:
        walk = Walk.of(own.columns, device.operations, own.host)
        for window in device.windows:
            found = walk.back(window)
            assert found.ends[0] == window.end_ns
            assert found.starts[-1] == window.start_ns
            assert found.starts[:-1] == found.ends[1:]
            assert all(start < end for start, end in zip(found.starts, found.ends, strict=True))
            assert len(found.kinds) == len(found.rows) == len(found.starts)


def test_a_cpu_has_none(tmp_path):
    events = [step(0, 0, 100), operator("aten::mm", 10, 90), step(1, 100, 200), operator("aten::mm", 110, 190)]
    assert "GPU" in measure_events(tmp_path, events).missing["path"]
