"""Generated traces, read by dptune in every way it has and by a plain reader on json.loads and Decimal (plain.py)."""

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dptune.trace import load
from dptune.trace.kineto import body, text
from dptune.trace.kineto.arguments import arguments
from dptune.trace.kineto.clock import LIMIT_NS, all_nanoseconds, short_nanoseconds
from dptune.trace.kineto.decode import decode

from .plain import differences, document, reading

MOST = min(300, 4 * settings.default.max_examples)  # examples: 60 each time
SLOW = settings(deadline=None, max_examples=MOST, suppress_health_check=list(HealthCheck))


class Written(str):
    """JSON text to be put in as it is."""


class Pairs(list):
    """A JSON object as keys and values, in which a key may stand twice."""


def decimals(low, high, places):
    return st.decimals(low, high, allow_nan=False, places=places).map(lambda number: Written(f"{number:f}"))


# One of these for all times of a trace, as its writer has it ...
CLOCKS = (
    st.integers(0, LIMIT_NS // 1000 - 9).map(lambda number: Written(number)),
    st.integers(10**15, 2 * 10**15).map(lambda number: Written(number)),
    decimals(0, 10**13, 3),
    decimals(10**15, 2 * 10**15, 3),
    decimals(0, 10**6, 1),
)
# ... and what else may stand for a number of microseconds.
ODD_TIMES = st.one_of(
    decimals(-(10**7), 10**16, 9),
    st.integers(0, 10**9).map(lambda number: Written(f"{number // 1000}.{number % 1000:03}5")),  # between two
    st.integers(9223372036854770, 9223372036854780).map(lambda number: Written(f"{number}.808")),  # about 2**63 ns
    st.integers(4611686018427380, 4611686018427390).map(lambda number: Written(f"{number}.904")),  # about 2**62 ns
    st.sampled_from(["1.5e3", "1E+3", "25e-4", "35e-4", "1e400", "-0.0004", "-0", "0.0", "1e-400", "-7"]).map(Written),
    decimals(0, 10**13, 6).map(str),
    st.sampled_from([" 7 ", "-1.5", "1e3", "", "x", "1_0", "NaN", "0.0005"]),
    st.sampled_from([None, True, "", [], {}]),
)
WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(['},{"ph"', "}, {", "{", "}", "]", '"', "\\", '\\"', "}\n,\n{", "é\u2028\0", "", "ProfilerStep#1"]),
    st.sampled_from(["gloo:all_reduce", "c10d::allreduce_", "record_param_comms", "[memory]", "thread_name"]),
)
LABELS = st.one_of(st.integers(-1, 5), st.sampled_from(["1", "5", "stream 7", "CUDA functions"]))
ODD_LABELS = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=6), st.sampled_from([None, True, Written("1.5")]))
NUMBERS = st.one_of(st.integers(0, 10), st.integers(-(2**63) + 1, 2**63 - 1))
ODD_NUMBERS = st.one_of(
    st.integers(-(2**66), 2**66),
    st.integers(-(2**66), 2**66).map(str),
    st.sampled_from([2**63, -(2**63), 2**63 - 1, None, True, "", "-", "7 ", "1.0", "٣", [], {"stream": 1}]),
    st.sampled_from(["7.0", "7.5", "1e3", "1e400", "-0", "-0.0"]).map(Written),
)
NESTED = st.sampled_from([[], [[2, 3], [4]], [{"a": "}"}, {"ph": "X"}], {"stream": 9, "args": {}}, [{}, {}], "}, {"])
WHOLE = ("stream", "device", "correlation", "External id", "external id", "bytes", "Seq", "Group size", "In msg nelems")
SPOKEN = ("Collective name", "dtype", "Process Group Name", "Process Group Ranks")
ALLOCATION = ("Bytes", "Device Type", "Device Id", "Total Allocated", "Total Reserved", "Addr")


def args(numbers, words):
    known = dict.fromkeys((*WHOLE, *ALLOCATION), numbers) | dict.fromkeys(SPOKEN, words)
    other = dict.fromkeys(("Input Dims", "Input type", "stack", "ts"), NESTED)
    return st.fixed_dictionaries({}, optional=known | other | {"name": WORDS})


