"""Generated traces, read by dptune and by a plain reader on json.loads and Decimal."""

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptune.trace import load
from dptune.trace.decode import decode

TIMES = st.decimals(min_value=0, max_value=2 * 10**15, allow_nan=False, places=3)
IDS = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=6), st.none())
NUMBERS = st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 10**6).map(str))
EVENTS = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "i", "s", "M"]),
        "cat": st.sampled_from(["cpu_op", "kernel", "user_annotation", "cuda_runtime"]),
        "name": st.text(max_size=12),
        "pid": IDS,
        "tid": IDS,
        "ts": TIMES,
        "dur": TIMES,
    },
    optional={
        "args": st.fixed_dictionaries({}, optional={"stream": NUMBERS, "correlation": NUMBERS, "bytes": NUMBERS})
    },
)
LAYOUTS = st.sampled_from([None, 1, 4])


def number(value: object) -> int:
    return -1 if value is None else int(value)


def whole_ns(microseconds: str) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value(ROUND_HALF_EVEN))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENTS, max_size=20), indent=LAYOUTS, zipped=st.booleans(), quoted=st.booleans())
def test_columns_equal_a_plain_reading(tmp_path: Path, events, indent, zipped, quoted):
    def times(value):
        return f"{value:f}" if quoted else float(value)

    # Only times that a float prints back exactly go in as numbers, so that the text is the same for both readers.
    text = json.dumps(
        {"schemaVersion": 1, "traceEvents": [{"ph": "i", "s": "g"}, *events]},
        indent=indent,
        default=times,
        ensure_ascii=False,
    ).encode("utf-8", "replace")
    path = tmp_path / "any.name"
    path.write_bytes(gzip.compress(text) if zipped else text)
    trace = decode(path)
    plain = json.loads(text, parse_float=str)["traceEvents"]
    complete = [event for event in plain if event["ph"] == "X"]
    columns = trace.columns
    assert trace.events == len(plain)
    assert columns.ts_ns.tolist() == [whole_ns(event["ts"]) for event in complete]
    assert columns.dur_ns.tolist() == [whole_ns(event["dur"]) for event in complete]
    assert [columns.name(row) for row in range(len(columns))] == [event["name"] for event in complete]
    assert [columns.categories[at] for at in columns.category_id] == [event["cat"] for event in complete]
    for column, key in (
        (columns.stream, "stream"),
        (columns.correlation, "correlation"),
        (columns.total_bytes, "bytes"),
    ):
        assert column.tolist() == [number(event.get("args", {}).get(key)) for event in complete]
    assert [plain[at]["ph"] for at in columns.position] == ["X"] * len(complete)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), events=st.integers(1, 30))
def test_a_cut_file_keeps_exactly_its_whole_events(tmp_path: Path, cut: float, events: int):
    pieces = [
        f'{{"ph":"X","cat":"cpu_op","name":"a{{\\"}}","pid":1,"tid":1,"ts":{at},"dur":1,"args":{{}}}}'
        for at in range(events)
    ]
    head = '{"schemaVersion":1,"traceEvents":['
    text = head + ",".join(pieces) + "]}"
    length = len(head) + len(pieces[0]) + int(cut * (len(text) - len(head) - len(pieces[0]) - 1))
    (tmp_path / "cut.json").write_text(text[:length])
    trace = load([tmp_path / "cut.json"]).ranks[0].lean
    ends = [len(head) + len(",".join(pieces[: at + 1])) for at in range(events)]
    assert trace.events == sum(end <= length for end in ends)
    assert trace.columns.ts_ns.tolist() == [at * 1000 for at in range(trace.events)]
    closed = text[:length].rstrip().endswith("]")  # only the last brace is missing
    assert bool(trace.partial) != closed
