"""Where HTA gives another account of a real trace, a plain reading of its JSON says who is right, and why HTA differs.

The plain reading is json, and the union of intervals in whole nanoseconds. dptune equals it. HTA equals it after one or
several of four departures, and is not right in them:

`rounded`   times with a fraction are cut inwards to whole microseconds: each operation loses up to 2 us, and what lies
            within a microsecond takes -1 us. So a busy device seems idle by up to 2 us per operation.
`dropped`   of several ProfilerSteps, operations are left out whose launch was not recorded, though they ran.
`waits`     `cuda_sync` events, in which a stream or the host waits, count as work of the device.
`host`      operators with an argument `stream` (Triton's) count as kernels, for as long as the host was in them.

It also reads no trace that is a list of events, has no figures where no GPU ran, and refuses those in which negative
durations make less of the device's work than of its part. Unless asked, it leaves out the last ProfilerStep.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dptune.errors import DptuneError
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package

REAL_TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "real_traces"
LARGEST_BYTES = 250_000  # the larger ones differ for the same reasons, and HTA is slow
OPERATIONS = {"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
LIST_OF_GPU = "kineto_resnet50_loader/2d19c63_worker0.pt.trace.json.gz"
STEP = "hta_small/9285831_event_sync_trace.json.gz"
LIST_OF_CPU = "cpu_only/84dcf76_local_test_forward_hf_gpt2.json.gz"
# The smallest trace for each departure alone, and one with three of them, are read each time.
REASONS = {
    "handmade/ac8c383_moe_01_many_experts_few_tokens.json.gz": {"rounded"},
    "hta_small/3416a64_base.json.gz": {"dropped"},
    STEP: {"waits"},
    "single_gpu/d4c3f21_trace_04.json.gz": {"rounded", "dropped", "host"},
}

# Read each time besides: one of which HTA has less work than of its part, and one rank of a run; and of CPUs, one with
# gloo's collectives, one without, and one with launches.
FURTHER = {
    *("single_gpu/5b7b13c_after_fix_trace.json", "torchrec_4xv100/0752d91_24049.1698955364380200319.pt.trace.json.gz"),
    *("cpu_only/3b2ac16_ref.json", "incomplete/8e469c1_rank_not_found.json.gz"),
    "hta_small/eac4fdc_benchmark_result_924719_1679055439_trace.json.gz",
}

pytestmark = pytest.mark.filterwarnings("ignore")

Event = dict[str, Any]
Span = tuple[int, int]


class Account(NamedTuple):
    window_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int


@pytest.fixture(scope="module")
def trace_analysis() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("hta.trace_analysis", reason="the extra `hta` is not installed")
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield module.TraceAnalysis
    logging.disable(level)


def disagreeing(chosen: Callable[[Event], bool]) -> list[Any]:
    """The traces of the manifest on which HTA is not right, without lists of events; most of torch's are thorough."""
    manifest = REAL_TRACES / "MANIFEST.json"
    entries = json.loads(manifest.read_text()) if manifest.is_file() else []
    entries = [e for e in entries if e["bytes"] <= LARGEST_BYTES and e["file"] not in (LIST_OF_GPU, LIST_OF_CPU)]
    differing = [e for e in entries if not e["hta_agrees_with_interval_union"] and chosen(e)]
    often = {*REASONS, *FURTHER, *(e["file"] for e in differing if not e["torch_trace"])}
    files = [e["file"] for e in differing]
    return [pytest.param(file, id=file, marks=() if file in often else pytest.mark.thorough) for file in files]


