"""Who comes late and why: three ranks whose steps end in an all-reduce, one of them with something planted before it.

Each step is 1000 us long on the host. The device computes from 100 on, for 200 us; the all-reduce is launched early and
begins when compute ends. On the late rank, what is planted takes 300 us more. Times in microseconds.
"""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.measure import measure
from dptune.measure.communication.arrivals import TURNS, Computing, arrivals, late_steps, straggler
from dptune.measure.communication.calls import Call
from dptune.measure.communication.lag import Lateness, lags
from dptune.measure.communication.matching import RankCalls, match
from dptune.measure.straggler import NOTHING_LONGER, settled
from dptune.measured import Account, LagDifference
from dptune.testing import arrival
from dptune.trace import load

from .handmade import (
    LOADER,
    NCCL,
    US,
    all_reduce,
    annotation,
    call,
    copy,
    launch,
    launched,
    measure_events,
    python,
    step,
    write,
)

MOVING = 40
STEPS = 4


def work(planted, number, at):
    """What the device does before the all-reduce of a step that begins at `at`: events, and when it is done."""
    first = 10 * number

    def compute(start, end, part, called=None):
        return launched("gemm", at + (10 + part if called is None else called), at + start, at + end, first + part)

    events = compute(100, 200, 1)
    match planted:
        case "input":
            events.append(annotation(LOADER, at + 150, at + 498))
            events += compute(500, 600, 2, called=498)
        case "gc":
            events.append(python("<built-in function collect>", at + 150, at + 498))
            events += compute(500, 600, 2, called=498)
        case "host":
            events += compute(500, 600, 2, called=498)
        case "a third each":
            events.append(annotation(LOADER, at + 200, at + 300))
            events.append(python("<built-in function collect>", at + 300, at + 400))
            events += compute(500, 600, 2, called=498)
        case "copies":
            events.append(call("cudaMemcpyAsync", at + 20, at + 21, first + 3))
            events.append(copy("HtoD (Pinned -> Device)", at + 200, at + 500, first + 3, stream=8))
            events += compute(500, 600, 2)
        case "slower compute":
            events += compute(200, 600, 2)
        case "more compute":
            events += compute(200, 300, 2) + compute(300, 600, 4)
        case None:
            events += compute(200, 300, 2)
    return events, at + (600 if planted else 300)


def trace(rank, culprits, ahead=0):
    """The events of one rank. `culprits`: by step, (rank, what is planted there)."""
    events = []
    for number in range(STEPS):
        at = 1000 * number
        own, arrives = work(culprits[number][1] if culprits[number][0] == rank else None, number, at)
        last = 600 if culprits[number][1] else 300
        events += [step(number, at, at + 1000), *own]
        events += launched(NCCL, at + 30, arrives, at + last + MOVING, 10 * number + 9, stream=20)
    for event in events:
        event["ts"] += ahead
    return events


def run(folder, culprits, ahead=(0, 0, 0), **header):
    return measure_events(folder, *(trace(rank, culprits, ahead[rank]) for rank in range(3)), **header)


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
    assert measured.straggler.model_dump(include={"rank", "lag_ns", "steps_share", "waiting_share"}) == {
        "rank": 1,
        "lag_ns": 300 * US,
        "steps_share": 1.0,
        # of all steps but the last, which ends with its all-reduce, 540 after it began
        "waiting_share": 2 * 300 / (3 * 1000),
    }
    assert measured.account.exposed_waiting_ns == 2 * (STEPS - 1) * 300 * US  # the other two, nothing beside it
    (collective,) = measured.collectives
    assert (collective.waiting_ns, collective.transfer_ns) == (2 * STEPS * 300 * US, MOVING * US)
    assert [rank.clock_ahead_ns for rank in measured.ranks] == [0, 70_000 * US, -1_000_000 * US]
    for other in (0, 2):
        arrival = measured.ranks[other].arrival
        assert (arrival.lag_ns, arrival.last_share) == (0, 0)
        assert arrival.missing["cause"] == "it was late to no collective"


