"""Fields of the wrong type are counted, named, and count as missing; a trace with many of them gets no verdict."""

import json

import pytest

from dptune.trace import load
from dptune.trace.kineto.clock import LIMIT_NS
from dptune.trace.kineto.decode import decode

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2}
OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 2}
SOUND = {"stream": 7, "device": 0, "correlation": 5}
REDUCE = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float", "Group size": 2}


def read(folder, *events):
    path = folder / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return decode(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("name", value) for value in (5, None, True, ["k"], {"a": 1})),
        *(("cat", value) for value in (5, None, ["kernel"])),
        *(("tid", value) for value in (True, [1], {})),
        *(("args", value) for value in ([1, 2], "x", 5, None)),
    ],
)
def test_a_field_of_the_wrong_type_is_named(tmp_path, key, value):
    trace = read(tmp_path, {**KERNEL, "args": SOUND}, {**KERNEL, "args": SOUND, key: value})
    assert len(trace.columns) == 2
    (finding,) = trace.findings
    assert (finding.code, finding.level) == ("fields-unreadable", "partial")
    assert finding.text == f"t.json: 1 of 2 events has unreadable fields (`{key}`), treated as missing"


@pytest.mark.parametrize("key", ["stream", "device", "correlation", "External id", "external id", "bytes"])
@pytest.mark.parametrize("value", ["x", "", 1.5, True, [], {}, 2**70, float("nan"), float("inf")])
def test_a_number_of_the_wrong_type_is_named(tmp_path, key, value):
    trace = read(tmp_path, {**KERNEL, "args": SOUND}, {**KERNEL, "args": SOUND | {key: value}})
    (finding,) = trace.findings
    assert finding.text == f"t.json: 1 of 2 events has unreadable fields (`{key}`), treated as missing"


@pytest.mark.parametrize("value", [-1, 0, 7, "7", "-1", 7.0, None])
def test_numbers_as_writers_write_them_are_no_fault(tmp_path, value):
    assert read(tmp_path, {**KERNEL, "args": SOUND | {"stream": value, "bytes": value}}).findings == ()


@pytest.mark.parametrize("odd", [{}, {"tid": 1.5}])
def test_a_negative_size_is_named_whichever_way_the_event_is_read(tmp_path, odd):
    trace = read(tmp_path, {**KERNEL, "args": {"bytes": -8}}, {**KERNEL, **odd})
    assert trace.columns.total_bytes.tolist() == [-1, -1]
    assert [finding.text for finding in trace.findings] == [
        "t.json: 1 of 2 events has unreadable fields (`bytes`), treated as missing"
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            (key, value)
            for key in ("In msg nelems", "Out msg nelems")
            for value in (-5, -1, 2**38 + 1, 10**40, "x", [])
        ),
        *(("Group size", value) for value in (0, -2, "x", True)),
        *(("dtype", value) for value in (7, ["Float"])),
        *(("Collective name", value) for value in (7, ["allreduce"])),
        ("Process Group Ranks", 5),
        ("Process Group Name", ["0"]),
        ("Seq", "x"),
        ("Collective name", None),
    ],
)
def test_an_impossible_argument_of_a_collective_is_named(tmp_path, key, value):
    sound, wrong = ({**KERNEL, "args": SOUND | REDUCE | more} for more in ({}, {key: value}))
    (finding,) = read(tmp_path, sound, wrong, {**KERNEL, "args": SOUND}).findings
    assert (finding.code, finding.level) == ("collectives-unreadable", "partial")
    assert finding.text == (
        f"t.json: 1 of 2 collective events has invalid or unreadable arguments (`{key}`), treated as missing"
    )


@pytest.mark.parametrize("dims", [[[-5]], [["x"]], "x", [[1.5]], {"a": 1}])
def test_impossible_shapes_are_named(tmp_path, dims):
    gloo = {**KERNEL, "cat": "user_annotation", "name": "gloo:all_reduce"}
    sound, wrong = ({**gloo, "args": {"Input Dims": shapes, "Input type": ["float"]}} for shapes in ([[8], []], dims))
    (finding,) = read(tmp_path, sound, wrong).findings
    assert finding.text == (
        "t.json: 1 of 2 collective events has invalid or unreadable arguments (`Input Dims`), treated as missing"
    )