def document(path: Path) -> Any:
    """The JSON, its fractions exactly as they are written."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, parse_float=Decimal)


def timed(events: list[Event]) -> list[Event]:
    return [event for event in events if event.get("ph") == "X" and event.get("cat", "Trace") != "Trace"]


def operations(events: list[Event]) -> list[Event]:
    return [event for event in timed(events) if event["cat"] in OPERATIONS]


def kind(event: Event) -> str:
    """`cpu_op` is there for what HTA takes to be a kernel."""
    if event["cat"] not in {"kernel", "Kernel", "cpu_op"}:
        return "other"
    return "communication" if re.search("nccl|rccl", event["name"].lower()) else "compute"


def nanoseconds(event: Event) -> Span:
    start, end = event["ts"] * 1000, (event["ts"] + event["dur"]) * 1000
    assert (start, end) == (int(start), int(end))
    return int(start), int(end)


def whole_microseconds(event: Event) -> Span:
    """As HTA cuts them, in float64; in nanoseconds."""
    start, length = float(event["ts"]), float(event["dur"])
    return 1000 * math.ceil(start), 1000 * math.floor(start + length)


def merged(spans: list[Span]) -> list[Span]:
    """Spans that touch or overlap as one. One of negative duration that touches no other stays, as it does in HTA."""
    groups: list[Span] = []
    farthest = -math.inf
    for start, end in sorted(spans):
        if start > farthest:
            groups.append((start, end))
        else:
            groups[-1] = (groups[-1][0], max(groups[-1][1], end))
        farthest = max(farthest, end)
    return groups


def total(events: list[Event], span: Callable[[Event], Span]) -> int:
    return sum(end - start for start, end in merged([span(event) for event in events]))


def account(events: list[Event], span: Callable[[Event], Span] = nanoseconds) -> Account:
    compute, communication = ([e for e in events if kind(e) == one] for one in ("compute", "communication"))
    busy = merged([span(event) for event in events])
    compute_ns, communication_ns = total(compute, span), total(communication, span)
    return Account(
        window_ns=busy[-1][1] - busy[0][0],
        busy_ns=total(events, span),
        compute_ns=compute_ns,
        communication_ns=communication_ns,
        hidden_ns=compute_ns + communication_ns - total(compute + communication, span),
    )


def on_stream(event: Event) -> bool:
    return str(event.get("args", {}).get("stream", -1)).isdigit()


def profiler_steps(events: list[Event]) -> list[Event]:
    """Those of the host, in order."""
    steps = [e for e in timed(events) if e["name"].startswith("ProfilerStep#") and not on_stream(e)]
    return sorted(steps, key=lambda step: step["ts"])


def departures(events: list[Event], until_us: float = math.inf) -> dict[str, list[Event]]:
    """By departure of HTA, the events that it is about. Of launches it knows those before `until_us`."""
    device = operations(events)
    others = [event for event in timed(events) if event["cat"] not in OPERATIONS]
    launches = {e["args"]["correlation"] for e in others if "correlation" in e.get("args", {}) and e["ts"] < until_us}
    several = len({step["name"] for step in profiler_steps(events)}) > 1
    found = {
        "rounded": [event for event in device if event["ts"] % 1 or event["dur"] % 1],
        "dropped": [event for event in device if several and event["args"]["correlation"] not in launches],
        "waits": [event for event in others if on_stream(event) and event["cat"] == "cuda_sync"],
        "host": [event for event in others if on_stream(event) and event["cat"] == "cpu_op"],
    }
    return {name: affected for name, affected in found.items() if affected}


def as_hta(events: list[Event], found: dict[str, list[Event]]) -> Account:
    """The plain reading with these departures."""
    dropped = {id(event) for event in found.get("dropped", [])}
    counted = [event for event in operations(events) if id(event) not in dropped]
    counted += found.get("waits", []) + found.get("host", [])
    return account(counted, whole_microseconds if "rounded" in found else nanoseconds)


def of_hta(trace_analysis: Any, path: Path, last_step: bool = True) -> tuple[tuple[int, ...], float]:
    """The first three figures of an account, and percent of communication hidden (NaN where there is none)."""
    files = {0: str(path)}
    analysis = trace_analysis(trace_files=files, trace_dir=str(path.parent), include_last_profiler_step=last_step)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    compute_us = row["compute_time(us)"]
    figures_us = (row["kernel_time(us)"], compute_us + row["non_compute_time(us)"], compute_us)
    hidden = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
    return tuple(round(1000 * figure_us) for figure_us in figures_us), hidden


def hidden_percent(exact: Account) -> float:
    return 100 * exact.hidden_ns / exact.communication_ns if exact.communication_ns else math.nan


def of_dptune(path: Path) -> Account:
    (device,) = reading.measured(path).ranks[0].devices
    whole = device.whole
    communication = (whole.communication_ns, whole.hidden_communication_ns)
    return Account(whole.window_ns, whole.busy_ns, whole.compute_ns, *communication)


@pytest.mark.parametrize("file", disagreeing(lambda entry: entry["interval_union_figures"]["gpu_events"]))
def test_the_plain_reading_settles_it(real_traces: Path, file: str, trace_analysis: Any) -> None:
    """Each departure that applies is part of the difference, and all of them are all of it."""
    path = real_traces / file
    events = document(path)["traceEvents"]
    exact, found = account(operations(events)), departures(events)
    assert of_dptune(path) == exact
    assert set(found) == REASONS.get(file, set(found))
    expected = as_hta(events, found)
    if not 0 <= expected.compute_ns <= expected.busy_ns:
        with pytest.raises(AssertionError):
            of_hta(trace_analysis, path)
        return
    theirs, hidden = of_hta(trace_analysis, path)
    assert theirs == expected[:3] != exact[:3]
    assert hidden == pytest.approx(hidden_percent(expected), abs=0.0051, nan_ok=True)  # they round to two digits
    for name in found:
        assert theirs != as_hta(events, {other: found[other] for other in found if other != name})[:3]


def test_the_last_step_is_left_out_unless_asked_for(real_traces: Path, trace_analysis: Any) -> None:
    """By default HTA knows of launches before the last ProfilerStep only."""
    path = real_traces / "torchrec_4xv100" / "1f15a31_24051.1698955364366973038.pt.trace.json.gz"
    events = document(path)["traceEvents"]
    last = profiler_steps(events)[-1]
    exact = account(operations(events))
    theirs, hidden = of_hta(trace_analysis, path, last_step=False)
    expected = as_hta(events, departures(events, until_us=last["ts"]))
    assert theirs == expected[:3]
    assert hidden == pytest.approx(hidden_percent(expected), abs=0.0051)
    assert theirs[0] < exact.window_ns - 1000 * last["dur"] / 2
    assert of_dptune(path) == exact


@pytest.mark.parametrize("file", [STEP, pytest.param(LIST_OF_GPU, marks=pytest.mark.thorough)])
def test_a_list_of_events_is_a_trace(real_traces: Path, trace_analysis: Any, tmp_path: Path, file: str) -> None:
    """HTA reads the same text as part of an object. Public lists of GPUs are large: of a small object its list."""
    path = real_traces / file
    if file == STEP:
        listed = tmp_path / "listed.json.gz"
        listed.write_bytes(
            gzip.compress(json.dumps(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]).encode())
        )
        path = listed
    events = document(path)
    with pytest.raises(AttributeError, match="'list' object"):
        of_hta(trace_analysis, path)
    exact = account(operations(events))
    assert of_dptune(path) == exact
    wrapped = tmp_path / "trace.json"
    wrapped.write_bytes(b'{"traceEvents": ' + gzip.decompress(path.read_bytes()) + b"}")
    assert of_hta(trace_analysis, wrapped)[0] == as_hta(events, departures(events))[:3]


@pytest.mark.parametrize(
    "file", disagreeing(lambda entry: entry["torch_trace"] and not entry["interval_union_figures"]["gpu_events"])
)
def test_a_run_without_a_gpu_has_an_account(real_traces: Path, file: str, trace_analysis: Any) -> None:
    """Of what it communicated at least, by gloo; what its threads compute is settled in `test_by_hand_cpu`."""
    path = real_traces / file
    events = timed(document(path)["traceEvents"])
    with pytest.raises(IndexError):
        of_hta(trace_analysis, path)
    gloo = [nanoseconds(event) for event in events if event["name"].startswith("gloo:")]
    devices = reading.measured(path).ranks[0].devices
    launches = any(event["cat"] == "cuda_runtime" for event in events)  # for a GPU that was not recorded
    assert [device.device for device in devices] == ([] if launches else ["cpu"])
    for device in devices:
        assert device.whole.communication_ns == sum(end - start for start, end in merged(gloo))
        assert device.whole.compute_ns > 0


@pytest.mark.parametrize("file", disagreeing(lambda entry: not entry["torch_trace"]))
def test_what_is_no_trace_of_torch_neither_reads(real_traces: Path, file: str, trace_analysis: Any) -> None:
    with pytest.raises(AttributeError):
        of_hta(trace_analysis, real_traces / file)
    with pytest.raises(DptuneError, match=r"is not a torch\.profiler trace"):
        load([real_traces / file])
