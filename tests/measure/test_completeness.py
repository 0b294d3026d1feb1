"""Traces that lack events of the device, or have them at impossible times, are named and no figure rests on them.

A rank makes five steps of 1,000 us. Each launches eight kernels of 80 us back to back from 100 on, and an all-reduce of
200 us from 740 on: compute 64 %, exposed communication 20 %.
"""

from dataclasses import replace

import pytest

from dptune.advise.trust import judge
from dptune.advise.unjudgeable import unjudgeable
from dptune.measure import measure
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import NCCL, all_reduce, annotation, call, copy, event, kernel, launch, load_events, operator, step

STEPS, KERNELS = range(5), range(8)
NAMES = [f"ampere_sgemm_{at}" for at in KERNELS]


def healthy(ranks=2, last=4):
    return [rank(last, ranks) for _ in range(ranks)]


def rank(last=4, ranks=1):
    events = []
    for number in range(last + 1):
        begin = 1000 * number
        events.append(step(number, begin, begin + 1000))
        for at in KERNELS:
            correlation = 100 * number + at
            start = begin + 100 + 80 * at
            events += [
                launch(correlation, begin + 10 * at + 1, begin + 10 * at + 3),
                kernel(NAMES[at], start, start + 80, correlation),
            ]
        correlation = 100 * number + 50
        events += [
            launch(correlation, begin + 90, begin + 92),
            {**all_reduce(begin + 740, begin + 940, correlation, 1000, "0", ranks), "tid": 20},
        ]
    return events


def is_kernel(one):
    return one["cat"] == "kernel"


def computes(one):
    return is_kernel(one) and one["name"] != NCCL


def without(events, wanted):
    return [one for one in events if not wanted(one)]


def judged(folder, *ranks, **header):
    measured = measure(load_events(folder, *ranks, **header))
    return measured, judge(measured, [])


def losses(trust):
    return {finding.code: finding for finding in trust.findings if finding.level == "unjudgeable"}


def shares(measured):
    account = measured.account
    return account.share("compute_ns"), account.share("exposed_communication_ns")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_healthy_run_is_clean(tmp_path, ranks):
    measured, trust = judged(tmp_path, *healthy(ranks))
    assert trust.level == "sound"
    assert [loss for own in measured.ranks for loss in own.losses] == []
    assert shares(measured) == (pytest.approx(0.64), pytest.approx(0.2))  # 640 and 200 us of each 1,000


@pytest.mark.parametrize(
    ("lost", "count"),
    [
        (lambda one: computes(one) and one["args"]["correlation"] % 5 == 2, 10),  # here and there
        (lambda one: is_kernel(one) and one["ts"] < 500, 5),  # at the start of the recording
        (lambda one: is_kernel(one) and one["ts"] >= 3000, 18),  # from a moment on, while the host goes on and on
        (computes, 40),  # a whole stream
    ],
)
def test_kernels_that_are_lost(tmp_path, lost, count):
    good, bad = healthy()
    bad.append(operator("aten::mm", 5000, 9000))
    measured, trust = judged(tmp_path, good, without(bad, lost))
    assert trust.level == "unjudgeable"
    (finding,) = losses(trust).values()
    assert finding.code == "device-events-lost"
    assert (
        finding.text == f"rank 1: {count} of 45 kernel launches have no kernel in the trace: the profiler lost events"
    )
    assert measured.ranks[1].devices == []  # of whose shares none is true
    assert shares(measured)[0] == pytest.approx(0.64)  # those of the other rank alone


@pytest.mark.parametrize("fault", [{"dur": "x"}, {"cat": 5}, {"args": [1]}, {"ph": 5}])
def test_kernels_that_cannot_be_read_are_not_lost_by_the_profiler(tmp_path, fault):
    good, bad = healthy()
    bad = [one | fault if is_kernel(one) and one["ts"] < 500 else one for one in bad]
    _, trust = judged(tmp_path, good, bad)
    found = losses(trust)
    assert found["device-events-damaged"].text == (
        "rank 1: 5 of 45 kernel launches have no kernel in the trace: some events in the file could not be read"
    )
    assert not any("profiler lost" in finding.text for finding in trust.findings)


def test_kernels_of_another_category_are_not_lost_by_the_profiler(tmp_path):
    good, bad = healthy()
    bad = [{**one, "cat": "gpu_thing"} if is_kernel(one) and one["ts"] < 500 else one for one in bad]
    _, trust = judged(tmp_path, good, bad)
    (finding,) = losses(trust).values()
    assert (finding.code, finding.text) == (
        "device-events-damaged",
        "rank 1: 5 of 45 kernel launches have no kernel in the trace: events with their correlation IDs have the "
        "category 'gpu_thing' instead",
    )