@pytest.mark.parametrize(("wrong", "level"), [(3, "partial"), (4, "unjudgeable")])
@pytest.mark.parametrize("fault", [{"args": []}, {"dur": "x"}, {"dur": -5}])
def test_no_verdict_rests_on_a_trace_with_many(tmp_path, wrong, level, fault):
    sound = [KERNEL | {"ts": 10 * at} for at in range(20)]
    (finding,) = read(tmp_path, *sound, *[KERNEL | fault] * wrong).findings
    assert finding.level == level


def test_a_counter_beside_whole_events(tmp_path):
    counter = {"ph": "C", "name": "GPU", "pid": 0, "tid": 0, "ts": 6, "args": {"utilization": 50}}
    counters = read(tmp_path, KERNEL, counter, KERNEL).counters
    assert (counters.words, counters.ts_ns.tolist(), counters.value.tolist()) == (("GPU: utilization",), [6000], [50])


def test_an_event_that_ends_beyond_the_last_time_is_left_out(tmp_path):
    """It starts right before."""
    trace = read(tmp_path, KERNEL, {**KERNEL, "ts": LIMIT_NS // 1000, "dur": 5}, KERNEL)
    assert (trace.events, trace.columns.ts_ns.tolist()) == (3, [5000, 5000])


@pytest.mark.parametrize("event", [KERNEL, {**KERNEL, "args": []}], ids=["at once", "one by one"])
def test_an_allocation_without_its_size_is_none(tmp_path, event):
    allocation = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5}
    assert len(read(tmp_path, event, allocation, event).memory) == 0


def test_a_second_list_of_events_in_a_file(tmp_path):
    (tmp_path / "t.json").write_text(
        f'{{"schemaVersion": 1, "traceEvents": [{json.dumps(KERNEL)}], "traceEvents": [{json.dumps(KERNEL)}]}}'
    )
    trace = decode(tmp_path / "t.json")
    assert trace.events == 1
    assert trace.partial.endswith("where a second trace begins: the file holds two traces")


def test_a_sound_trace_has_no_fault(tmp_path):
    read(tmp_path, {**KERNEL, "args": SOUND | REDUCE | {"Seq": 3}})
    assert load([tmp_path / "t.json"]).findings == []


def _findings(folder, events):
    return {finding.code: finding for finding in read(folder, *events).findings}


def test_events_without_durations(tmp_path):
    """Asynchronous events, as converters write them."""
    pairs = [{"ph": phase, "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "id": 3, "ts": 5} for phase in "be"]
    found = _findings(tmp_path, pairs)["durations-missing"]
    assert found.level == "unjudgeable"
    assert found.text.startswith(
        "t.json: none of its 2 events is a complete event (phase X) or a pair (phases B and E): operators have no"
    )


@pytest.mark.parametrize(("unit", "scaled"), [(1, False), (1000, True)])
def test_times_in_nanoseconds(tmp_path, unit, scaled):
    """The format has microseconds: operators of 1 to 120 us, of which half take 60 us or less."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": unit * 200 * at, "dur": unit * at}
        for at in range(1, 121)
    ]
    found = _findings(tmp_path, events)
    assert ("times-scaled" in found) == scaled
    if scaled:
        assert "half of its operators take 60.5 ms or more" in found["times-scaled"].text


@pytest.mark.parametrize(
    ("event", "noun"),
    [(KERNEL | {"args": SOUND}, "device operations"), (OPERATOR | {"args": {"External id": 7}}, "operators")],
)
def test_a_file_that_holds_each_event_twice(tmp_path, event, noun):
    """As after it was joined with itself. What other streams and threads do at the same time is no repetition."""
    events = [event | {"ts": 10 * at} for at in range(6)]
    found = _findings(tmp_path, [*events, *events])["events-twice"]
    assert found.level == "unjudgeable"
    assert found.text == f"t.json: 6 of 12 {noun} are in the file twice, so counts and totals are too high"
    others = [each | {"tid": 9} for each in events]
    assert "events-twice" not in _findings(tmp_path, [*events, *others])
    assert _findings(tmp_path, [each | {"args": {}, "cat": "cpu_op"} for each in events]) == {}  # without numbers
    longer = [each | {"dur": 3} for each in events]
    assert "events-twice" not in _findings(tmp_path, [*events, *longer])
