"""Arguments that are no column are read from the file when they are asked for, from any block of it."""

import gzip
import json
import random

import msgspec
import pytest

from dptune.errors import TraceError
from dptune.trace.kineto import body, text
from dptune.trace.kineto.arguments import arguments, chosen_arguments
from dptune.trace.kineto.decode import decode
from dptune.trace.kineto.schema import ABSENT


class Chosen(msgspec.Struct):
    index: msgspec.Raw = msgspec.field(default=ABSENT, name="Ev Idx")
    other: msgspec.Raw = ABSENT


def trace_of(path, count, odd=()):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{at}", "pid": 1, "tid": 1, "ts": at, "dur": 1, "args": {"Ev Idx": at}}
        if at % 3
        else {"ph": "s", "id": at, "pid": 1, "tid": 1, "ts": at, "cat": "ac2g", "name": "ac2g"}
        for at in range(count)
    ]
    for at in odd:
        events[at]["name"] = "\x01"  # written raw: no parser takes it, and its block is read event by event
    written = json.dumps({"schemaVersion": 1, "traceEvents": events}).replace("\\u0001", "\x01").encode()
    path.write_bytes(gzip.compress(written) if path.suffix == ".gz" else written)
    return decode(path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("odd", [(), (100, 7_000)])
def test_rows_of_several_blocks_in_any_order(tmp_path, monkeypatch, name, odd):
    for module in (text, body):
        monkeypatch.setattr(module, "BLOCK_BYTES", 70_000)
    trace = trace_of(tmp_path / name, 10_000, odd)
    assert len(trace.blocks.begin) > 10
    rows = [*random.Random(1).sample(range(len(trace.columns)), 500), 5, 5]
    found = arguments(trace, rows)
    assert [args["Ev Idx"] for args in found] == trace.columns.position[rows].tolist()
    read = [pair for places, each in chosen_arguments(trace, rows, Chosen) for pair in zip(places, each, strict=True)]
    assert sorted(place for place, _ in read) == list(range(len(rows)))
    assert all(int(bytes(each.index)) == found[place]["Ev Idx"] and each.other == ABSENT for place, each in read)


def test_values_that_are_no_events_shift_no_arguments(tmp_path):
    event = '{"ph":"X","cat":"cpu_op","name":"%s","pid":1,"tid":1,"ts":1,"dur":2,"args":{"Ev Idx":%d}}'
    path = tmp_path / "t.json"
    path.write_text(
        '{"schemaVersion":1,"traceEvents":[1,' + event % ("a", 5) + ",null,[]," + event % ("\x01", 7) + "]}"
    )
    assert arguments(decode(path), [0, 1]) == [{"Ev Idx": 5}, {"Ev Idx": 7}]


def test_an_event_without_arguments_has_none(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(
        '{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"c","name":"n","pid":1,"tid":1,"ts":1,"dur":2}]}'
    )
    assert arguments(decode(path), [0]) == [{}]
    assert arguments(decode(path), []) == []
    assert [each for _, each in chosen_arguments(decode(path), [0], Chosen)] == [[Chosen()]]
    assert list(chosen_arguments(decode(path), [], Chosen)) == []


@pytest.mark.parametrize("text", ["", " " * 10_000])
def test_a_file_that_changed_is_told(tmp_path, text):
    trace = trace_of(tmp_path / "t.json", 30)
    (tmp_path / "t.json").write_text("{" + text)
    with pytest.raises(TraceError, match=r"cannot read .*t\.json again: it (changed|became shorter) since it was read"):
        arguments(trace, [5])
    with pytest.raises(TraceError, match="since it was read"):
        list(chosen_arguments(trace, [5], Chosen))


def test_real_traces(real_traces):
    """Against json.loads, for some rows of each file."""
    for path in sorted((real_traces / "hta_small").glob("*.gz")):
        trace = decode(path)
        plain = json.loads(gzip.decompress(path.read_bytes()))
        events = plain if isinstance(plain, list) else plain["traceEvents"]
        rows = random.Random(2).sample(range(len(trace.columns)), min(50, len(trace.columns)))
        expected = [events[at].get("args", {}) for at in trace.columns.position[rows].tolist()]
        assert arguments(trace, rows) == expected
