"""Who comes late and why: three ranks whose steps end in an all-reduce, one of them with something planted before it.

Each step is 1000 us long on the host. The device computes from 100 on, for 200 us; the all-reduce is launched early and
begins when compute ends. On the late rank, what is planted takes 300 us more. Times in microseconds.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.measure import measure
from dptune.trace import load

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MOVING = 40
STEPS = 4


def host(category, name, start, length, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": start, "dur": length, "args": args}


def device(category, name, start, length, correlation, stream=7):
    args = {"device": 0, "stream": stream, "correlation": correlation}
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length, "args": args}


def work(planted, number, at):
    """What the device does before the all-reduce of a step that begins at `at`: events, and when it is done."""
    first = 10 * number

    def kernel(correlation, start, length, launched=None):
        launched = at + 10 + correlation % 10 if launched is None else launched
        call = host("cuda_runtime", "cudaLaunchKernel", launched, 1, correlation=correlation)
        return [call, device("kernel", "gemm", start, length, correlation)]

    events = kernel(first + 1, at + 100, 100)
    match planted:
        case "input":
            events.append(host("user_annotation", "enumerate(DataLoader)#x.__next__", at + 150, 348))
            events += kernel(first + 2, at + 500, 100, launched=at + 498)
        case "gc":
            events.append(host("python_function", "<built-in function collect>", at + 150, 348))
            events += kernel(first + 2, at + 500, 100, launched=at + 498)
        case "host":
            events += kernel(first + 2, at + 500, 100, launched=at + 498)
        case "copies":
            events.append(host("cuda_runtime", "cudaMemcpyAsync", at + 20, 1, correlation=first + 3))
            events.append(device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 200, 300, first + 3, stream=8))
            events += kernel(first + 2, at + 500, 100)
        case "slower compute":
            events += kernel(first + 2, at + 200, 400)
        case "more compute":
            events += kernel(first + 2, at + 200, 100) + kernel(first + 4, at + 300, 300)
        case None:
            events += kernel(first + 2, at + 200, 100)
    return events, at + (600 if planted else 300)


def trace(rank, culprits, ahead=0):
    """The events of one rank. `culprits`: by step, (rank, what is planted there)."""
    events = []
    for number in range(STEPS):
        at = 1000 * number
        own, arrives = work(culprits[number][1] if culprits[number][0] == rank else None, number, at)
        last = 600 if culprits[number][1] else 300
        correlation = 10 * number + 9
        events += [host("user_annotation", f"ProfilerStep#{number}", at, 1000), *own]
        events.append(host("cuda_runtime", "cudaLaunchKernel", at + 30, 1, correlation=correlation))
        events.append(device("kernel", NCCL, arrives, at + last + MOVING - arrives, correlation, stream=20))
    for event in events:
        event["ts"] += ahead
    return events


def run(folder, culprits, ahead=(0, 0, 0)):
    for rank in range(3):
        document = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 3},
            "traceEvents": trace(rank, culprits, ahead[rank]),
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return measure(load([folder]))


@pytest.mark.parametrize("cause", ["input", "gc", "host", "copies", "slower compute", "more compute"])
def test_the_cause_of_the_lag(tmp_path, cause):
    measured = run(tmp_path, [(1, cause)] * STEPS, ahead=(0, 70_000, -1_000_000))
    late = measured.ranks[1].arrival
    assert [step.lag_ns for step in late.steps] == [300 * US] * STEPS
    assert (late.collectives, late.last_share, late.lag_ns) == (STEPS, 1.0, 300 * US)
    assert late.cause == cause
    # The first step has no collective before it; in each other one, what the rank did more sums to its lag.
    assert sum(late.more_ns.values()) == 300 * US * (STEPS - 1)
    assert late.cause_share == pytest.approx(1, abs=0.02)
    assert measured.straggler.model_dump() == {
        "rank": 1,
        "lag_ns": 300 * US,
        "steps_share": 1.0,
        "waiting_share": measured.account.exposed_waiting_ns / measured.account.window_ns,
    }
    assert measured.account.exposed_waiting_ns == 2 * STEPS * 300 * US  # the other two, while nothing else runs there
    assert [rank.clock_ahead_ns for rank in measured.ranks] == [0, 70_000 * US, -1_000_000 * US]
    for other in (0, 2):
        arrival = measured.ranks[other].arrival
        assert (arrival.lag_ns, arrival.last_share) == (0, 0)
        assert arrival.missing["cause"] == "it came late to none"


def test_a_culprit_that_changes_is_said_to(tmp_path):
    measured = run(tmp_path, [(0, "host"), (1, "host"), (2, "input"), (1, "host")])
    assert (measured.straggler.rank, measured.straggler.steps_share) == (1, 0.5)
    assert [rank.arrival.last_share for rank in measured.ranks] == [0.25, 0.5, 0.25]
    assert measured.ranks[2].arrival.cause == "input"


def test_ranks_that_come_together_are_not_late(tmp_path):
    measured = run(tmp_path, [(0, None)] * STEPS)
    assert [rank.arrival.lag_ns for rank in measured.ranks] == [0, 0, 0]
    assert measured.account.exposed_waiting_ns == 0
    assert measured.missing["straggler"] == "no rank came later to a collective than the others"


@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["input", "gc", "host", "copies", "slower compute", None])),
        min_size=STEPS,
        max_size=STEPS,
    )
)
def test_what_late_ranks_did_more_sums_to_their_lag(tmp_path_factory, culprits):
    measured = run(tmp_path_factory.mktemp("run"), culprits)
    for rank in measured.ranks:
        explained = [s.lag_ns for s, (_, planted) in zip(rank.arrival.steps[1:], culprits[1:], strict=True) if planted]
        assert sum(rank.arrival.more_ns.values()) == pytest.approx(sum(explained), abs=STEPS)
        total = rank.devices[0].total
        moved = total.exposed_transfer_ns + total.hidden_communication_ns
        assert moved + total.exposed_waiting_ns == total.communication_ns
    assert sum(step.lag_ns for rank in measured.ranks for step in rank.arrival.steps) == 300 * US * sum(
        planted is not None for _, planted in culprits
    )