def test_what_covers_less_than_half_of_the_lag_is_not_its_cause(tmp_path):
    late = measure_events(tmp_path, *(trace(rank, [(1, "a third each")] * STEPS) for rank in range(3))).ranks[1].arrival
    assert late.lag_ns == 300 * US
    assert late.more_ns["input_idle_ns"] == late.more_ns["gc_idle_ns"] == 100 * US * (STEPS - 1)
    assert late.missing["cause"] == "no single cause explains half of its lag"


def test_a_rank_that_others_waited_for_is_late_anew(tmp_path):
    """The second begins on rank 0 at 150, within the first, which both leave at 200: rank 1 is 80 late to the first,
    and 110 to the second. Communication holds up rank 0 from 100 to 150, and rank 1 for the transfer from 180 to 200:
    30 of the 80 are over, so that 60 of the 110 are new. In all rank 1 idles 180 + 60 until then, rank 0 100.
    """
    first = [step(1, 0, 400), *launched(NCCL, 1, 100, 200, 1, stream=20), *launched(NCCL, 2, 150, 300, 2, stream=21)]
    second = [step(1, 0, 400), *launched(NCCL, 1, 180, 200, 1, stream=20), *launched(NCCL, 2, 260, 300, 2, stream=21)]
    late = measure_events(tmp_path, first, second).ranks[1].arrival
    assert (late.last_share, [one.lag_ns for one in late.steps]) == (1, [140 * US])


def test_a_delay_that_nobody_waited_for_counts_once(tmp_path):
    """A step's compute goes on beside two all-reduces. Rank 1 computes 50 longer before the first, and is 50 late to
    both.
    """

    def rank(late):
        events = [step(1, 0, 1000), *launched("gemm", 1, 10, 400 + late, 1)]
        events += launched(NCCL, 2, 100 + late, 210, 2, stream=20)
        return events + launched(NCCL, 3, 300 + late, 410, 3, stream=20)

    late = measure_events(tmp_path, rank(0), rank(50)).ranks[1].arrival
    assert (late.last_share, [one.lag_ns for one in late.steps]) == (1, [50 * US])


def test_a_rank_of_two_groups_is_late_once():
    """200 and 100 ns in one group, 300 in another, all for one reason."""
    late = [Lateness(3, 1, "cuda:0", 1000, late, added, group) for late, added, group in LATE_IN_TWO_GROUPS]
    assert lags(late) == {(3, 1): 300}


LATE_IN_TWO_GROUPS = [(200.0, 200.0, (0, 1)), (300.0, 100.0, (0, 1)), (300.0, 300.0, (1, 2))]


def test_a_culprit_that_changes_is_said_to(tmp_path):
    measured = run(tmp_path, [(0, "host"), (1, "host"), (2, "input"), (1, "host")])
    assert (measured.straggler.rank, measured.straggler.steps_share) == (1, 0.5)
    assert [rank.arrival.last_share for rank in measured.ranks] == [0.25, 0.5, 0.25]
    assert measured.ranks[2].arrival.cause == "input"


def test_ranks_that_come_together_are_not_late(tmp_path):
    measured = run(tmp_path, [(0, None)] * STEPS)
    assert [rank.arrival.lag_ns for rank in measured.ranks] == [0, 0, 0]
    assert measured.account.exposed_waiting_ns == 0
    assert measured.missing["straggler"] == "no rank arrived at a collective later than the others"


def test_a_rank_that_is_late_in_one_step_is_so_in_one(tmp_path):
    measured = run(tmp_path, [(0, None), (1, "host"), (0, None), (0, None)])
    assert measured.straggler.model_dump(include={"rank", "lag_ns", "steps_share"}) == {
        "rank": 1,
        "lag_ns": 0,
        "steps_share": 0.25,
    }


def test_ranks_that_take_turns_have_no_straggler(tmp_path):
    measured = run(tmp_path, [(0, "host"), (1, "host"), (2, "host"), (0, None)])
    assert [sum(step.lag_ns for step in rank.arrival.steps) for rank in measured.ranks] == [300 * US] * 3
    assert measured.missing["straggler"] == "no rank is much later than the others"


