import gzip

import pytest

from dptune.errors import TraceError
from dptune.trace import load

REAL = {
    "04adf51_pipe_visualized.json": "a Chrome trace of another tool",
    "04b969d_chromium_events.json": "torch.compile's own timing log",
    "8c4240c_allreduce_tp4.json": "an accelerator vendor's own trace",
    "a6809e6_timeline-ST.json.gz": "a pipeline timeline of Megatron-LM",
    "b9b8a22_profiler_traces.json": "a trace of MosaicML Composer's own profiler",
    "ea58ce9_meta_events_only.json": "a Chrome trace that names processes and threads but holds no timed event",
}
MADE = {
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "an SQLite database": b"SQLite format 3\0" + b"\0" * 40,
    "a zip archive": b"PK\x03\x04rest",
    "a Python pickle": b"\x80\x04\x95rest",
    "what dptune-runs/latest holds": b"2026-11-25T21-40-16-train\n",
    "text, not JSON": b"step 1 loss 2.3\n",
    "a binary file of an unknown kind": b"\x01\x02\xff\xfe",
    "JSON without trace events": b'{"loss": 1.0}',
    "an empty zip archive": b"PK\x05\x06" + b"\0" * 18,
    r"a torch\.save\(\) file": b"PK\x03\x04" + b"\0" * 26 + b"model/data.pkl",
    "a zstandard file": b"\x28\xb5\x2f\xfdrest",
    "an xz file": b"\xfd7zXZ\0rest",
    "a bzip2 file": b"BZh91AY",
    "an lz4 file": b"\x04\x22\x4d\x18rest",
    "a 7-Zip archive": b"7z\xbc\xaf\x27\x1crest",
    "a tar archive": b"rank0.json".ljust(257, b"\0") + b"ustar\0",
    "a file of whitespace only": b" \n\n ",
    "a file of zero bytes": b"\0" * 5_000,
    "JSON that contains only a number": b" -4.2e1\n",
    "JSON that contains only a string": b'"traceEvents"',
    "JSON that contains only null": b"null",
    "JSON that contains only true or false": b"true",
    "JSON with an empty traceEvents list": b'{"traceEvents": [ ]}',
    "JSON whose traceEvents are not events": b'{"traceEvents": [1, [{"ph": "X"}], "x", null]}',
    "a PyTorch execution trace": b'{"schema": "1.1.1", "nodes": [{"ph": 1}]}',
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces_of_other_tools_are_refused(real_traces, name):
    with pytest.raises(TraceError) as refused:
        load([real_traces / "not_torch" / name])
    assert refused.value.message.endswith(f"{name} is not a torch.profiler trace: it looks like {REAL[name]}")
    assert "torch.profiler writes" in refused.value.hint


def test_text_in_any_language_is_text(tmp_path):
    """Its first bytes may end within a letter."""
    (tmp_path / "notes.txt").write_bytes("Verlust 2,3 · größer".encode() + "é".encode()[:1])
    with pytest.raises(TraceError, match="text, not JSON"):
        load([tmp_path / "notes.txt"])


@pytest.mark.parametrize("what", MADE)
@pytest.mark.parametrize("zipped", [False, True])
def test_what_it_looks_like_is_named(tmp_path, what, zipped):
    path = tmp_path / "file.json"
    path.write_bytes(gzip.compress(MADE[what]) if zipped else MADE[what])
    with pytest.raises(TraceError, match=f"it looks like {what}"):
        load([path])


@pytest.mark.parametrize(("text", "what"), [(b"[]", "an empty JSON list"), (b" {}\n", "an empty JSON object")])
@pytest.mark.parametrize("zipped", [False, True])
def test_what_holds_nothing_is_what_it_looks_like(tmp_path, text, what, zipped):
    path = tmp_path / "file.json"
    path.write_bytes(gzip.compress(text) if zipped else text)
    with pytest.raises(TraceError, match=f"it is {what}$") as refused:
        load([path])
    assert refused.value.hint == "it contains no events: record again, or pass another file"


def test_one_long_string_is_a_string(tmp_path):
    (tmp_path / "file.json").write_text(f'"{"x" * 200_000}"')
    with pytest.raises(TraceError, match="it looks like JSON that contains only a string"):
        load([tmp_path / "file.json"])


def test_a_trace_that_was_packed_twice_is_to_be_unpacked_once(tmp_path):
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(gzip.compress(b'{"schemaVersion": 1, "traceEvents": []}')))
    with pytest.raises(TraceError, match="a gzip file that was compressed twice") as refused:
        load([path])
    assert refused.value.hint == "unpack it once with gunzip, and pass the result"


def test_a_packed_file_of_nothing_is_said_to_be_one(tmp_path):
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(TraceError, match=r"rank0\.json\.gz is an empty gzip file \(0 bytes when unpacked\)$"):
        load([tmp_path])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"traceEvents": null, "schemaVersion": 1}',
         "has the header of a torch.profiler trace, but its traceEvents is null, not a list"),
        ('{"traceEvents": {"a": 1}}', "is JSON, but its traceEvents is an object, not a list"),
        ('{"traceEvents": "x"}', "is JSON, but its traceEvents is text, not a list"),
        ('{"traceEvents": 42}', "is JSON, but its traceEvents is a number, not a list"),
        ('{"x": {"traceEvents": null}}', "is not a torch.profiler trace: it looks like JSON without trace events"),
        ('{"traceEvents":', "breaks off before its first event"),
        ('{"traceEvents": {"a": ', "is JSON, but its traceEvents is an object, not a list"),
        ('{"schemaVersion": 1', "breaks off before its first event"),
        ('{"schemaVersion": 1}', "has the header of a torch.profiler trace but no traceEvents"),
        ('{"traceEvents": [' + "[" * 200_000, "breaks off before its first whole event, at byte 17 of its text"),
    ],
)  # fmt: skip
def test_events_that_are_no_list_of_events(tmp_path, text, said):
    path = tmp_path / "rank0.json"
    path.write_text(text)
    with pytest.raises(TraceError) as refused:
        load([path])
    assert refused.value.message == f"{path} {said}"


def test_every_file_of_another_tool_has_an_outcome_here(real_traces):
    assert {path.name for path in (real_traces / "not_torch").iterdir()} == set(REAL)
