"""Whatever the bytes are, the outcome is a run with its figures or one sentence: never another exception."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptune.errors import DptuneError
from dptune.measure import measure
from dptune.trace import load
from dptune.trace.kineto import body, text
from dptune.trace.kineto.arguments import arguments
from dptune.trace.kineto.body import Body
from dptune.trace.kineto.decode import decode
from dptune.trace.kineto.repair import repair

TRACE = json.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "traceEvents": [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0.5, "dur": 99},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
            | {"args": {"correlation": 5}},
            {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "pid": 0, "tid": 7, "ts": 9, "dur": 9}
            | {
                "args": {
                    "device": 0,
                    "correlation": 5,
                    "Collective name": "allreduce",
                    "In msg nelems": 8,
                    "dtype": "Float",
                }
            },
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": 30, "dur": 9}
            | {"args": {"device": 0, "correlation": 5, "bytes": 8}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
        ],
    }
).encode()
ODD = [None, True, -1, 2**70, 1e308, "", "x", "1e5", [], [1], {}, {"a": 1}, "ProfilerStep#" + "9" * 5000, "5" * 5000]


def outcome(path):
    try:
        run = load([path])
    except DptuneError as error:
        return f"{error.message}; {error.hint}"
    return measure(run).model_dump_json()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    edits=st.lists(st.tuples(st.integers(0, len(TRACE) - 1), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, len(TRACE)),
)
def test_bytes_changed_and_lost(tmp_path, edits, cut):
    damaged = bytearray(TRACE)
    for at, byte in edits:
        damaged[at] = byte
    path = tmp_path / "t.json"
    path.write_bytes(bytes(damaged[: cut or None]))
    assert len(outcome(path)) > 20


@pytest.mark.long
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_values_of_other_types(tmp_path, data):
    document = json.loads(TRACE)
    target = data.draw(st.sampled_from([document, document["distributedInfo"], *document["traceEvents"]]))
    target = target.get("args", target) if data.draw(st.booleans()) else target
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(st.sampled_from(ODD))
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    assert len(outcome(path)) > 20


@pytest.mark.parametrize("number", ["9" * 5000, "1e400", "-9223372036854775807", "[" * 5000 + "]" * 5000])
@pytest.mark.parametrize("field", [b'"ts": 9', b'"dur": 9', b'"correlation": 5', b'"world_size": 1', b'"pid": 0'])
def test_numbers_beyond_any_range(tmp_path, number, field):
    path = tmp_path / "t.json"
    path.write_bytes(TRACE.replace(field, field.split(b":")[0] + b": " + number.encode()))
    assert outcome(path)


KERNEL = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5,"dur":2,"args":{"stream":7,"device":0%s}}'


def read(tmp_path, *events: bytes, after: bytes = b"]}"):
    path = tmp_path / "t.json"
    path.write_bytes(b'{"schemaVersion":1,"traceEvents":[' + b",".join(events) + after)
    return decode(path)


@pytest.mark.parametrize(
    "argument", [b'"bytes":1e400', b'"bytes":' + b"9" * 5000, b'"dtype":"\\ud800"', b'"Process Group Name":"\xff"']
)
def test_one_bad_argument_takes_no_other_with_it(tmp_path, argument):
    columns = read(tmp_path, KERNEL % (b"," + argument + b',"correlation":5'), KERNEL % b"").columns
    assert columns.stream.tolist() == [7, 7]
    assert columns.correlation.tolist() == [5, -1]
    assert columns.total_bytes.tolist() == [-1, -1]


@pytest.mark.parametrize("time", [b"9223372036854775.808", b"9999999999999999", b'"1_000"', b"4611686018427387.905"])
def test_a_time_that_is_none_is_left_out_and_said_to_be(tmp_path, time):
    trace = read(tmp_path, KERNEL.replace(b'"ts":5', b'"ts":' + time) % b"", KERNEL % b"")
    assert trace.columns.ts_ns.tolist() == [5000]
    assert "1 of 2 events could not be read" in trace.findings[0].text


def test_events_after_the_closing_bracket_are_said_to_be_lost(tmp_path):
    trace = read(tmp_path, KERNEL % b"", KERNEL % b"", after=b"], " + KERNEL % b"" + b"]}")
    assert len(trace.columns) == 2
    assert "the list of events is closed and more of them follow" in trace.partial


REST = b'],"distributedInfo":{"rank":3,"world_size":4},"baseTimeNanoseconds":1700000000000000000,"traceName":"t"}'


@pytest.mark.parametrize(
    ("kept", "rank", "base_ns"),
    [
        (b"]", None, 0),
        (b'],"distributedInfo":{"rank":3,"world', None, 0),
        (b'],"distributedInfo":{"rank":3,"world_size":4}', 3, 0),
        (b'],"distributedInfo":{"rank":3,"world_size":4},"baseTimeNanoseconds":17000000', 3, 0),
        (REST[: REST.index(b',"traceName')], 3, 0),  # that number may have had more digits
        (REST[: REST.index(b'"traceName')], 3, 1_700_000_000_000_000_000),
        (REST[:-2], 3, 1_700_000_000_000_000_000),
        (REST[:-1], 3, 1_700_000_000_000_000_000),
    ],
)
def test_a_cut_after_the_events_is_said_and_whole_values_are_read(tmp_path, kept, rank, base_ns):
    trace = read(tmp_path, KERNEL % b"", KERNEL % b"", after=kept)
    assert "of what follows the events is missing" in trace.partial
    assert (len(trace.columns), trace.distributed.rank, trace.base_ns) == (2, rank, base_ns)


@pytest.mark.parametrize("after", [REST, REST + b" \n", REST.replace(b',"t', b', ,"t'), b"]}", b" ] , } ", b"],\n}"])
def test_a_whole_rest_is_no_damage(tmp_path, after):
    assert read(tmp_path, KERNEL % b"", after=after).partial == ""


@pytest.mark.parametrize("value", [b"NaN", b'"C:\\x"', b'"\x01"', b"-inf", b"[{},[1]]", b"[1,]"])
def test_a_careless_rest_is_read(tmp_path, value):
    after = REST[:-1] + b',"deviceProperties":[{"id":0,"name":"A"}],"x":%s}' % value
    trace = read(tmp_path, KERNEL % b"", after=after)
    assert (trace.partial, trace.distributed.rank, len(trace.devices)) == ("", 3, 1)


@pytest.mark.parametrize("junk", [b"garbage", b"\n[" + KERNEL % b"" + b"]", b"\0\0"])
def test_what_follows_a_trace_is_said(tmp_path, junk):
    path = tmp_path / "t.json"
    for whole, what in ((b"[%s]", "the list of events"), (b'{"schemaVersion":1,"traceEvents":[%s]}', "the trace")):
        path.write_bytes(whole % (KERNEL % b"") + junk)
        trace = decode(path)
        assert trace.events == 1
        assert f"where trailing data follows {what}" in trace.partial


NUMBERS = [b"1e400", b"-1e400", b"9" * 5000, b"1700000000000000.1234", b"1.50", b"1e3", b"12"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("again", [b"", b'"ph":"X",'])
@pytest.mark.parametrize("field", [b'"pid":0', b'"tid":7', b'"cat":"kernel"', b'"name":"k"'])
def test_a_word_that_is_a_number_is_its_text(tmp_path, field, number, again):
    odd = KERNEL.replace(field, again + field.split(b":")[0] + b":" + number) % b""
    columns = read(tmp_path, KERNEL % b"", odd, KERNEL % b"").columns
    assert len(columns) == 3
    ids = {b'"pid"': columns.pid_id, b'"tid"': columns.tid_id, b'"cat"': columns.category_id}
    words = {b'"cat"': columns.categories, b'"name"': columns.names}
    key = field.split(b":")[0]
    assert words.get(key, columns.labels)[ids.get(key, columns.name_id)[1]] == number.decode()
    assert columns.stream.tolist() == [7, 7, 7]


@pytest.mark.parametrize("phase", [b'"ph":1e400', b'"ph":5', b'"ph":null', b'"ph":"XX"', b'"x":1'])
def test_an_event_without_a_known_phase_is_unreadable(tmp_path, phase):
    trace = read(tmp_path, KERNEL % b"", KERNEL.replace(b'"ph":"X"', phase) % b"", KERNEL % b"")
    assert (trace.events, len(trace.columns)) == (3, 2)
    (finding,) = trace.findings
    assert finding.text == "t.json: 1 of 3 events could not be read and were left out"


ELEMENTS = [b"1", b"-2.5e3", b"null", b"true", b'"x"', b'"},{"', b"[]", b'[{"ph":"X"},[1]]', b"NaN"]


@pytest.mark.parametrize("element", ELEMENTS)
def test_an_element_that_is_no_object_is_skipped_and_the_rest_read(tmp_path, element):
    trace = read(tmp_path, element, KERNEL % b"", element, KERNEL % b',"correlation":9', element)
    assert (trace.events, trace.columns.position.tolist(), trace.partial) == (5, [1, 3], "")
    (finding,) = trace.findings
    assert finding.level == "partial"
    assert finding.text == "t.json: 3 of 5 traceEvents elements are not JSON objects and were skipped"
    assert arguments(trace, [1]) == [{"stream": 7, "device": 0, "correlation": 9}]


@pytest.mark.parametrize("size", [64, 71, 90, 110])
def test_elements_across_blocks(tmp_path, monkeypatch, size):
    """Wherever a block of text ends: an element is not taken before the comma or bracket that ends it."""
    for module, name in ((text, "BLOCK_BYTES"), (text, "_PACKED_BYTES"), (body, "BLOCK_BYTES")):
        monkeypatch.setattr(module, name, size)
    trace = read(tmp_path, *ELEMENTS, KERNEL % b"", *ELEMENTS)
    assert (trace.events, trace.columns.position.tolist(), trace.partial) == (19, [9], "")


@pytest.mark.parametrize("rest", [b"12", b"nul", b'"x', b"[[", b'"schemaVersion": 1, "traceEvents": [', b"nonsense, "])
def test_a_piece_of_an_element_is_where_a_trace_breaks_off(tmp_path, rest):
    trace = read(tmp_path, KERNEL % b"", KERNEL % b"", after=b"," + rest)
    assert len(trace.columns) == 2
    assert trace.partial.startswith("after 2 whole events, at byte ")


@pytest.mark.long
def test_mending_what_is_never_closed_takes_no_longer_than_it_is_long():
    """Looked for anew at each quote, the end of the string would take hours."""
    damaged = b'{"x":nan,"note":"' + b'\\"' * 500_000
    assert repair(damaged) == damaged.replace(b"nan", b'"nan"')


def test_an_allocation_without_arguments_is_none(tmp_path):
    """Of its kind torch writes none; taken as one of -1 bytes, it would be a free."""
    memory = b'{"ph":"i","name":"[memory]","pid":0,"tid":0,"ts":5%s}'
    trace = read(tmp_path, KERNEL % b"", memory % b"", memory % b',"args":{"Bytes":8,"Addr":-9223372036854775808}')
    assert (trace.memory.size_bytes.tolist(), trace.memory.address.tolist()) == ([8], [-1])


def test_what_stands_after_the_events_is_not_taken_for_one(tmp_path, monkeypatch):
    """The list closes inside a block; the block is decoded at once all the same."""
    monkeypatch.setattr(Body, "_one_by_one", None)
    devices = b'], "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]}'
    trace = read(tmp_path, KERNEL % b"", KERNEL % b"", after=devices)
    assert (len(trace.columns), [device.name for device in trace.devices], trace.partial) == (2, ["A", "B"], "")


def test_a_name_that_is_mended_keeps_what_was_sound_in_it(tmp_path):
    names = read(tmp_path, KERNEL.replace(b'"k"', b'"\x01\\ud83d\\ude00\\\\ud800\\ud800\\q"') % b"").columns.names
    assert names == ("\x01😀\\ud800\ufffd\\q",)


def test_a_trace_whose_first_event_is_cut_is_not_said_to_be_empty(tmp_path):
    with pytest.raises(DptuneError, match="breaks off before its first whole event, at byte 34 of its text"):
        read(tmp_path, KERNEL[:50], after=b"")


@pytest.mark.parametrize(
    "value", [b"1", b"-2.5e3", b"null", b"true", b'"x, ]}"', b"[]", b'[{"ph": "X"}]', b"[" * 9_000 + b"]" * 9_000]
)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_value_that_is_no_event_takes_no_event_with_it(tmp_path, value, at):
    events = [KERNEL % b""] * 4
    events[at:at] = [value, value]
    trace = read(tmp_path, *events)
    assert (trace.events, len(trace.columns), trace.partial) == (6, 4, "")
    assert trace.columns.position.tolist() == [number for number in range(6) if number not in (at, at + 1)]
    assert "2 of 6 traceEvents elements are not JSON objects and were skipped" in trace.findings[0].text


@pytest.mark.parametrize("value", [b'"key": 1', b"1 2", b'"never closed', b"[1, 2"])
def test_what_is_no_whole_value_is_where_the_trace_breaks_off(tmp_path, value):
    trace = read(tmp_path, KERNEL % b"", value, KERNEL % b"")
    assert len(trace.columns) == 1
    assert trace.partial.startswith("after 1 whole events, at byte ")


@pytest.mark.long
@pytest.mark.parametrize("value", [b"1,", b"[1,", b"[],["])
def test_endless_values_that_are_no_events_end_the_reading(tmp_path, value):
    """Each of them walked to the end of the file, anew for each block, would take hours."""
    with pytest.raises(DptuneError, match=r"breaks off before its first whole event|none of the .* events"):
        read(tmp_path, value * 400_000)


def test_a_trace_of_values_that_are_no_events_is_none(tmp_path):
    with pytest.raises(DptuneError, match=r"none of the 3 events of .* can be read"):
        read(tmp_path, b"1", b"[2]", b'"x"')


def test_shapes_nested_as_deep_as_json_may_be(tmp_path):
    """Of lists in lists around one shape of 8 floats the size is 32 bytes, however many there are."""
    deep = 900
    dims = "[" * deep + "[8]" + "]" * deep
    gloo = '{"ph":"X","cat":"user_annotation","name":"gloo:all_reduce","pid":1,"tid":2,"ts":20,"dur":9,"args":'
    gloo += f'{{"Input Dims":[{dims}],"Input type":["float"]}}}}'
    events = [
        '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":1,"tid":1,"ts":0,"dur":99}',
        '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":5}',
        gloo,
    ]
    (tmp_path / "0.json").write_text(f'{{"schemaVersion":1,"traceEvents":[{",".join(events)}]}}')
    (found,) = measure(load([tmp_path / "0.json"])).collectives
    assert found.message_bytes == 32


COUNTER = b'{"ph":"C","name":"load","pid":0,"tid":0,"ts":%s,"args":%s}'
ODD_COUNTERS = ((b'"x"', b'{"a":1}'), (b"6", b"[1]"), (b"6", b"null"), (b"6", b'{"a":"1","b":true,"c":null}'))


@pytest.mark.parametrize("beside", [b"", KERNEL % b',"correlation":1e400'])
def test_counters_whose_values_are_none_are_left_out(tmp_path, beside):
    """Whether all events of a block are sound, or each is looked at by itself."""
    odd = [COUNTER % each for each in ODD_COUNTERS]
    events = [KERNEL % b"", COUNTER % (b"5", b'{"a":1,"b":2.5}'), *odd, COUNTER % (b"7", b'{"a":3}')]
    counters = read(tmp_path, *events, *filter(None, [beside])).counters
    found = zip(counters.ts_ns.tolist(), counters.series.tolist(), counters.value.tolist(), strict=True)
    assert [(at, counters.words[series], value) for at, series, value in found] == [
        *((5000, "load: a", 1.0), (5000, "load: b", 2.5), (7000, "load: a", 3.0))
    ]


@pytest.mark.parametrize("said", [b"[1]", b'{"x":1}', b'"main"', b"null"])
def test_a_thread_that_is_named_by_nothing(tmp_path, said):
    name = b'{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":%s}'
    trace = read(tmp_path, KERNEL % b"", name % said, name % b'{"name":"main"}')
    assert trace.thread_names == {("1", "1"): "main"}


@pytest.mark.parametrize("number", [b'"External id":%s', b'"external id":%s', b'"bytes":%s', b'"correlation":%s'])
def test_numbers_that_are_just_too_large(tmp_path, number):
    columns = read(tmp_path, KERNEL % (b"," + number % b"9223372036854775808"), KERNEL % b"").columns
    assert columns.stream.tolist() == [7, 7]
    assert columns.correlation.tolist() == columns.external_id.tolist() == columns.total_bytes.tolist() == [-1, -1]
