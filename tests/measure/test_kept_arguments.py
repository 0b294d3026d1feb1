"""Arguments of operators that are kept while a file is read are those that a second reading of the file finds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dptune.measure import measure
from dptune.measure.host import operator_arguments as of_operators
from dptune.measure.host.operator_arguments import OperatorArguments, operator_arguments
from dptune.trace import load
from dptune.trace.columns import NO_OPERATORS
from dptune.trace.kernels import OPERATOR_CATEGORIES
from dptune.trace.kineto import arguments, body, operators, text
from dptune.trace.kineto.decode import decode

COUNT = 6_000
SMALL_BYTES = 1_000_000  # of text


def event(at):
    """An operator, every third time another event; sizes repeat, but for some."""
    if at % 3 == 2:
        return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": at, "dur": 1, "args": {"stream": 7}}
    args = {
        "External id": at,
        "Sequence number": at // 2 if at % 5 else -1,
        "Input Dims": [[at % 7, 3], [at if at % 4 == 1 else 0]],
        "Input type": ["float", ""],
        "Concrete Inputs": ["", "[1, 2]"],
        "Input Strides": [[1, 1], []],
    }
    if at % 11 == 0:
        del args["Sequence number"], args["Input Dims"]
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 1, "args": args}


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file of many blocks, one of which holds an event that no parser takes."""
    for module in (text, body):
        monkeypatch.setattr(module, "BLOCK_BYTES", 70_000)
    events = [event(at) for at in range(COUNT)]
    events[COUNT // 2]["name"] = "\x01"
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}).replace("\\u0001", "\x01"))
    return path


def operator_rows(trace):
    return trace.columns.rows(OPERATOR_CATEGORIES)


def compared(trace):
    """How many operators were kept. All are as another reading of the file finds them."""
    rows = operator_rows(trace)
    kept, read = (OperatorArguments.reading(each, rows) for each in (trace, replace(trace, operators=NO_OPERATORS)))
    assert kept.numbers.tolist() == read.numbers.tolist()
    assert kept.texts(kept.written) == read.texts(read.written)
    assert kept.arguments(rows) == read.arguments(rows)
    assert kept.elements.tolist() == read.elements.tolist()
    assert np.isin(trace.operators.row, rows).all()
    return len(trace.operators)


@pytest.mark.long
def test_all_but_those_of_the_damaged_block(path):
    trace = decode(path)
    kept = compared(trace)
    assert len(trace.blocks.begin) > 10
    assert 0.8 * len(operator_rows(trace)) < kept < len(operator_rows(trace))
    assert len(trace.operators.end) < kept / 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "most", "least_kept"),
    [("MOST_OPERATORS", 500, 500), ("MOST_BYTES", 9_000, 50), ("_MOST_KNOWN", 10, 3_000)],
)
def test_up_to_the_limits(path, monkeypatch, limit, most, least_kept):
    whole = decode(path).operators
    monkeypatch.setattr(operators, limit, most)
    trace = decode(path)
    assert least_kept <= compared(trace) <= len(whole)
    if limit == "_MOST_KNOWN":
        assert len(trace.operators.end) > len(whole.end)
    else:
        assert len(trace.operators) < len(whole)


@pytest.mark.long
def test_where_hardly_any_repeat_none_is_looked_for(path, monkeypatch):
    whole = decode(path).operators
    monkeypatch.setattr(operators, "_ENOUGH_KNOWN", 10)
    monkeypatch.setattr(operators, "_LEAST_REPEATED", 1.0)
    trace = decode(path)
    assert compared(trace) == len(whole)
    assert len(trace.operators.end) > 2 * len(whole.end)


@pytest.mark.long
def test_a_separator_in_a_text_separates_nothing(path):
    path.write_text(path.read_text().replace('"float"', '"fl\0at"', 1))
    assert "\0" in path.read_text()
    assert compared(decode(path)) > 1_000


def test_the_file_is_not_read_again(path):
    path.write_text(path.read_text().replace("\x01", "x"))
    trace = load([path], cached=False).ranks[0].light
    path.unlink()
    rows = operator_rows(trace)
    assert operator_arguments(trace, rows[-1:]) == [
        {key: value for key, value in event(COUNT - 2)["args"].items() if key.startswith(("Input", "Concrete"))}
    ]


def test_of_more_operators_than_are_read_at_once(path, monkeypatch):
    """Of a large trace each figure would read the file again."""
    monkeypatch.setattr(of_operators, "MOST", COUNT // 2)
    trace = decode(path)
    assert OperatorArguments.of(replace(trace, operators=NO_OPERATORS)) is None
    assert len(OperatorArguments.of(trace).rows) > COUNT // 2


@pytest.mark.long
def test_of_one_trace_of_several_and_of_no_record(path):
    other = path.with_name("rank1.json")
    other.write_text(path.read_text())
    run = load([path, other], cached=False)
    assert [bool(len(rank.light.operators)) for rank in run.ranks] == [True, False]
    assert not len(run.ranks[0].light.head().operators)
    digested = load([path], digest=lambda _rank, _facts, _detail: lambda trace: len(trace.operators), cached=False)
    assert [rank.digest for rank in digested.digested] == [0]


@pytest.mark.parametrize(
    ("largest", "least"), [(SMALL_BYTES, 15), pytest.param(8 * SMALL_BYTES, 40, marks=pytest.mark.thorough)]
)
def test_real_traces(real_traces, largest, least):
    entries = json.loads((real_traces / "MANIFEST.json").read_text())
    small = [each for each in entries if each["torch_trace"] and each["uncompressed_bytes"] <= largest]
    kept = [compared(decode(real_traces / each["file"])) for each in small]
    assert sum(map(bool, kept)) > least


def test_measuring_reads_the_file_no_second_time(real_traces, monkeypatch):
    run = load([real_traces / "single_gpu" / "d4c3f21_trace_04.json.gz"], cached=False)
    monkeypatch.setattr(arguments.source, "opened", None)
    measured = measure(run)
    assert measured.efficiency.flops > 0
    rank = run.ranks[0]
    without = replace(run, ranks=[replace(rank, light=replace(rank.light, operators=NO_OPERATORS))])
    with pytest.raises(TypeError, match="not callable"):
        measure(without)
