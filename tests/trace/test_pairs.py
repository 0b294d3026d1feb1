"""Events written as pairs, of phase B where they begin and phase E where they end, against complete ones (phase X)."""

import gzip
import json
import random

import pytest
from tests.benchmarks.figures import figures

from dptune.measure import measure
from dptune.trace import load
from dptune.trace.kineto import builder
from dptune.trace.kineto.arguments import arguments
from dptune.trace.kineto.decode import decode

from .conftest import RUNS
from .plain import differences, document, nanoseconds, read
from .test_every_column import WAYS, by_small_blocks

RANK = RUNS / "late-rank" / "rank-00000.trace.json.gz"
OPERATOR = {"cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}


def paired(events):
    """The events, where all of a thread nest as pairs of phases B and E."""
    threads, others = {}, []
    for event in events:
        if event.get("ph") == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            others.append(event)
    return [*others, *(each for thread in threads.values() for each in pairs(thread))]


def pairs(thread):
    """As pairs, in the order of their times; as they are where two of them overlap without nesting."""
    spans = [(at := nanoseconds(each["ts"]), at + nanoseconds(each.get("dur", 0)), each) for each in thread]
    spans.sort(key=lambda span: (span[0], -span[1]))
    written, around = [], []
    for start, end, event in spans:
        while around and (around[-1][0] < start or around[-1][0] == start < end):
            written.append(ending(*around.pop()))
        if around and around[-1][0] < end:
            return thread
        written.append({**{key: event[key] for key in event if key != "dur"}, "ph": "B"})
        around.append((end, event))
    return [*written, *(ending(*each) for each in reversed(around))]


def ending(end_ns, event):
    return {"ph": "E", "pid": event["pid"], "tid": event["tid"], "name": event["name"], "ts": end_ns / 1000}


def write(path, events, header=None):
    path.write_text(json.dumps({"schemaVersion": 1, **(header or {}), "traceEvents": events}, default=float))
    return path


@pytest.mark.long
def test_a_recorded_rank_written_as_pairs_has_the_same_figures(tmp_path):
    trace = document(gzip.decompress(RANK.read_bytes()))
    events = paired(trace.pop("traceEvents"))
    halves = sum(event["ph"] == "B" for event in events)
    assert halves > 1_300
    assert sum(event["ph"] == "E" for event in events) == halves
    again = write(tmp_path / "pairs.json", events, trace)
    assert not differences(decode(again), read(again))[0]
    run, of_pairs = load([RANK]), load([again])
    assert [finding.code for finding in of_pairs.findings] == [finding.code for finding in run.findings]
    expected, found = (dict(figures(measure(each).model_dump(mode="json"))) for each in (run, of_pairs))
    assert {path for path in expected if expected[path] != found.get(path)} == {"ranks[0].events", "ranks[0].source"}
    assert found["ranks[0].events"] == expected["ranks[0].events"] + halves


@pytest.mark.long
@pytest.mark.parametrize("way", [None, *WAYS])
def test_random_pairs_are_read_as_a_plain_reading_has_them(tmp_path, monkeypatch, way):
    draw = random.Random(5)
    events = []
    for at in range(2_000):
        thread = {"pid": draw.choice((1, "1", 2)), "tid": draw.choice((1, 2))}
        name = draw.choice(("aten::mm", "aten::add", "step", None))
        phase = draw.choice("BBBEEEX")
        args = {"External id": at, "Input Dims": [[at]]} if phase != "E" else {}
        collective = {"Collective name": "allreduce", "In msg nelems": at} if phase != "E" and not at % 20 else {}
        timed = {"dur": 1.5} if phase == "X" else {}
        named = {} if name is None and phase == "E" else {"name": name or "record_param_comms"}
        events.append({"ph": phase, "cat": "cpu_op", **named, **thread, "ts": at, **timed, "args": args | collective})
    path = write(tmp_path / "t.json", events)
    if way:
        way(monkeypatch)
    trace, plain = decode(path), read(path)
    assert not differences(trace, plain)[0]
    assert len(trace.columns) > 500
    halves, closed = sum(event["ph"] != "X" for event in events), len(plain.columns["ts_ns"])
    assert plain.cut == halves - 2 * (closed - sum(event["ph"] == "X" for event in events)) > 0
    cut = next(finding for finding in trace.findings if finding.code == "events-cut")
    assert cut.text == f"t.json: {plain.cut:,} of 2,000 events have no matching begin or end (phases B and E): left out"
    rows = range(0, len(trace.columns), 7)
    assert arguments(trace, rows) == [json.loads(json.dumps(plain.arguments[row])) for row in rows]


def half(phase, ts, name="aten::mm", **more):
    return {**OPERATOR, "ph": phase, "ts": ts, "name": name, **more}


def test_an_end_without_a_name_ends_the_innermost(tmp_path):
    outer, inner = half("B", 1, "outer"), half("B", 2, "inner")
    ends = [{"ph": "E", "pid": 1, "tid": 1, "ts": ts} for ts in (4.25, 9)]
    columns = decode(write(tmp_path / "t.json", [outer, inner, *ends])).columns
    assert columns.names_of(range(2)) == ["outer", "inner"]
    assert columns.ts_ns.tolist() == [1_000, 2_000]
    assert columns.dur_ns.tolist() == [8_000, 2_250]
    assert columns.position.tolist() == [0, 1]


def test_pairs_of_other_threads_and_processes_do_not_meet(tmp_path):
    events = [half("B", 1), half("E", 5, tid=2), half("E", 6, pid=2), half("E", 8)]
    trace = decode(write(tmp_path / "t.json", events))
    assert trace.columns.dur_ns.tolist() == [7_000]
    assert [finding.code for finding in trace.findings] == ["events-cut"]


def test_what_began_and_did_not_end_is_cut_and_has_no_duration(tmp_path):
    cut = half("B", 3, "aten::cut")
    sound = [half("B", 1, "aten::outer"), half("B", 2), half("E", 3), cut, half("E", 9, "aten::outer")]
    trace = decode(write(tmp_path / "t.json", [*sound, half("B", 10, "ProfilerStep#3")]))
    assert trace.columns.names_of(range(2)) == ["aten::outer", "aten::mm"]
    (finding,) = trace.findings
    assert (finding.code, finding.level) == ("events-cut", "partial")
    assert finding.text == "t.json: 2 of 6 events have no matching begin or end (phases B and E): left out"


def test_where_most_are_cut_there_is_no_verdict(tmp_path):
    begun = [half("B", at) for at in range(20)]
    (finding,) = decode(write(tmp_path / "t.json", [{**OPERATOR, "ph": "X", "ts": 0, "dur": 1}, *begun])).findings
    assert (finding.code, finding.level) == ("events-cut", "unjudgeable")


def test_a_pair_without_a_usable_time_is_unreadable(tmp_path):
    events = [half("B", None), half("E", 5), half("B", 6), half("E", "x"), half("B", 7), half("E", 8)]
    trace = decode(write(tmp_path / "t.json", events))
    assert trace.columns.dur_ns.tolist() == [1_000]
    assert [finding.code for finding in trace.findings] == ["events-unreadable"]


def test_halves_may_be_in_different_blocks(tmp_path, monkeypatch):
    by_small_blocks(monkeypatch)
    inner = [{**OPERATOR, "ph": "X", "ts": 2, "dur": 1, "args": {"Input Dims": [[at]] * 200}} for at in range(300)]
    path = write(tmp_path / "t.json", [half("B", 1, "outer"), *inner, half("E", 9), half("E", 9, "outer")])
    trace = decode(path)
    assert len(trace.blocks.begin) > 3
    assert trace.columns.dur_ns.tolist() == [8_000, *[1_000] * 300]
    kept = trace.operators
    assert len(kept) > 100
    dims = [json.loads(texts[0])[0][0] for texts in kept.texts(kept.text)]
    assert dims == [position - 1 for position in trace.columns.position[kept.row].tolist()]


def test_more_open_ones_than_any_program_has_end_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "MOST_OPEN", 100)
    by_small_blocks(monkeypatch)
    events = [half("B", 1), half("E", 2), *(half("B", 3, args={"x": "y" * 1_000}) for _ in range(300))]
    assert "reading stopped at the limit of 100 events without an end (phase B without E)" in (
        decode(write(tmp_path / "t.json", events)).partial
    )