def test_hosts_of_one_name_may_be_two(tmp_path):
    """Their clocks are 30 s apart."""
    measured = run(tmp_path, [(2, "host")] * STEPS, ahead=(0, 30_000_000, 0), host_name="localhost")
    assert [rank.clock_ahead_ns for rank in measured.ranks] == [0, 30_000_000 * US, 0]
    assert [rank.arrival.lag_ns for rank in measured.ranks] == [0, 0, 300 * US]


def test_what_a_drifting_clock_explains_is_no_lag(tmp_path):
    """Rank 1 runs ahead by 10 us more in each step: 0 to 30, aligned at 15, so that 15, 5, 5 and 15 remain."""
    ranks = [trace(rank, [(0, None)] * STEPS) for rank in range(3)]
    for event in ranks[1]:
        event["ts"] += 10 * (event["ts"] // 1000)
    measured = measure_events(tmp_path, *ranks)
    assert (measured.ranks[1].clock_ahead_ns, measured.ranks[1].clock_residual_ns) == (15 * US, 10 * US)
    assert [step.lag_ns for rank in measured.ranks for step in rank.arrival.steps] == [0] * 3 * STEPS
    assert measured.missing["straggler"] == "no rank arrived at a collective later than the others"


@pytest.mark.parametrize(
    ("more_ns", "cause", "covers"),
    [
        # As much idle as before, for another reason: what remains is compute.
        ({"compute_ns": 40, "host_idle_ns": 100, "launch_idle_ns": 1, "dependency_idle_ns": -101}, "slower compute", 1),
        # Idle grew by 60 and compute shrank by 20: 40, of which input is 45 of 60.
        ({"compute_ns": -20, "input_idle_ns": 45, "gc_idle_ns": 15}, "input", 0.75),
        # 30 + 30 less 20, which both pay alike.
        ({"compute_ns": 30, "copy_ns": 30, "host_idle_ns": -20}, "slower compute", 0.5),
        # Idle shrank by 10 in all: compute grew by as much more.
        ({"compute_ns": 50, "input_idle_ns": 10, "host_idle_ns": -20}, "slower compute", 1),
        ({"compute_ns": 14, "copy_ns": 13, "gc_idle_ns": 13}, None, None),
    ],
)
def test_what_shrank_is_taken_off_what_grew(more_ns, cause, covers):
    """40 ns late in all."""
    calls = [Call(0, "all_reduce", 0, 100), Call(0, "all_reduce", 40, 60)]
    matches = match([RankCalls(rank, "cuda:0", 0, [0], [call]) for rank, call in enumerate(calls)], 2)
    late = [Lateness(0, 1, "cuda:0", 40, 40.0, 40.0, (), {name: float(each) for name, each in more_ns.items()})]
    found = arrivals(matches, late, dict.fromkeys((0, 1), computing()))[1]
    assert (found.known("cause"), found.known("cause_share")) == (cause, covers and pytest.approx(covers))


def computing(operations=5.0, compute_ns=100, usual_ns=80, optimizer_ns=10, on_cpu=False):
    return Computing(operations, compute_ns, usual_ns, optimizer_ns, on_cpu)


@pytest.mark.parametrize(
    ("own", "others", "cause"),
    [
        (computing(6.0), computing(), "more compute"),
        # As many operations take 40 % longer: all of them do, and the optimizer's do not,
        (computing(5.0, 140, 104, 11), computing(), "more compute"),
        (computing(5.0, 140, 96, 11), computing(), "more compute"),
        (computing(5.0, 140, 95, 11), computing(), "slower compute"),  # ... only some: it is interrupted,
        (computing(5.0, 140, 104, 12), computing(), "slower compute"),  # ... the optimizer's, too.
        (computing(5.0, 140, 104, None), computing(), "slower compute"),
        (computing(5.0, 140, 104, 0), computing(), "slower compute"),
        (computing(5.0, 140, 104, 11), computing(optimizer_ns=None), "slower compute"),
    ],
)
def test_more_to_compute_or_slower(own, others, cause):
    calls = [Call(0, "all_reduce", 0, 100), Call(0, "all_reduce", 40, 60)]
    matches = match([RankCalls(rank, "cuda:0", 0, [0], [call]) for rank, call in enumerate(calls)], 2)
    late = [Lateness(0, 1, "cuda:0", 40, 40.0, 40.0, (), {"compute_ns": 40.0})]
    assert arrivals(matches, late, {0: others, 1: own})[1].cause == cause


@pytest.mark.parametrize(("on_cpu", "covers"), [(True, 0.9), (False, 0.6)])
def test_on_a_cpu_what_runs_between_operators_is_slowed_with_them(on_cpu, covers):
    calls = [Call(0, "all_reduce", 0, 100), Call(0, "all_reduce", 40, 60)]
    matches = match([RankCalls(rank, "cpu", 0, [0], [call]) for rank, call in enumerate(calls)], 2)
    late = [Lateness(0, 1, "cpu", 40, 40.0, 40.0, (), {"compute_ns": 24.0, "host_idle_ns": 12.0, "input_idle_ns": 4.0})]
    found = arrivals(matches, late, dict.fromkeys((0, 1), computing(on_cpu=on_cpu)))[1]
    assert (found.cause, found.cause_share) == ("slower compute", pytest.approx(covers))


@pytest.mark.long
@settings(deadline=None, max_examples=settings.default.max_examples // 2)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["input", "gc", "host", "copies", "slower compute", None])),
        min_size=STEPS,
        max_size=STEPS,
    )
)
def test_what_late_ranks_did_more_sums_to_their_lag(tmp_path_factory, culprits):
    measured = run(tmp_path_factory.mktemp("run"), culprits)
    kept = [step.number for step in measured.ranks[0].arrival.steps]  # without one that completes no period
    for rank in measured.ranks:
        explained = [step.lag_ns for step in rank.arrival.steps if step.number > kept[0] and culprits[step.number][1]]
        assert sum(rank.arrival.more_ns.values()) == pytest.approx(sum(explained), abs=STEPS)
        total = rank.devices[0].total
        moved = total.exposed_transfer_ns + total.hidden_communication_ns
        assert moved + total.exposed_waiting_ns == total.communication_ns
    assert sum(step.lag_ns for rank in measured.ranks for step in rank.arrival.steps) == 300 * US * sum(
        culprits[number][1] is not None for number in kept
    )


