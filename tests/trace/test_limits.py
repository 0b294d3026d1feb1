"""Where reading stops whatever a file claims, and that what was read until then is kept."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.errors import TraceError
from dptune.trace.kineto import body, builder, text
from dptune.trace.kineto import decode as decode_module
from dptune.trace.kineto.decode import decode

HEAD = b'{"schemaVersion": 1, "traceEvents": ['


def event(name="a", **more):
    return json.dumps(
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 1, **more}
    ).encode()


@pytest.fixture
def small(monkeypatch):
    """Limits of a size that a test can reach."""
    for module in (text, body):
        monkeypatch.setattr(module, "BLOCK_BYTES", 70_000)
    monkeypatch.setattr(body, "LONGEST_EVENT_BYTES", 300_000)
    monkeypatch.setattr(decode_module, "LONGEST_BYTES", 300_000)
    monkeypatch.setattr(builder, "MOST_EVENTS", 10_000)
    monkeypatch.setattr(builder, "MOST_CHARACTERS", 100_000)


def written(path, content):
    path.write_bytes(content)
    return path


def test_more_events_than_fit(tmp_path, small):
    trace = decode(written(tmp_path / "t.json", HEAD + b",".join([event()] * 30_000) + b"]}"))
    assert 10_000 < len(trace.columns) < 12_000
    assert "reading stopped at the limit of 10,000 events" in trace.partial


def test_events_that_are_not_complete_count_too(tmp_path, small):
    trace = decode(written(tmp_path / "t.json", HEAD + event() + b",{}" * 100_000 + b"]}"))
    assert 10_000 < trace.events < 60_000
    assert "reading stopped at the limit of 10,000 events" in trace.partial


def test_more_names_than_fit(tmp_path, small):
    events = [event(f"{at:0100d}") for at in range(9_000)]
    trace = decode(written(tmp_path / "t.json", HEAD + b",".join(events) + b"]}"))
    assert 1_000 < len(trace.columns) < 3_000
    assert "reading stopped at the limit of 100,000 characters of names" in trace.partial


def test_one_endless_event(tmp_path, small):
    """Its string never ends; nothing after it can be an event."""
    content = HEAD + event("kept") + b', {"ph": "X", "name": "' + b"x" * 2_000_000
    trace = decode(written(tmp_path / "t.json", content))
    assert trace.columns.names == ("kept",)
    assert "where no event ends in 0 MiB" in trace.partial


def test_an_endless_gap(tmp_path, small):
    trace = decode(written(tmp_path / "t.json", HEAD + event("kept") + b", " * 1_000_000 + event("lost") + b"]}"))
    assert trace.columns.names == ("kept",)
    assert "where no event ends in 0 MiB" in trace.partial


def test_an_endless_event_of_many_brackets(tmp_path, small):
    content = HEAD + event("kept") + b', {"args": ' + b"[" * 1_000_000
    trace = decode(written(tmp_path / "t.json", content))
    assert trace.columns.names == ("kept",)
    assert trace.partial


def test_text_without_events_is_refused_when_the_limit_is_reached(tmp_path, small):
    with pytest.raises(TraceError, match="looks like"):
        decode(written(tmp_path / "t.json", b'{"nodes": "' + b"x" * 2_000_000))
    with pytest.raises(TraceError, match="looks like"):
        decode(written(tmp_path / "u.json", b" " * 2_000_000))


def test_text_over_the_limit(tmp_path):
    path = written(tmp_path / "t.json", HEAD + b",".join([event()] * 1_000) + b"]}")
    trace = decode(path, limit_bytes=path.stat().st_size // 2)
    assert 400 < trace.events < 600
    assert "reading stopped at the limit of" in trace.partial
    assert decode(path, limit_bytes=path.stat().st_size).partial == ""


BOMBS = """
import sys
from dptune.errors import DptuneError
from dptune.trace.kineto.decode import decode
for path in sys.argv[1:]:
    try:
        decode(path)
    except DptuneError as error:
        assert error.message
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM:")).split()[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_bomb_of_a_gigabyte_takes_little_memory(tmp_path):
    """In a process of their own, whose peak is asked of the kernel after each."""
    bombs = {
        "blanks": (HEAD + event() + b",", b" ", b"]}"),
        "commas": (HEAD + event() + b",", b",", b"]}"),
        "a name": (HEAD + event() + b', {"name": "', b"x", b'"}]}'),
        "after the events": (HEAD + event() + b"]", b" ", b"}"),
        "nothing else": (b"", b" ", b""),
        "before the events": (b'{"a": "', b"x", b'", "traceEvents": []}'),
        "events": (HEAD + event() + b",", event() + b",", b"{}]}"),
    }
    paths = []
    for name, (start, fill, end) in bombs.items():
        member = gzip.compress(fill * (2**24 // len(fill)), 1)
        count = 2 if len(fill) > 1 else 64
        path = written(tmp_path / f"{name}.json.gz", gzip.compress(start) + member * count + gzip.compress(end))
        paths.append(str(path))
    done = subprocess.run([sys.executable, "-c", BOMBS, *paths], capture_output=True, text=True, check=True)
    peaks_kib = dict(zip(bombs, map(int, done.stdout.split()), strict=True))
    assert max(peaks_kib.values()) < 400_000, peaks_kib