@pytest.mark.parametrize("args", [{}, {"device": 0, "stream": 7}, {"device": 0, "stream": 7, "correlation": -1}])
def test_kernels_without_a_correlation_are_not_lost_by_the_profiler(tmp_path, args):
    good, bad = healthy()
    bad = [{**one, "args": args} if is_kernel(one) and one["ts"] < 500 else one for one in bad]
    _, trust = judged(tmp_path, good, bad)
    (finding,) = losses(trust).values()
    assert (finding.code, finding.text) == (
        "device-events-damaged",
        "rank 1: 5 of 45 kernel launches have no kernel in the trace: 5 kernels have no launch call, so "
        "correlation IDs are missing or wrong",
    )


@pytest.mark.long
def test_one_in_a_thousand_is_said_and_left_at_that(tmp_path):
    events = rank(last=120)
    measured, trust = judged(
        tmp_path, without(events, lambda one: is_kernel(one) and one["args"]["correlation"] == 6003)
    )
    assert trust.level == "sound"
    (loss,) = measured.ranks[0].losses
    assert not loss.fatal
    (finding,) = (one for one in trust.findings if one.code == "device-events-lost")
    assert finding.text.startswith("rank 0: 1 of 1,089 kernel launches has no kernel in the trace")


def test_launches_that_have_no_kernel_for_a_good_reason(tmp_path):
    """Recorded into a graph; one call inside another; before the recording's kernels; run after its end."""
    events = rank()
    events += [call("cudaStreamBeginCapture", 4100, 4101)]
    events += [launch(9000 + at, 4110 + at, 4110.5 + at) for at in range(20)]
    events += [call("cudaStreamEndCapture", 4150, 4151)]
    events += [
        event(
            "cuda_driver", "cuLaunchKernel", 100 * number + 1000 + 1.5, 100 * number + 1002, correlation=9100 + number
        )
        for number in range(20)
    ]
    events += [launch(9200 + at, 4960 + at, 4960.5 + at) for at in range(30)]  # the recording ends at 5000
    nested = [launch(9300 + at, 100 * at + 1001, 100 * at + 1003) for at in range(20)]
    ran = [kernel("inner", 100 * at + 1004, 100 * at + 1005, 9300 + at) for at in range(20)]
    measured, trust = judged(tmp_path, [*events, *nested, *ran])
    assert measured.ranks[0].losses == []
    assert trust.level == "sound"


@pytest.mark.long
@pytest.mark.parametrize("stamp", [0, -4000])
def test_kernels_at_impossible_times(tmp_path, stamp):
    """At 0, and 4 ms before all others, which is before their launches: many of them, and one of a thousand."""
    good = [{**one, "ts": one["ts"] + 3_000_000_000} for one in rank(last=120)]

    def wrong(events, wanted):
        at = (lambda one: 0) if stamp == 0 else (lambda one: one["ts"] + stamp)
        return [
            {**one, "ts": at(one)} if is_kernel(one) and wanted(one["args"]["correlation"]) else one for one in events
        ]

    measured, trust = judged(tmp_path, wrong(good, lambda correlation: correlation % 7 == 0))
    assert trust.level == "unjudgeable"
    assert set(losses(trust)) == {"device-events-misdated"}
    (tmp_path / "0.json").unlink()
    measured, trust = judged(tmp_path, wrong(good, lambda correlation: correlation == 6003))
    assert trust.level == "sound"
    assert [(loss.code, loss.fatal) for loss in measured.ranks[0].losses] == [
        ("device-events-misdated", False),
        ("device-events-lost", False),
    ]
    assert shares(measured)[0] == pytest.approx((121 * 640 - 80) / (121_000 - 160))


def test_a_kernel_that_outlasts_the_next_on_its_stream_is_in_no_figure(tmp_path):
    """The first of step 2 is said to take 1,000 s; without its 80 us the step computes 560 of 1,000 us."""
    events = [
        {**one, "dur": 1_000_000_000} if is_kernel(one) and one["args"]["correlation"] == 200 else one for one in rank()
    ]
    measured, trust = judged(tmp_path, events, rank())
    (misdated,) = [loss for loss in measured.ranks[0].losses if loss.code == "device-events-misdated"]
    assert "1 of 45 device operations still run when the next one on their stream begins" in misdated.text
    assert misdated.fatal
    assert trust.level == "unjudgeable"  # more than 1 % of so few