def complete(times, labels, numbers, words):
    known = {"ph": st.just("X"), "cat": words, "name": words, "pid": labels, "tid": labels, "ts": times}
    return st.fixed_dictionaries(known, optional={"dur": times, "args": args(numbers, words), "stack": NESTED})


def other(times, labels, numbers, words):
    said = st.one_of(args(numbers, words), st.dictionaries(WORDS, numbers, max_size=3))
    known = {"ph": st.sampled_from("iCMsftbe"), "pid": labels, "tid": labels, "ts": times}
    names = st.one_of(st.just("[memory]"), st.just("thread_name"), words)
    return st.fixed_dictionaries(known | {"name": names}, optional={"args": said, "dur": times})


@st.composite
def odd(draw):
    """An event of which some fields have another type, are missing, or stand twice."""
    words = st.one_of(WORDS, st.sampled_from([None, 5, True]))
    parts = (ODD_TIMES, st.one_of(LABELS, ODD_LABELS), st.one_of(NUMBERS, ODD_NUMBERS), words)
    event = draw(st.one_of(complete(*parts), other(*parts)))
    for key in draw(st.lists(st.sampled_from(sorted(event)), max_size=2)):
        event.pop(key, None)
    if draw(st.integers(0, 5)) == 0:
        event["ph"] = draw(st.sampled_from(["?", "", "XX", None, 5]))
    if draw(st.integers(0, 5)) == 0:
        event["args"] = draw(st.sampled_from([None, [], "x", 5]))
    return event


@st.composite
def traces(draw):
    """The text of a trace: mostly sound or mostly odd events, in one of the layouts, with any order of keys."""
    parts = (draw(st.sampled_from(CLOCKS)), LABELS, NUMBERS, WORDS)
    sound = st.one_of(complete(*parts), complete(*parts), other(*parts))
    drawn = draw(st.lists(draw(st.sampled_from([sound, st.one_of(sound, odd())])), max_size=20))
    last = {"ph": "X", "cat": "cpu_op", "name": "last", "pid": 1, "tid": 1, "ts": draw(parts[0]), "dur": Written("1.5")}
    drawn.insert(draw(st.integers(0, len(drawn))), last)
    turned, doubled = draw(st.booleans()), draw(st.booleans())
    events = [Pairs(draw(st.permutations(list(each.items()))) if turned else each.items()) for each in drawn]
    for event in draw(st.lists(st.sampled_from(events), max_size=3)) if doubled else ():
        event.insert(0, (draw(st.sampled_from(event))[0], draw(st.sampled_from([0, "x", None]))))
    layout = draw(st.sampled_from([(0, ", ", ": "), (0, ",", ":"), (1, ",", ": "), (4, " ,", " : ")]))
    if draw(st.integers(0, 3)) == 0:
        return written(events, *layout).encode()
    devices = ("deviceProperties", [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}])
    about = [("schemaVersion", 1), devices, ("distributedInfo", {"rank": 0}), ("note", draw(WORDS))]
    about.insert(draw(st.integers(0, len(about))), ("traceEvents", events))
    return written(Pairs(about), *layout).encode()


def written(value, indent, comma, colon, depth=1):
    """JSON in a layout."""
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, dict):
        value = Pairs(value.items())
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    inside = [
        f"{json.dumps(each[0])}{colon}{written(each[1], indent, comma, colon, depth + 1)}"
        if isinstance(value, Pairs)
        else written(each, indent, comma, colon, depth + 1)
        for each in value
    ]
    line = "\n" + " " * indent * depth if indent else ""
    left, right = "{}" if isinstance(value, Pairs) else "[]"
    return left + line + (comma + line).join(inside) + line + right


def small_blocks(patch, size):
    for module, name in ((text, "BLOCK_BYTES"), (text, "_PACKED_BYTES"), (body, "BLOCK_BYTES"), (body, "_TAIL_BYTES")):
        patch.setattr(module, name, size)


