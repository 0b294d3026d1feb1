"""Dumps of the flight recorder are read as they are, and a pickle is never executed."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.errors import TraceError
from dptune.trace.flight.dump import is_dump, read_dump
from dptune.trace.flight.unpickling import PickleError, plain
from dptune.trace.inspector import is_inspector_log

DUMPS = Path(__file__).parent / "flight_dumps"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=20,
)


@pytest.mark.long
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@given(value=PLAIN)
def test_plain_data_is_read_as_python_does(protocol: int, value: Any) -> None:
    data = pickle.dumps(value, protocol=protocol)
    if protocol < 2 and b"\nI0" in b"\n" + data:  # True and False are text there, and read as numbers
        return
    assert plain(io.BytesIO(data)) == pickle.loads(data)


def test_code_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for data in (
        b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.",
        pickle.dumps(Path("/tmp")),
        pickle.dumps({1, 2}),
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02P1\n.",
    ):
        with pytest.raises(PickleError, match="more than plain data"):
            plain(io.BytesIO(data))
    assert not mark.exists()


@given(st.binary(max_size=60))
def test_damage_ends_in_one_error(data: bytes) -> None:
    with contextlib.suppress(PickleError):
        plain(io.BytesIO(data))


@pytest.mark.parametrize("data", [b"", b"\x80\x02", b"\x80\x02a.", b"\x80\x02]K\x01K\x01K\x01s.", b"h\x05."])
def test_damaged_pickles(data: bytes) -> None:
    with pytest.raises(PickleError):
        plain(io.BytesIO(data))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_gloo_dumps_as_pickle_and_json_hold_the_same(rank: int) -> None:
    pickled = read_dump(DUMPS / "pickle" / f"pickle_trace_rank_{rank}")
    text = read_dump(DUMPS / "json" / f"json_trace_rank_{rank}.json")
    raw = pickle.loads((DUMPS / "pickle" / f"pickle_trace_rank_{rank}").read_bytes())
    assert pickled.rank == text.rank == rank
    assert pickled.version == text.version == "2.10"
    assert [(entry.group, entry.sequence, entry.kind, entry.done) for entry in pickled.entries] == [
        (entry.group, entry.sequence, entry.kind, entry.done) for entry in text.entries
    ]
    assert pickled.enqueued == text.enqueued == {"0": 5, "1": 1} if rank < 2 else {"0": 4}
    for entry, written in zip(pickled.entries, raw["entries"], strict=True):
        assert (entry.group, entry.description) == written["process_group"]
        assert f"{entry.backend}:{entry.name}" == written["profiling_name"]
        assert entry.sequence == written["collective_seq_id"]
        assert entry.created_ns == written["time_created_ns"]
        assert [list(shape) for shape in entry.input_sizes] == written["input_sizes"]
        assert list(entry.input_dtypes) == written["input_dtypes"]
        assert entry.done == written["retired"]
        assert (entry.started_ns, entry.completed_ns, entry.duration_ms) == (None, None, None)


def test_what_is_a_dump() -> None:
    assert all(is_dump(path) for folder in ("pickle", "json") for path in (DUMPS / folder).iterdir())
    assert not is_dump(DUMPS / "README.md")
    assert not is_dump(DUMPS)
    assert not is_dump(DUMPS / "absent")
    assert not is_dump(Path(__file__).parents[2] / "sample_traces" / "healthy" / "run.json")


@pytest.mark.parametrize("recognized", [is_dump, is_inspector_log])
def test_a_file_that_may_not_be_opened_is_neither(recognized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t_0.json").write_text("{}")

    def closed(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", closed)
    assert not recognized(tmp_path / "t_0.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t_0", b"\x80\x02" + b"cos\nsystem\n.", "is not executed"),
        ("t_0.json", b'{"entries": ', "cannot be read"),
        ("t_0.json", b'{"entries": 3}', "no list of entries"),
        ("t_0.json", b"[1]", "no list of entries"),
        ("trace.json", b'{"entries": []}', "the rank of"),
        ("t_9999999.json", b'{"entries": []}', "the rank of"),
        ("t_0.json", b"[" * 100_000, "cannot be read"),
    ],
)
def test_bad_dumps_end_in_one_sentence(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_dump(tmp_path / name)


def test_a_dump_that_is_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*t_0\.json: No such file"):
        read_dump(tmp_path / "t_0.json")
    (tmp_path / "t_0.json").write_text('{"entries": []}')
    monkeypatch.setattr("dptune.trace.flight.dump.MOST_BYTES", 14)
    with pytest.raises(TraceError, match="is larger than 14 bytes"):
        read_dump(tmp_path / "t_0.json")


def test_durations_that_the_recorder_timed(tmp_path: Path) -> None:
    entry = {"process_group": ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}
    given = [2.5, 0, -1.0, True, "2.5", float("inf")]
    path = tmp_path / "t_0.json"
    path.write_text(json.dumps({"entries": [{**entry, "duration_ms": each} for each in given]}))
    assert [each.duration_ms for each in read_dump(path).entries] == [2.5, 0.0, None, None, None, None]


def test_odd_values_are_left_out(tmp_path: Path) -> None:
    entry = {"process_group": ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}
    odd = [
        None,
        {},
        {**entry, "collective_seq_id": 2**64},
        {**entry, "process_group": []},
        {**entry, "input_sizes": "x", "input_dtypes": 3, "duration_ms": float("nan"), "frames": [1, {"line": "z"}]},
    ]
    (tmp_path / "t_3.json").write_text(json.dumps({"entries": odd, "pg_config": {"0": {"ranks": "__import__('os')"}}}))
    dump = read_dump(tmp_path / "t_3.json")
    (only,) = dump.entries
    assert (dump.groups, dump.enqueued) == ({}, {})
    assert (only.kind, only.input_sizes, only.duration_ms, only.at) == ("all_reduce", (), None, "")


def test_groups_and_their_last_collectives(tmp_path: Path) -> None:
    """Ranks are a list or the text of one; numbers and names that are none are left out."""
    (tmp_path / "t_3.json").write_text(
        json.dumps(
            {
                "entries": [],
                "pg_config": {"0": {"ranks": "[1, 0]"}, "1": {"ranks": [3, 2, -1, "x"]}, "2": {"ranks": 5}, "3": 5},
                "pg_status": {
                    "0": {"last_enqueued_collective": 7, "last_completed_collective": 6},
                    "1": {"last_enqueued_collective": "x"},
                    "2": 5,
                },
            }
        )
    )
    dump = read_dump(tmp_path / "t_3.json")
    assert dump.groups == {"0": (0, 1), "1": (2, 3)}
    assert (dump.enqueued, dump.completed) == ({"0": 7}, {"0": 6})