@pytest.mark.parametrize("by", [5_000_000, 60_000])
def test_kernels_of_steps_that_run_outside_all_steps(tmp_path, by):
    long = [{**one, "ts": 10 * one["ts"], "dur": 10 * one["dur"]} for one in rank()]  # 50 ms in all
    late = [{**one, "ts": one["ts"] + by} if is_kernel(one) else one for one in long]
    measured, trust = judged(tmp_path, late)
    assert set(losses(trust)) == {"device-events-outside-steps"}
    assert "do not change the system clock" in unjudgeable(trust.findings, ()).next
    assert "45 of 45 device operations launched in steps run outside all steps" in trust.findings[0].text
    assert measured.known("account") is None


def test_a_host_that_is_further_ahead_than_the_recorded_steps(tmp_path):
    """The profiler waits for the device in the end; a call that returns long before or after shows nothing."""
    by = 60_000
    long = [{**one, "ts": 10 * one["ts"], "dur": 10 * one["dur"]} for one in rank()]  # 50 ms in all
    late = [{**one, "ts": one["ts"] + by} if is_kernel(one) else one for one in long]
    end = max(one["ts"] + one["dur"] for one in late if is_kernel(one))
    _, trust = judged(tmp_path, [*late, call("cudaDeviceSynchronize", 50_100, end + 20)])
    assert set(losses(trust)) == {"device-behind-steps"}
    assert trust.findings[0].text.endswith("the device still ran earlier steps while these were launched")
    assert "Record more steps" in unjudgeable(trust.findings, ()).next
    for returned in (50_200, end - 1, end + 5_000):
        (tmp_path / "0.json").unlink()
        _, trust = judged(tmp_path, [*late, call("cudaDeviceSynchronize", 50_100, returned)])
        assert set(losses(trust)) == {"device-events-outside-steps"}


def test_exposed_communication_of_one_of_many_ranks_may_be_waiting(tmp_path):
    """Of one rank of eight the rows hold all that the account does not split, and none where all ranks were read."""
    (tmp_path / "one").mkdir()
    (tmp_path / "all").mkdir()
    of_eight = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}
    measured, _ = judged(tmp_path / "one", rank(ranks=8), **of_eight)
    (row,) = measured.overlap.rows
    assert row.exposed_unsplit_ns == measured.account.exposed_unsplit_ns > 0
    assert row.exposed_unsplit_ns == row.exposed_transfer_ns == row.exposed_ns
    (row,) = judged(tmp_path / "all", *healthy(2))[0].overlap.rows
    assert row.exposed_unsplit_ns == 0


def test_work_that_queues_behind_the_steps_is_none_of_it(tmp_path):
    """Before the recording 60 ms of work were launched: all that its steps launch runs after them, promptly."""
    late = [{**one, "ts": one["ts"] + 60_000} if is_kernel(one) else one for one in rank()]
    earlier = [kernel("before", 0, 60_050, 77_777)]
    measured, trust = judged(tmp_path, [*earlier, *late])
    assert measured.ranks[0].losses == []
    assert trust.level == "sound"


def test_a_stream_that_one_of_three_ranks_lacks(tmp_path):
    """Its launches are gone too, so that no count of launches tells."""

    def copying(events):
        return [
            *events,
            *(copy("PtoP (Device -> Device)", 1000 * at + 950, 1000 * at + 960, 50_000 + at, 31) for at in STEPS),
        ]

    first, second, third = (copying(one) for one in healthy(3))
    lacking = without(third, lambda one: one["args"].get("stream") == 31)
    _, trust = judged(tmp_path, first, second, lacking)
    (finding,) = losses(trust).values()
    assert finding.code == "device-stream-missing"
    assert finding.text.startswith("rank 2: it has nothing of stream 31 of rank 0 (5 operations), but every")


def test_the_profiler_lost_nothing_of_a_trace_that_breaks_off(tmp_path):
    """What the end of a truncated file would hold is missing there, not in the recording."""
    lacking = without(rank(ranks=3), is_kernel)
    lacking += [kernel("memset", 10, 20, 9000)]
    run = load_events(tmp_path, *healthy(2), lacking)
    *whole, last = run.ranks
    cut = replace(last, light=replace(last.light, partial="after 12 events"))
    trust = judge(measure(replace(run, ranks=[*whole, cut])), [])
    text = losses(trust)["device-stream-missing"].text
    assert text == "rank 2: its trace breaks off: it has no communication kernel, but every other rank has"


