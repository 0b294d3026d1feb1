"""The account of real traces: against the manifest, and against a second derivation that shares no code with dptune."""

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package

# The manifest's figures were computed from times rounded to float64: see its README.
TOLERANCE_US = 0.1
# Fractional epochs: float64 has lost a quarter of a microsecond of each time there (dptune reads the digits).
FRACTIONAL_EPOCH = "hta_training/e8fe4d1_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
NOT_ACCOUNTED = {  # device events that were not recorded
    "hta_small/eac4fdc_benchmark_result_924719_1679055439_trace.json.gz": "gpu-events-missing",
}
NOT_IN_THE_MANIFEST = "mtia/"  # the manifest counts GPUs; tests/trace/test_kernels.py checks this account


def test_whole_account_equals_the_manifest(real_traces, manifest_entry):
    measured = reading.measured(real_traces / manifest_entry["file"])
    assert_possible(measured.known("efficiency"))
    devices = measured.ranks[0].devices
    figures = manifest_entry["interval_union_figures"]
    if manifest_entry["file"] in NOT_ACCOUNTED:
        assert devices == []
        findings = load([real_traces / manifest_entry["file"]]).findings
        assert NOT_ACCOUNTED[manifest_entry["file"]] in {finding.code for finding in findings}
        return
    assert sum(device.kernels for device in devices) == manifest_entry["gpu_kernels"]
    if not figures["gpu_events"]:
        other = manifest_entry["file"].startswith(NOT_IN_THE_MANIFEST)
        assert [device.device for device in devices] == (["mtia:9"] if other else ["cpu"])
        return
    assert len(devices) == figures["gpus"] == 1
    assert devices[0].device_operations == figures["gpu_events"]
    whole = devices[0].whole
    found = {
        "span_us": whole.window_ns,
        "busy_us": whole.busy_ns,
        "compute_us": whole.compute_ns,
        "comm_us": whole.communication_ns,
        "overlap_us": whole.hidden_communication_ns,
    }
    tolerance = 20 if manifest_entry["file"] == FRACTIONAL_EPOCH else TOLERANCE_US
    for name, value_ns in found.items():
        assert value_ns / 1e3 == pytest.approx(figures[name], abs=tolerance), name


def assert_possible(efficiency):
    """No device computes faster than its peak; parts sum to the whole; a model needs no more than is computed."""
    if efficiency is None or efficiency.known("flops") is None:
        return
    for parts in (efficiency.kinds, efficiency.dtypes):
        assert sum(part.flops for part in parts) == efficiency.flops > 0
    model = efficiency.known("model_flops_per_step")
    assert model is None or 0 < model <= efficiency.flops_per_step
    assert 0 <= (efficiency.known("memory_bound_share") or 0) <= 1
    assert 0 <= (efficiency.known("counted_share") or 0) <= 1
    peak = efficiency.known("peak_flops_per_s")
    if peak is None:
        return
    assert 0 < efficiency.mfu <= efficiency.hfu < 1
    fastest = max(part.peak_flops_per_s for part in efficiency.dtypes if part.known("peak_flops_per_s"))
    assert all(kind.flops_per_s < fastest for kind in efficiency.kinds if kind.known("flops_per_s"))


