"""Columns that were kept are those of the file as it is now, or are not used."""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

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
    return sorted((path.parent / cache.FOLDER).glob("*.npz"))


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
        with np.load(entry) as arrays:
            kept = dict(arrays)
        told = json.loads(kept["told"].tobytes())
        told["words"]["columns.names"] = told["words"]["columns.names"][:3]
        kept["told"] = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
        np.savez(entry, **kept)
        held = bytearray(entry.read_bytes())
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
    else:
        entry.write_bytes(held)
    assert cache.Entry(str(trace_file)).load() is None
    assert same(read(str(trace_file)), first)


def test_a_folder_that_cannot_be_written_leaves_it_to_the_users(trace_file, tmp_path, monkeypatch):
    (trace_file.parent / cache.FOLDER).write_text("a file stands where the folder would")
    first = read(str(trace_file))
    (entry,) = (tmp_path / "home" / "dptune" / "columns").glob("*.npz")
    assert entry.stat().st_size > 1000
    monkeypatch.setattr("dptune.trace.reading.decode", refuse)
    assert same(read(str(trace_file)), first)


def test_the_users_folder_stays_small(trace_file, tmp_path, monkeypatch):
    (trace_file.parent / cache.FOLDER).write_text("a file stands where the folder would")
    monkeypatch.setattr(cache, "USER_FOLDER_BYTES", 1)
    old = tmp_path / "home" / "dptune" / "columns" / "0-0.npz"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    age(old)
    read(str(trace_file))
    (entry,) = old.parent.glob("*.npz")
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
        for entry in Path(path).parent.glob(f"{cache.FOLDER}/*.npz"):
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