@pytest.mark.parametrize("lacking", [0, 2])
def test_a_rank_that_was_profiled_without_its_device(tmp_path, lacking):
    """Its operators on the host are no compute of the run; the other ranks' figures stay, and MFU is not a CPU's."""
    sized = {"Input Dims": [[800, 800]] * 2, "Input type": ["float"] * 2}
    products = [operator("aten::mm", 1000 * number, 1000 * number + 90, **sized) for number in STEPS]
    ranks = [[*one, *products] for one in healthy(3)]
    ranks[lacking] = [one for one in ranks[lacking] if one["cat"] in ("user_annotation", "cpu_op")]
    measured, trust = judged(tmp_path, *ranks, deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}])
    (finding,) = losses(trust).values()
    assert (finding.code, measured.device_kind) == ("device-unprofiled", "cuda")
    assert finding.text.startswith(f"rank {lacking}: it has nothing that ran on a device, but other ranks have")
    assert shares(measured) == pytest.approx((0.64, 0.2))
    found = measured.efficiency
    assert found.peak_flops_per_s == 19.5e12
    assert found.mfu == pytest.approx(2 * 800**3 / 1e-3 / 19.5e12)
    assert found.rank == (1 if lacking == 0 else 0)


def test_a_run_on_cpus_lacks_no_device(tmp_path):
    ranks = [[one for one in rank if one["cat"] in ("user_annotation", "cpu_op")] for rank in healthy()]
    ranks = [[*rank, *(operator("aten::mm", 1000 * at, 1000 * at + 90) for at in STEPS)] for rank in ranks]
    measured, trust = judged(tmp_path, *ranks)
    assert measured.device_kind == "cpu"
    assert "device-unprofiled" not in losses(trust)


def test_what_the_first_rank_does_alone_is_no_loss_of_the_others(tmp_path):
    first, second, third = healthy(3)
    first += [copy("DtoH (Device -> Pageable)", 1000 * at + 950, 1000 * at + 960, 50_000 + at, 31) for at in STEPS]
    _, trust = judged(tmp_path, first, second, third)
    assert trust.level == "sound"


def silent(events):
    """Without any trace of NCCL's kernels and their launches."""
    gone = {one["args"]["correlation"] for one in events if one["name"] == NCCL}
    return without(events, lambda one: one["args"].get("correlation") in gone)


CALL = "record_param_comms"


@pytest.mark.parametrize(
    "witness",
    [
        [operator("c10d::allreduce_", 95, 99)],
        [operator(CALL, 95, 99, **{"Collective name": "allreduce", "Group size": 2})],
        [annotation("DistributedDataParallel.forward", 1, 90), annotation("Optimizer.step#SGD.step", 95, 99)],
    ],
)
def test_ranks_that_communicate_without_a_kernel(tmp_path, witness):
    measured, trust = judged(tmp_path, *([*silent(one), *witness] for one in healthy()))
    (finding,) = losses(trust).values()
    assert finding.code == "communication-missing"
    assert finding.text.startswith("rank 0: ")
    assert finding.text.endswith("(the same on rank 1)")
    assert measured.known("account") is None


@pytest.mark.parametrize(
    "witness",
    [
        [],
        [operator("c10d::barrier", 95, 99)],
        [operator(CALL, 95, 99, **{"Collective name": "allreduce", "Group size": 1})],
        [operator("c10d::allreduce_", 95, 99), event("cpu_op", "gloo:all_reduce", 96, 98, thread=5)],
        [annotation("DistributedDataParallel.forward", 1, 90)],  # as of an evaluation
    ],
)
def test_ranks_that_have_nothing_to_communicate_on_the_device(tmp_path, witness):
    _, trust = judged(tmp_path, *([*silent(one), *witness] for one in healthy()))
    assert losses(trust) == {}


@pytest.mark.parametrize(
    ("name", "code", "count"),
    [
        ("made_one_rank_lacks_compute_stream", "device-events-lost", "rank 1: 138 of 156"),
        ("made_kernels_dropped_at_random", "device-events-lost", "rank 0: 51 of 156"),
        ("made_no_nccl_kernels", "communication-missing", "rank 0: a data-parallel module is trained"),
        ("ascend_read_as_cpu.json.gz", "device-unknown", "an Ascend NPU"),
    ],
)
def test_what_cannot_be_judged(findings, name, code, count):
    run = load([findings / "traces" / name])
    trust = judge(measure(run), [], run.findings)
    assert count in losses(trust)[code].text
    assert list(losses(trust)) == [code]


