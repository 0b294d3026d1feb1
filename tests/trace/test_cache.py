"""Columns that were kept are those of the file as it is now, or are not used."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from dptune.finding import Finding
from dptune.trace import cache, load
from dptune.trace.decode import decode
from dptune.trace.reading import read

SOURCE = Path(__file__).resolve().parents[2] / "sample_traces"


def same(one, other) -> bool:
    """Every field of two traces, array by array."""
    if is_dataclass(one):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


@pytest.fixture
def trace_file(tmp_path, monkeypatch):
    """A trace whose columns are worth keeping, as old as files mostly are."""
    monkeypatch.setattr(cache, "LEAST_TEXT_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = tmp_path / "run" / "rank-00000.trace.json.gz"
    path.parent.mkdir()
    shutil.copy(next(SOURCE.glob("*/rank-00000.trace.json.gz")), path)
    age(path)
    return path


def age(path, seconds=3600.0):
    before = time.time() - seconds
    os.utime(path, (before, before))


def entries(path):
    return sorted((path.parent / cache.FOLDER).glob("*.columns"))


def refuse(*_args, **_kwargs):
    raise AssertionError("the file was decoded again")


def test_what_is_kept_is_what_was_read(trace_file, monkeypatch):
    first = read(str(trace_file))
    assert len(entries(trace_file)) == 1
    monkeypatch.setattr("dptune.trace.reading.decode", refuse)
    again = read(str(trace_file))
    assert again is not first
    assert same(again, first)
    assert same(again, decode(trace_file))


@pytest.mark.parametrize("name", ["negative_dur.json", "two_ranks_overwritten_tail.json"])
def test_findings_are_kept(trace_file, real_traces, name, monkeypatch):
    path = trace_file.with_name(name)
    shutil.copy(real_traces / "damaged" / name, path)
    age(path)
    first = read(str(path))
    assert first.findings
    monkeypatch.setattr("dptune.trace.reading.decode", refuse)
    assert same(read(str(path)), first)


def test_a_trace_that_breaks_off_is_not_kept(trace_file, real_traces):
    path = trace_file.with_name("cut.json")
    shutil.copy(real_traces / "damaged" / "truncated_midway.json", path)
    age(path)
    assert read(str(path)).partial
    assert entries(trace_file) == []


def test_a_file_that_changed_is_read_anew_and_its_old_columns_go(trace_file):
    first = read(str(trace_file))
    other = next(path for path in SOURCE.glob("*/rank-00001.trace.json.gz"))
    shutil.copy(other, trace_file)
    age(trace_file, 60)
    second = read(str(trace_file))
    assert same(second.columns, decode(other).columns)
    assert not same(second.columns, first.columns)
    assert len(entries(trace_file)) == 1


def test_a_file_that_was_written_just_now_is_not_kept(trace_file):
    os.utime(trace_file)
    read(str(trace_file))
    assert entries(trace_file) == []


def test_a_file_that_changes_while_it_is_read_is_not_kept(trace_file):
    entry = cache.Entry(str(trace_file))
    trace = decode(trace_file)
    age(trace_file, 50)
    entry.store(trace)
    assert entries(trace_file) == []


def test_another_loader_does_not_meet_these_columns(trace_file, monkeypatch):
    read(str(trace_file))
    monkeypatch.setattr(cache, "_loader", lambda: "changed")
    assert cache.Entry(str(trace_file)).load() is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text", "words", "folder"])
def test_a_damaged_entry_is_as_good_as_none(trace_file, damage):
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    held = bytearray(entry.read_bytes())
    if damage == "flip":
        held[len(held) // 2] ^= 0xFF
    elif damage == "cut":
        held = held[: len(held) // 2]
    elif damage == "empty":
        held = bytearray()
    elif damage == "text":
        held = bytearray(b"hello" * 1000)
    elif damage == "words":
        told, arrays = cache._contents(first)
        told["words"]["columns.names"] = told["words"]["columns.names"][:3]
        with entry.open("wb") as out:
            cache._fill(out, told, arrays)
        held = bytearray(entry.read_bytes())
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
    else:
        entry.write_bytes(held)
    assert cache.Entry(str(trace_file)).load() is None
    assert same(read(str(trace_file)), first)


def test_no_bit_of_an_entry_may_differ(trace_file, recwarn):
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    sound = entry.read_bytes()
    for at in [*range(200), *range(200, len(sound), len(sound) // 300)]:
        held = bytearray(sound)
        held[at] ^= 1 << at % 8
        entry.write_bytes(held)
        assert cache.Entry(str(trace_file)).load() is None
    entry.write_bytes(sound)
    assert same(cache.Entry(str(trace_file)).load(), first)
    assert list(recwarn) == []


@pytest.mark.parametrize("told", [{}, {"arrays": {"columns.ts_ns": ["O", 1]}}, {"arrays": {"columns.ts_ns": 1}}])
def test_a_sound_entry_that_tells_something_else_is_none(trace_file, told):
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    with entry.open("wb") as out:
        cache._fill(out, told, [first.columns.ts_ns])
    assert cache.Entry(str(trace_file)).load() is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_folder_that_cannot_be_entered_leaves_it_to_the_users(trace_file, tmp_path, monkeypatch):
    """As root enters any folder, the refusal is made here."""
    real = Path.open

    def refuse(path, *args, **kwargs):
        if path.parent.name == cache.FOLDER:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "exists", lambda path, real=Path.exists: bool(path.name != ".gitignore" and real(path)))
    first = read(str(trace_file))
    assert len(list((tmp_path / "home" / "dptune" / "columns").glob("*.columns"))) == 1
    monkeypatch.setattr("dptune.trace.reading.decode", refuse)
    assert same(read(str(trace_file)), first)


def test_a_name_that_is_no_text_fails_nothing(trace_file):
    trace = read(str(trace_file))
    finding = Finding(code="x", level="partial", text="\udce9 is no text")
    for entry in entries(trace_file):
        entry.unlink()
    cache.Entry(str(trace_file)).store(replace(trace, findings=(finding,)))
    assert entries(trace_file) == []
    assert list((trace_file.parent / cache.FOLDER).glob("*.tmp")) == []


def test_a_change_that_keeps_size_and_time_is_seen(trace_file):
    before = trace_file.stat()
    first = cache.Entry(str(trace_file))
    held = bytearray(trace_file.read_bytes())
    time.sleep(0.05)  # the time of change is a clock of 10 ms
    trace_file.write_bytes(held)
    os.utime(trace_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert trace_file.stat().st_mtime_ns == before.st_mtime_ns
    first.store(decode(trace_file))
    assert entries(trace_file) == []


def test_a_file_that_was_new_when_it_was_opened_is_not_kept(trace_file):
    os.utime(trace_file)
    entry = cache.Entry(str(trace_file))
    age(trace_file)
    entry._identity = cache.Entry(str(trace_file))._identity  # reading took so long
    entry.store(decode(trace_file))
    assert entries(trace_file) == []


def test_what_killed_writers_left_goes_after_a_day(trace_file):
    folder = trace_file.parent / cache.FOLDER
    folder.mkdir()
    old, young = folder / "writing-1.tmp", folder / "writing-2.tmp"
    for path in (old, young):
        path.write_text("half")
    age(old, 2 * cache.ABANDONED_SECONDS)
    read(str(trace_file))
    assert len(entries(trace_file)) == 1
    assert list(folder.glob("*.tmp")) == [young]


def test_a_writer_that_has_to_end_leaves_nothing(trace_file, monkeypatch):
    def ended(out, *_):
        out.write(b"half")
        cache.abandon()
        raise SystemExit

    monkeypatch.setattr(cache, "_fill", ended)
    with pytest.raises(SystemExit):
        read(str(trace_file))
    assert [path.name for path in (trace_file.parent / cache.FOLDER).iterdir()] == [".gitignore"]


def test_a_folder_that_cannot_be_written_leaves_it_to_the_users(trace_file, tmp_path, monkeypatch):
    (trace_file.parent / cache.FOLDER).write_text("a file stands where the folder would")
    first = read(str(trace_file))
    (entry,) = (tmp_path / "home" / "dptune" / "columns").glob("*.columns")
    assert entry.stat().st_size > 1000
    monkeypatch.setattr("dptune.trace.reading.decode", refuse)
    assert same(read(str(trace_file)), first)


def test_the_users_folder_stays_small(trace_file, tmp_path, monkeypatch):
    (trace_file.parent / cache.FOLDER).write_text("a file stands where the folder would")
    monkeypatch.setattr(cache, "USER_FOLDER_BYTES", 1)
    old = tmp_path / "home" / "dptune" / "columns" / "0-0.columns"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    age(old)
    read(str(trace_file))
    (entry,) = old.parent.glob("*.columns")
    assert entry != old


def test_nothing_is_kept_unasked_or_of_small_traces(trace_file, monkeypatch):
    load([trace_file])
    assert entries(trace_file) == []
    monkeypatch.setattr(cache, "LEAST_TEXT_BYTES", 2**30)
    load([trace_file], cached=True)
    assert entries(trace_file) == []


def test_the_folder_is_no_trace_and_ignored_by_git(trace_file):
    load([trace_file.parent], cached=True)
    assert len(entries(trace_file)) == 1
    assert (trace_file.parent / cache.FOLDER / ".gitignore").read_text() == "*\n"
    assert len(load([trace_file.parent], cached=True).ranks) == 1


def _read_often(path: str) -> int:
    cache.LEAST_TEXT_BYTES = 0
    events = set()
    for _ in range(15):
        for entry in Path(path).parent.glob(f"{cache.FOLDER}/*.columns"):
            entry.unlink(missing_ok=True)
        events.add(read(path).events)
    (one,) = events
    return one


def test_two_writers_at_once(trace_file):
    with ProcessPoolExecutor(2) as pool:
        counts = set(pool.map(_read_often, [str(trace_file)] * 4))
    assert counts == {decode(trace_file).events}
    assert [path.name for path in (trace_file.parent / cache.FOLDER).iterdir() if path.suffix == ".tmp"] == []


def test_the_command_keeps_columns_and_can_be_told_not_to(trace_file):
    """In processes of their own, on a trace that is large enough."""
    large = max((SOURCE.parent / "sample_traces").glob("*/*.gz"), key=lambda path: path.stat().st_size)
    shutil.copy(large, trace_file)
    age(trace_file)
    words = [sys.executable, "-m", "dptune", "report", str(trace_file), "--format", "json"]
    first = subprocess.run([*words, "--no-cache"], capture_output=True, text=True, check=True).stdout
    assert entries(trace_file) == []
    second = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert len(entries(trace_file)) == 1
    third = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert json.loads(first)["measured"] == json.loads(second)["measured"] == json.loads(third)["measured"]