def test_a_rank_that_was_not_read_leaves_a_lower_bound(tmp_path):
    """Of three ranks two were read. Rank 1 comes 300 late, and the third may have come later still."""
    for rank in (0, 1):
        told = {"backend": "nccl", "rank": rank, "world_size": 3}
        write(tmp_path / f"{rank}.json", trace(rank, [(1, "host")] * STEPS), distributedInfo=told)
    run = load([tmp_path])
    assert [one.text for one in run.findings if one.code == "ranks-missing"] == [
        "rank 2 is missing: 2 of 3 ranks were given"
    ]
    measured = measure(run)
    assert measured.straggler.rank == 1
    assert [one.lag_ns for one in measured.ranks[1].arrival.steps] == [300 * US] * STEPS
    waits, late = (rank.devices[0].total for rank in measured.ranks)
    accounted = STEPS - len(measured.steps.cut_short)
    assert accounted == STEPS - 1
    assert (waits.exposed_waiting_ns, late.exposed_waiting_ns) == (300 * US * accounted, 0)
    # Of the rest of each all-reduce it is not known whether data moved in it.
    for account in (waits, late):
        assert (account.exposed_transfer_ns, account.exposed_unsplit_ns) == (0, MOVING * US * accounted)


def test_a_rank_whose_trace_breaks_off_computes_no_less_than_the_late_one(tmp_path):
    """The second of three is late as it computes more slowly, no more than the first does."""
    for rank in range(3):
        told = {"backend": "nccl", "rank": rank, "world_size": 3}
        write(tmp_path / f"{rank}.json", trace(rank, [(1, "slower compute")] * STEPS), distributedInfo=told)
    whole = (tmp_path / "2.json").read_text()
    (tmp_path / "2.json").write_text(whole[: len(whole) // 2])
    measured = measure(load([tmp_path]))
    assert measured.straggler.rank == 1
    assert measured.ranks[1].arrival.cause == "slower compute"


def test_a_late_rank_that_none_can_be_compared_with_is_not_said_to_compute_more():
    calls = [Call(0, "all_reduce", 0, 100), Call(0, "all_reduce", 40, 60)]
    matches = match([RankCalls(rank, "cuda:0", 0, [0], [call]) for rank, call in enumerate(calls)], 2)
    late = [Lateness(0, 1, "cuda:0", 40, 40.0, 40.0, (), {"compute_ns": 40.0})]
    found = arrivals(matches, late, {1: computing(5.0, 140, 104, 11)})[1]  # the other has no step accounted for
    assert found.cause == "slower compute"


def test_the_lags_of_a_real_straggler_are_what_the_others_wait_for_it(real_traces):
    """From the JSON itself: what the other ranks' collectives take longer than its own, less what computes beside."""
    folder = real_traces / "torchrec_straggler_4xv100"
    ran = {}
    for path in folder.glob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "cat" in e]
        steps = [e["ts"] for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
        calls = [e for e in events if e["cat"] == "cuda_runtime" and "correlation" in e.get("args", {})]
        called = {e["args"]["correlation"]: e["ts"] for e in calls}
        kernels = [e for e in events if e["cat"] == "kernel" and called.get(e["args"]["correlation"], 0) >= min(steps)]
        matches = sorted((e["ts"], e["dur"]) for e in kernels if "nccl" in e["name"].lower())
        compute = sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels if "nccl" not in e["name"].lower())
        ran[trace["distributedInfo"]["rank"]] = matches, compute
    waited = 0.0
    for matches, compute in (ran[rank] for rank in (0, 1, 3)):
        for at, (begin, took) in enumerate(matches):
            free, until = begin, begin + took - min(each[at][1] for each, _ in ran.values())
            for start, end in compute:
                waited += max(0.0, min(start, until) - free)
                free = max(free, min(end, until))
            waited += until - free
    measured = measure(load([folder]))
    (late,) = (one.arrival for one in measured.ranks if one.rank == 2)
    assert measured.straggler.rank == 2
    assert sum(step.lag_ns for step in late.steps) == pytest.approx(1000 * waited / 3, rel=3e-3)


def in_groups(stalled, steps=4):
    """Steps of 10 ms on 4 ranks: 2 ms of compute, an all-reduce in the pairs 0-1 and 2-3, 1 ms of compute, one in the
    pairs 0-2 and 1-3. Each takes 0.5 ms. One rank idles 3 ms before the first, after an operator that it alone runs.
    """
    traces = [[] for _ in range(4)]
    for number in range(steps):
        at = 10_000 * number
        ready = [at + 2_000 + 3_000 * (rank == stalled) for rank in range(4)]
        met = [max(ready[rank], ready[rank ^ 1]) + 500 for rank in range(4)]
        again = [own + 1_000 for own in met]
        left = [max(again[rank], again[rank ^ 2]) + 500 for rank in range(4)]
        for rank, events in enumerate(traces):
            first = 100 * number
            events.append(step(number, at, at + 10_000))
            events += launched("gemm", at + 1, at + 100, at + 1_000, first)
            events += launched("gemm", ready[rank] - 1_050, ready[rank] - 1_000, ready[rank], first + 1)
            events += launched("gemm", ready[rank] + 3, met[rank], again[rank], first + 2)
            for when, end, number_of, group in (
                (ready[rank], met[rank], first + 3, f"tp{rank // 2}"),
                (again[rank], left[rank], first + 4, f"dp{rank % 2}"),
            ):
                events.append(launch(number_of, when - 10, when - 9))
                events.append({**all_reduce(when, end, number_of, 1000, group, 2), "tid": 20})
    return traces


@pytest.mark.parametrize("stalled", range(4))
def test_a_rank_that_waits_in_one_group_is_not_late_in_another(tmp_path, stalled):
    """Its partner waits 3 ms for it, and comes as late to its other group: only one of the two is the straggler."""
    found = measure_events(tmp_path, *in_groups(stalled))
    assert found.straggler.rank == stalled
    lags = [[one.lag_ns for one in rank.arrival.steps] for rank in found.ranks]
    assert lags == [[3_000 * US] * 4 if rank == stalled else [0] * 4 for rank in range(4)]
    assert found.straggler.gain_share == pytest.approx(3 / 10, abs=0.001)


def test_a_rank_that_is_late_in_every_second_step(tmp_path):
    """6 of 12 steps, 3 ms in each: the others wait for no other rank."""
    ranks = in_groups(stalled=9, steps=12)
    late = in_groups(stalled=2, steps=12)
    mixed = [
        [
            event
            for number in range(12)
            for event in (late if number % 2 else ranks)[rank]
            if 10_000 * number <= event["ts"] < 10_000 * (number + 1)
        ]
        for rank in range(4)
    ]
    found = measure_events(tmp_path, *mixed).straggler
    assert (found.rank, found.lag_ns, found.late_share, found.steps_share) == (2, 3_000 * US, 0.5, 1.0)
    assert (found.mean_lag_ns, found.when) == (1_500 * US, "in 50 % of the traced steps")


def differing(kind, share):
    return LagDifference.only("not shown", kind=kind, name="x", share=share, rank_ns=round(share * 1e6), others_ns=0)


@pytest.mark.parametrize(
    ("differences", "cause", "share"),
    [
        ([("kernels", 0.5), ("function", 0.4)], "slower compute", 0.9),
        ([("kernels", 0.2), ("function", 0.4)], "host", 0.4),
        ([("kernels", 0.2), ("function", 0.2)], None, None),
        ([], None, None),
    ],
)
def test_slower_compute_is_the_cause_only_where_operators_or_kernels_take_longer(differences, cause, share):
    found = settled(arrival([6.0] * 4, "slower compute", 0.9), [differing(*each) for each in differences])
    assert (found.known("cause"), found.known("cause_share")) == (cause, share)
    if cause is None:
        assert found.missing["cause"] == NOTHING_LONGER


@pytest.mark.parametrize(
    ("lags_ms", "late"),
    [
        ([0, 6, 0, 0, 6, 0, 0, 0, 0], range(9)),  # twice may be chance
        ([0, 6, 0, 0, 6, 0, 0, 6, 0], [1, 4, 7]),
        ([6, 5, 7, 6, 0], range(5)),  # in the median step
        ([0, 0, 0], range(3)),
    ],
)
def test_the_steps_in_which_a_rank_is_late(lags_ms, late):
    assert [one.number for one in late_steps(arrival([float(ms) for ms in lags_ms]))] == list(late)


@pytest.mark.parametrize(
    ("ranks", "late_ms", "found"),
    [
        (12, [30.0] * 4, 7),  # of 30 + 11 * 4 ms a step less than half, but more than three times the next
        (12, [11.0] * 4, None),
        (8, [27.0] * 4, None),  # of 27 + 7 * 4 ms: as few ranks are judged by their part of all lag
        (8, [28.0] * 4, 7),
        (12, [0.0, 0.0, 36.0, 0.0], None),  # late once: not in the median step
    ],
)
def test_of_many_ranks_that_are_all_a_little_late_one_stands_out(ranks, late_ms, found):
    arrived = {rank: arrival([4.0] * 4) for rank in range(ranks)} | {7: arrival(late_ms)}
    figures = straggler(arrived, Account(window_ns=100, compute_ns=80, communication_ns=20, exposed_waiting_ns=20))
    if found is None:
        assert figures == TURNS
    else:
        assert (figures.rank, figures.lag_ns, figures.steps_share) == (found, late_ms[0] * 1e6, 1.0)