def test_an_undamaged_run_stays_clean(findings):
    measured = reading.measured(findings / "traces" / "made_undamaged_baseline")
    assert judge(measured, []).level == "sound"
    assert [round(share, 2) for share in shares(measured)] == [0.74, 0.21]


def test_kernels_without_duration_are_not_timed(tmp_path):
    ranks = healthy()
    for one in ranks[1]:
        if computes(one):
            one["dur"] = 0
    _, trust = judged(tmp_path, *ranks)
    assert trust.level == "unjudgeable"
    assert losses(trust)["device-events-untimed"].text == (
        "rank 1: 40 of 45 kernels have no duration, so device times cannot be trusted"
    )


def test_some_kernels_shorter_than_what_is_written_are_timed(tmp_path):
    """Kineto of 2021 wrote whole microseconds: 5 of 45 here, 7 % in public traces."""
    ranks = healthy()
    for one in ranks[1]:
        if one["name"] == NAMES[0]:
            one["dur"] = 0
    assert losses(judged(tmp_path, *ranks)[1]) == {}


@pytest.mark.parametrize(("factor", "said"), [(1 / 1000, "1,000 times shorter"), (1000, ""), (0.5, "")])
def test_kernels_of_one_rank_in_another_unit(tmp_path, factor, said):
    """Of three ranks one has milliseconds, or nanoseconds, where microseconds belong."""
    ranks = healthy(3)
    for one in ranks[2]:
        if computes(one):
            one["dur"] *= factor
    found = [one.text for one in losses(judged(tmp_path, *ranks)[1]).values()]
    if factor > 1:  # such kernels outlast the next on their stream, which is said first
        assert "still run when the next one on their stream begins" in found[0]
    elif said:
        assert found == [
            f"rank 2: its kernels are {said} than the same kernels on other ranks: their durations are in another unit"
        ]
    else:
        assert found == []


def test_work_launched_between_marked_steps_is_told(tmp_path):
    """The marks end after the forward pass: the all-reduce, launched at 90, is in none."""
    ranks = healthy()
    for one in [one for own in ranks for one in own if one["name"].startswith("ProfilerStep")]:
        one["dur"] = 85
    _, trust = judged(tmp_path, *ranks)
    assert trust.level == "partial"
    assert [one.text for one in trust.findings if one.code == "work-outside-steps"] == [
        "rank 0: 4 of 44 device operations are launched between the marked steps, so counts, phases and collectives of "
        "a step leave them out (the same on rank 1)"
    ]


def test_what_one_rank_copies_often_and_another_once_is_no_lost_stream(tmp_path):
    """Rank 0 copies in three steps, rank 1 in one, rank 2 in none."""
    ranks = healthy(3)
    for number, count in ((0, 3), (1, 1)):
        for at in range(count):
            ranks[number] += [
                call("cudaMemcpyAsync", 1000 * at + 95, 1000 * at + 96, 9000 + at),
                copy("HtoD (Pinned -> Device)", 1000 * at + 300, 1000 * at + 320, 9000 + at, stream=8),
            ]
    assert losses(judged(tmp_path, *ranks)[1]) == {}


@pytest.mark.parametrize(
    ("by_us", "said"),
    [
        (0, None),
        (-150, None),
        (-600, "by up to 0.79"),
        (900, "99 % of its operations start later after their launch than 0.9"),
    ],
)
def test_clocks_that_differ_are_named(tmp_path, by_us, said):
    """Of sixty kernels of 20 us, each launched every 100 us while the device is idle, and started after 10 us.

    The clock is further off for one of them.
    """
    events = [step(number, 1000 * number, 1000 * number + 1000) for number in range(6)]
    for at in range(60):
        off_us = 10 + (4 * by_us // 3 if at == 30 else by_us)
        events.append(launch(at, 100 * at, 100 * at + 5))
        events.append(kernel("ampere_sgemm", 100 * at + off_us, 100 * at + 20 + off_us, at))
    measured, trust = judged(tmp_path, [each | {"ts": each["ts"] + 5000} for each in events])
    texts = [finding.text for finding in trust.findings if finding.code == "clocks-apart"]
    assert [said in text for text in texts] == ([] if said is None else [True])
    assert not any(loss.fatal for loss in measured.ranks[0].losses)
