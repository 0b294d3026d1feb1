"""Whatever the bytes are, the outcome is a run with its figures or one sentence: never another exception."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptune.errors import DptuneError
from dptune.measure import measure
from dptune.trace import load

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


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