def by_tolerant_structs(patch):
    patch.setattr(body, "_TYPED", body._TOLERANT)
    patch.setattr(body.Builder, "typed", lambda _self, _events: False)


def one_by_one(patch):
    patch.setattr(body.Body, "_at_once", lambda _self: False)


@pytest.mark.thorough
@SLOW
@given(
    data=traces(),
    size=st.sampled_from([64, 300, 2000, 100_000]),
    way=st.sampled_from([None, None, by_tolerant_structs, one_by_one]),
    zipped=st.booleans(),
)
def test_columns_equal_a_plain_reading(tmp_path: Path, data, size, way, zipped):
    path = tmp_path / "any.name"
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    plain = reading(document(data))
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, size)
        if way:
            way(patch)
        trace = decode(path)
        found = arguments(trace, range(len(trace.columns)))
    assert differences(trace, plain)[0] == []
    assert trace.partial == ""
    assert sum("could not be read" in finding.text for finding in trace.findings) == bool(plain.unreadable)
    events = json.loads(data)
    events = events if isinstance(events, list) else events["traceEvents"]
    given_args = [events[at].get("args") for at in plain.columns["position"]]
    assert found == [each if isinstance(each, dict) else {} for each in given_args]


@pytest.mark.long
@SLOW
@given(cut=st.floats(0, 1), events=st.integers(1, 30))
def test_a_cut_file_keeps_exactly_its_whole_events(tmp_path: Path, cut: float, events: int):
    pieces = [
        f'{{"ph":"X","cat":"cpu_op","name":"a{{\\"}}","pid":1,"tid":1,"ts":{at},"dur":1,"args":{{}}}}'
        for at in range(events)
    ]
    head = '{"schemaVersion":1,"traceEvents":['
    whole = head + ",".join(pieces) + "]}"
    length = len(head) + len(pieces[0]) + int(cut * (len(whole) - len(head) - len(pieces[0]) - 1))
    (tmp_path / "cut.json").write_text(whole[:length])
    trace = load([tmp_path / "cut.json"]).ranks[0].light
    ends = [len(head) + len(",".join(pieces[: at + 1])) for at in range(events)]
    assert trace.events == sum(end <= length for end in ends)
    assert trace.columns.ts_ns.tolist() == [at * 1000 for at in range(trace.events)]
    closed = whole[:length].rstrip().endswith("]")  # only the last brace is missing
    assert trace.partial.endswith("all of what follows the events is missing") == closed
    assert trace.partial


def whole_ns(microseconds: str) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value(ROUND_HALF_EVEN))


NUMERALS = st.one_of(*CLOCKS, ODD_TIMES.filter(lambda value: isinstance(value, Written) and "e4" not in value))


@pytest.mark.long
@SLOW
@given(
    st.one_of(st.lists(st.one_of(CLOCKS), max_size=9), *(st.lists(clock, min_size=1) for clock in (*CLOCKS, NUMERALS)))
)
def test_many_times_at_once_are_each_read_exactly(numerals):
    found = all_nanoseconds([Raw(each.encode()) for each in numerals])
    if found is not None:
        assert found.tolist() == [whole_ns(each) for each in numerals]


@pytest.mark.parametrize("form", ["{}", "{}.5", "{}.123", "12345{:010}"])
def test_times_of_one_form_are_read_at_once(form):
    numerals = [form.format(at * 99991) for at in range(1000)]
    found = all_nanoseconds([Raw(each.encode()) for each in numerals])
    assert found.tolist() == [whole_ns(each) for each in numerals]


@pytest.mark.long
@SLOW
@given(st.lists(NUMERALS, min_size=1, max_size=4))
def test_durations_as_floats_are_exact_or_refused(numerals):
    found = short_nanoseconds([float(each) for each in numerals])
    if found is not None:
        assert found.tolist() == [whole_ns(each) for each in numerals]


@pytest.mark.long
@SLOW
@given(st.lists(decimals(0, 10**9, 3), min_size=1))
def test_durations_of_three_decimals_are_never_refused(numerals):
    assert short_nanoseconds([float(each) for each in numerals]).tolist() == [whole_ns(each) for each in numerals]