def plain_steps(path):
    """Windows of the steps, all operations as (start, end, class, launch), and those launched in each step."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = json.loads(text, parse_float=Decimal)
    events = [e for e in (document if isinstance(document, list) else document["traceEvents"]) if e.get("ph") == "X"]
    for event in events:
        event["start"] = int(event["ts"] * 1000)
        event["end"] = event["start"] + int(event.get("dur", 0) * 1000)
    steps = sorted(
        (e["start"], e["end"], int(e["name"].split("#")[1]))
        for e in events
        if e["name"].startswith("ProfilerStep#") and e["cat"] in ("user_annotation", "Operator", "cpu_op")
    )
    launched = {}
    for e in events:
        if e["cat"] in ("cuda_runtime", "cuda_driver", "Runtime") and "correlation" in e.get("args", {}):
            correlation = e["args"]["correlation"]
            launched[correlation] = min(launched.get(correlation, e["start"]), e["start"])
    ranks = {"gpu_memcpy": 2, "Memcpy": 2, "gpu_memset": 3, "Memset": 3}
    operations = []
    for e in events:
        if e["cat"] in ("kernel", "Kernel"):
            rank = 1 if re.search("nccl|rccl", e["name"].lower()) else 0
        elif e["cat"] in ranks:
            rank = ranks[e["cat"]]
        else:
            continue
        operations.append((e["start"], e["end"], rank, launched.get(e["args"].get("correlation"))))
    own = [[op for op in operations if op[3] is not None and start <= op[3] < end] for start, end, _ in steps]
    after = [op[0] for op in operations if op[3] is not None and op[3] >= steps[-1][1]]
    kept = [(number, ops) for (_, _, number), ops in zip(steps, own, strict=True) if ops]
    begins = [min(op[0] for op in ops) for _, ops in kept]
    ends = [*begins[1:], min([max(op[1] for op in kept[-1][1]), *[t for t in after if t >= begins[-1]]])]
    windows = {number: (begin, end) for (number, _), begin, end in zip(kept, begins, ends, strict=True) if end > begin}
    return windows, operations, dict(kept)


def plain_account(path):
    """Step accounts by a sweep over boundaries, in integers, on plain dictionaries."""
    windows, operations, _ = plain_steps(path)
    return {number: swept(operations, *window) for number, window in windows.items()}


def plain_split(paths):
    """By rank and step: exposed [transfer, waiting, unsplit], from call n of each step being the same on all ranks."""
    ranks = [plain_steps(path) for path in paths]
    found = []
    for windows, operations, launched in ranks:
        spans = [(start, end, 0, None) for start, end, kind, _ in operations if kind == 0]
        matched = set()
        for number in launched:
            calls = [sorted((op for op in own[number] if op[2] == 1), key=lambda op: op[3]) for _, _, own in ranks]
            assert len({len(each) for each in calls}) == 1
            for op, *same in zip(
                sorted((op for op in launched[number] if op[2] == 1), key=lambda op: op[3]), *calls, strict=True
            ):
                moving = min(end - start for start, end, _, _ in same)
                spans += [(op[1] - moving, op[1], 1, None), (op[0], op[1] - moving, 2, None)]
                matched.add(op)
        spans += [(op[0], op[1], 3, None) for op in operations if op[2] == 1 and op not in matched]
        found.append({number: swept(spans, *window)[1:4] for number, window in windows.items()})
    return found


def plain_lags(paths):
    """By rank and step how late it arrived, in ms, without what was counted before and has held up no other rank since.

    The ranks share a host, so their clocks are taken as they are.
    """
    bases = [json.loads(gzip.decompress(path.read_bytes())).get("baseTimeNanoseconds", 0) for path in paths]
    ranks = [plain_steps(path) for path in paths]
    rows = []
    for number in ranks[0][2]:
        calls = [sorted((op for op in own[number] if op[2] == 1), key=lambda op: op[3]) for _, _, own in ranks]
        rows += [(number, same) for same in zip(*calls, strict=True)]
    rows.sort(key=lambda row: max(base + op[0] for base, op in zip(bases, row[1], strict=True)))
    lags = [dict.fromkeys(own, 0) for _, _, own in ranks]
    spans = [plain_spans(rank, [row for _, row in rows], ranks) for rank in range(len(ranks))]
    uncounted = [0.0] * len(ranks)  # of the lateness counted so far, what has not held up the others yet
    before = None
    for number, same in rows:
        starts = [base + op[0] for base, op in zip(bases, same, strict=True)]
        if before is not None:
            waits = [sum(swept(spans[rank], before[rank][0], same[rank][0])[1:3]) for rank in range(len(ranks))]
            for rank, wait in enumerate(waits):
                others = (sum(waits) - wait) / (len(ranks) - 1)
                uncounted[rank] = max(0.0, uncounted[rank] - max(0.0, others - wait))
        last = starts.index(max(starts))
        late = starts[last] - sum(starts[:last] + starts[last + 1 :]) / (len(ranks) - 1)
        if late > uncounted[last]:
            lags[last][number] += late - uncounted[last]
            uncounted[last] = late
        before = same
    return [{number: lag_ns / 1e6 for number, lag_ns in own.items()} for own in lags]


def plain_spans(rank, rows, ranks):
    """Of one rank compute, transfer and waiting, as classes 0 to 2."""
    spans = [(start, end, 0, None) for start, end, kind, _ in ranks[rank][1] if kind == 0]
    for row in rows:
        start, end = row[rank][:2]
        moving = min(op[1] - op[0] for op in row)
        spans += [(end - moving, end, 1, None), (start, end - moving, 2, None)]
    return spans


def swept(spans, begin, end):
    """Nanoseconds of [begin, end) by the lowest class active, of four, and at last those of none."""
    edges = []
    for start, stop, rank, _ in spans:
        low, high = max(start, begin), min(stop, end)
        if low < high:
            edges += [(low, 1, rank), (high, -1, rank)]
    edges.sort(key=lambda edge: edge[0])
    active, total, at = [0] * 4, [0] * 5, begin
    for time, change, rank in edges:
        total[next((r for r in range(4) if active[r]), 4)] += time - at
        at = time
        active[rank] += change
    total[4] += end - at
    return total


@pytest.mark.parametrize(
    "file",
    [
        pytest.param("nanogpt_8xh100/42f4e74*", marks=pytest.mark.thorough),
        pytest.param("nanogpt_adam_hook_h100/3f01a7c*", marks=pytest.mark.thorough),
        "torchrec_straggler_4xv100/7c1bf12*",
        pytest.param("torchrec_qcomm_b_4xv100/57bd7fb*", marks=pytest.mark.thorough),
        pytest.param("hta_training/b4b6dce*", marks=pytest.mark.thorough),
        pytest.param("hta_training/e8fe4d1*", marks=pytest.mark.thorough),
        pytest.param("kineto_resnet50_loader/2d19c63*", marks=pytest.mark.thorough),
        "single_gpu/c4adadd*",
        "single_gpu/1eeffb3*",
        "b200_cuda_graph/06852f9*",
    ],
)
def test_step_accounts_equal_a_second_derivation(real_traces, file):
    path = next(real_traces.glob(file))
    expected = plain_account(path)
    assert expected
    figures = reading.measured(path)
    (device,) = figures.ranks[0].devices
    left = {*figures.steps.cut_short, *figures.steps.surplus}
    expected = {number: parts for number, parts in expected.items() if number not in left}
    found = {
        step.number: [
            step.account.compute_ns,
            step.account.exposed_communication_ns,
            step.account.copy_ns,
            step.account.memset_ns,
            step.account.idle_ns,
        ]
        for step in device.steps
    }
    assert found == expected


EIGHT = pytest.param("nanogpt_8xh100", marks=pytest.mark.thorough)  # large: the plain derivation takes half a minute


@pytest.mark.parametrize("folder", [EIGHT, "torchrec_straggler_4xv100", "torchrec_resnet18_2xv100"])
def test_transfer_and_waiting_equal_a_second_derivation(real_traces, folder):
    run = load([real_traces / folder])
    expected = plain_split([Path(rank.source) for rank in run.ranks])
    for rank, own in zip(reading.measured(real_traces / folder).ranks, expected, strict=True):
        (device,) = rank.devices
        assert own == {
            step.number: [
                step.account.exposed_transfer_ns,
                step.account.exposed_waiting_ns,
                step.account.exposed_unsplit_ns,
            ]
            for step in device.steps
        }


@pytest.mark.parametrize("folder", [EIGHT, "torchrec_straggler_4xv100"])
def test_lags_equal_a_second_derivation(real_traces, folder):
    """But for the tens of microseconds by which the clocks are aligned, as the traces do not name the host."""
    run = load([real_traces / folder])
    expected = plain_lags([Path(rank.source) for rank in run.ranks])
    for rank, own in zip(reading.measured(real_traces / folder).ranks, expected, strict=True):
        assert {step.number: step.lag_ns / 1e6 for step in rank.arrival.steps} == pytest.approx(own, abs=0.1)


def test_the_straggler_is_seen(real_traces):
    measured = reading.measured(real_traces / "torchrec_straggler_4xv100")
    communicating = {rank.rank: rank.devices[0].total.communication_ns / 1e6 for rank in measured.ranks}
    assert communicating[2] < 40
    assert all(communicating[rank] > 3000 for rank in (0, 1, 3))
    (collective,) = measured.collectives
    assert (collective.kind, collective.calls, collective.calls_per_step) == ("all_to_all", 48, 4.0)
    assert collective.missing["message_bytes"]
    assert measured.straggler.rank == 2
    assert measured.straggler.steps_share == 1.0
    late = measured.ranks[2].arrival
    assert [step.lag_ns / 1e6 for step in late.steps] == pytest.approx([993.9, 1004.9, 1004.8], abs=0.1)
    assert (late.cause, late.cause_share) == ("host", pytest.approx(0.998, abs=0.001))
    (found,) = measured.straggler.differences
    # 31.9 ms on the others, of which a blocking copy holds the host for 7.6
    assert (found.name, round(found.rank_ns / 1e6), round(found.others_ns / 1e6)) == ("# running sparse arch", 1010, 21)
    assert (found.detail, found.share) == ("before _AlltoAllSingle", pytest.approx(0.993, abs=0.001))
    assert measured.straggler.gain_share == pytest.approx(0.896, abs=0.001)
    idle = measured.ranks[2].devices[0].total
    assert idle.host_idle_ns > 0.9 * 3 * 1_000_000_000  # nothing launched, no operator, for about a second a step
    for rank in (0, 1, 3):
        account = measured.ranks[rank].devices[0].total
        assert account.exposed_waiting_ns / account.exposed_communication_ns > 0.98
        assert measured.ranks[rank].arrival.lag_ns == 0


def test_a_host_that_stands_still_twice_in_each_step(findings):
    """20.2 ms before `_AlltoAllSingle` and 20.9 in its backward, others at most 0.1 and 0.8; no kernel is slower."""
    measured = reading.measured(findings / "traces" / "torchrec_2b_rank2_sleeps_20ms")
    late = measured.straggler
    assert late.rank == 2
    first, second = sorted(late.differences, key=lambda one: one.name)
    assert (first.name, first.detail) == ("# running sparse arch", "before _AlltoAllSingle")
    assert (first.detail_rank_ns / 1e6, first.detail_others_ns / 1e6) == pytest.approx((20.2, 0.05), abs=0.05)
    assert (second.name, second.rank_ns / 1e6) == ("_AlltoAllSingleBackward", pytest.approx(20.86, abs=0.1))
    assert second.others_ns < 800_000
    assert measured.ranks[2].arrival.cause == "host"
    assert late.lag_ns / 1e6 < 41  # both stalls: what it is late to many collectives counts once
    assert 0.02 < late.gain_share < 0.11  # the others wait 11 % of their time


def test_collectives_of_eight_ranks(real_traces):
    measured = reading.measured(real_traces / "nanogpt_8xh100")
    assert (measured.world_size, measured.backend, measured.device_kind) == (8, "nccl", "cuda")
    largest = max(measured.collectives, key=lambda figures: figures.message_bytes)
    assert (largest.kind, largest.dtype, largest.message_bytes) == ("all_gather", "float32", 150_994_944)
    assert sum(figures.calls for figures in measured.collectives) == 8 * 56
    assert measured.matmul.tensor_cores is True
    assert measured.matmul.tensor_core_share > 0.3
    for rank in measured.ranks:
        whole = rank.devices[0].total
        assert whole.exposed_unsplit_ns == 0  # all 56 collectives of each rank were matched
        assert rank.arrival.collectives == 56
        assert rank.clock_ahead_ns == pytest.approx(0, abs=3000)  # one host: the clocks agree
    assert measured.straggler.rank == 1
    late = measured.ranks[1].arrival
    assert [step.lag_ns / 1e6 for step in late.steps] == pytest.approx([0, 12.18, 11.04, 7.43], abs=0.01)
    assert late.cause == "host"
    (found,) = measured.straggler.differences
    assert (found.kind, found.rank_ns > 1.1 * found.others_ns) == ("host", True)
    assert measured.straggler.gain_share < 0.2  # an expert's bound
    assert largest.busbw_gb_per_s == pytest.approx(294, abs=1)  # NVLink 4 carries 450 GB/s each way


def test_loader_workers_take_the_wait_away(real_traces):
    folder = real_traces / "kineto_resnet50_loader"
    none, four = (reading.measured(next(folder.glob(name))) for name in ("2d19c63*", "234cf25*"))
    assert none.input.basis == "traced"
    assert none.input.wait_share > 2 * four.input.wait_share
    assert none.share("input_idle_ns") > four.share("input_idle_ns")
