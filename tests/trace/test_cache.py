"""Columns that were kept are those of the file as it is now, or are not used."""

import errno
import json
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dptune.finding import Finding
from dptune.trace import load
from dptune.trace.kineto.decode import decode
from dptune.trace.loading import cache, private_folder
from dptune.trace.loading.reading import read

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import RUNS

LEAST_TEXT_BYTES = cache.LEAST_TEXT_BYTES

of_users = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the platform knows no users")
SOURCE = RUNS / "late-rank"  # 2,001 events a rank
LARGER = Path(__file__).resolve().parents[2] / "sample_traces" / "healthy" / "rank-00000.trace.json.gz"


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
    shutil.copy(SOURCE / "rank-00000.trace.json.gz", path)
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
    monkeypatch.setattr("dptune.trace.loading.reading.decode", refuse)
    again = read(str(trace_file))
    assert again is not first
    assert same(again, first)
    assert len(first.operators)
    assert same(again, decode(trace_file))


def test_the_arguments_of_operators_are_kept_where_they_were_read_and_taken_where_they_are_asked_for(trace_file):
    read(str(trace_file), keep_operators=False)
    assert not len(read(str(trace_file)).operators)
    for entry in entries(trace_file):
        entry.unlink()
    kept = read(str(trace_file)).operators
    assert len(kept)
    assert same(read(str(trace_file)).operators, kept)
    assert not len(read(str(trace_file), keep_operators=False).operators)


@pytest.mark.parametrize("name", ["negative_dur.json", "two_ranks_overwritten_tail.json"])
def test_findings_are_kept(trace_file, real_traces, name, monkeypatch):
    path = trace_file.with_name(name)
    shutil.copy(real_traces / "damaged" / name, path)
    age(path)
    first = read(str(path))
    assert first.findings
    monkeypatch.setattr("dptune.trace.loading.reading.decode", refuse)
    assert same(read(str(path)), first)


def test_a_trace_that_breaks_off_is_not_kept(trace_file, real_traces):
    path = trace_file.with_name("cut.json")
    shutil.copy(real_traces / "damaged" / "truncated_midway.json", path)
    age(path)
    assert read(str(path)).partial
    assert entries(trace_file) == []


def test_a_file_that_changed_is_read_anew_and_its_old_columns_go(trace_file):
    first = read(str(trace_file))
    other = SOURCE / "rank-00001.trace.json.gz"
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
        head, arrays = cache._contents(first)
        head.words["columns.names"] = head.words["columns.names"][:3]
        with entry.open("wb") as out:
            cache._fill(out, head, arrays)
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
    for at in [*range(200), *range(200, len(sound), len(sound) // 100)]:
        held = bytearray(sound)
        held[at] ^= 1 << at % 8
        entry.write_bytes(held)
        assert cache.Entry(str(trace_file)).load() is None
    entry.write_bytes(sound)
    assert same(cache.Entry(str(trace_file)).load(), first)
    assert list(recwarn) == []


def _of_other_types(head, arrays):
    """What an entry may tell and hold, with a right checksum, that is no trace's."""
    at = {name: number for number, name in enumerate(head.arrays)}
    whole = msgspec.to_builtins(head)

    def entry(name, dtype, values, count=None):
        listed = {**whole["arrays"], name: [dtype, len(values) if count is None else count]}
        return {**whole, "arrays": listed}, [*arrays[: at[name]], values, *arrays[at[name] + 1 :]]

    times, count = arrays[at["columns.ts_ns"]], len(arrays[at["columns.ts_ns"]])
    yield {}, arrays
    yield [], arrays
    yield {**whole, "arrays": {}}, []
    yield {**whole, "arrays": {"columns.ts_ns": 1}}, [times]
    yield entry("columns.ts_ns", "|O", times)
    yield entry("columns.ts_ns", "<f8", times.astype(np.float64))
    yield entry("columns.ts_ns", "<i4", times.astype(np.int32))
    yield entry("columns.ts_ns", ">i8", times.astype(">i8"))
    yield entry("columns.ts_ns", "<M8[ns]", times)
    yield entry("columns.ts_ns", "|V8", times)
    yield entry("columns.ts_ns", "(2,)<i4", times)
    yield entry("columns.ts_ns", "<i8", times, -1)
    yield entry("columns.ts_ns", "<i8", times, 10**15)
    yield entry("columns.ts_ns", "<i8", times, True)
    yield entry("columns.ts_ns", "<i8", times[:-1])
    yield entry("columns.dur_ns", "<i8", np.full(count, -1, dtype=np.int64))
    yield entry("columns.name_id", "<i4", np.full(count, 10**9, dtype=np.int32))
    rows, ends, written = (arrays[at[f"operators.{name}"]] for name in ("row", "end", "written"))
    yield entry("operators.row", "<i8", rows[::-1].copy())
    yield entry("operators.row", "<i8", np.append(rows[:-1], count))
    yield entry("operators.row", "<i8", rows[:-1])
    yield entry("operators.text", "<i8", np.full(len(rows), len(ends)))
    yield entry("operators.end", "<i8", -ends)
    yield entry("operators.end", "<i8", np.append(ends[:-1], len(written) + 1))
    yield entry("operators.written", "|u1", np.ones(len(written), dtype=np.uint8))
    of_no_event = {name for name in at if name.startswith("collectives.")}
    lengths = {name: [dtype, 1 if name in of_no_event else n] for name, (dtype, n) in whole["arrays"].items()}
    one = [
        np.array([count if name == "collectives.row" else -1]) if name in of_no_event else arrays[at[name]]
        for name in at
    ]
    yield {**whole, "arrays": lengths}, one
    for key, value in (
        ("events", -1),
        ("events", "x"),
        ("base_ns", 0.5),
        ("host", None),
        ("partial", 3),
        ("thread_names", [[1, 2, 3]]),
        ("devices", [{"index": "0", "name": 1}]),
        ("distributed", {"groups": {"a": "b"}}),
        ("findings", [{"code": "x", "level": "great", "text": ""}]),
        ("words", {**whole["words"], "columns.names": "name"}),
        ("words", {**whole["words"], "columns.names": [1] * count}),
        ("words", {**whole["words"], "columns.ts_ns": ["a"] * count}),
    ):
        yield {**whole, key: value}, arrays


def test_a_sound_entry_that_tells_something_else_is_none(trace_file):
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    assert same(cache.Entry(str(trace_file)).load(), first)
    for number, (head, arrays) in enumerate(_of_other_types(*cache._contents(first))):
        with entry.open("wb") as out:
            cache._fill(out, head, arrays)
        assert cache.Entry(str(trace_file)).load() is None, number
    assert same(read(str(trace_file)), first)


def test_a_folder_that_cannot_be_entered_leaves_it_to_the_users(trace_file, tmp_path, monkeypatch):
    """As root enters any folder, the refusal is made here."""
    real = private_folder.opened

    def refusing(path, **how):
        if path.name == cache.FOLDER:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **how)

    monkeypatch.setattr(private_folder, "opened", refusing)
    first = read(str(trace_file))
    assert len(list((tmp_path / "home" / "dptune" / "columns").glob("*.columns"))) == 1
    monkeypatch.setattr("dptune.trace.loading.reading.decode", refuse)
    assert same(read(str(trace_file)), first)


def in_home(tmp_path):
    return sorted((tmp_path / "home" / "dptune" / "columns").glob("*.columns"))


def everything(folder):
    """Each path under a folder, with what it is, leads to, and holds."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.is_symlink() or not path.is_file() or path.read_bytes(),
        )
        for path in sorted(folder.rglob("*"))
    }


@of_users
def test_traces_of_another_user_are_kept_in_the_users_own_folder(trace_file, tmp_path, monkeypatch):
    """That of the folder counts: one may link or copy the traces of others into one's own."""
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    home = tmp_path / "home"
    monkeypatch.setattr(
        private_folder, "is_ours", lambda status: status.st_ino in {p.stat().st_ino for p in [home, *home.rglob("*")]}
    )
    home.mkdir()
    first = read(str(trace_file))
    assert not (trace_file.parent / cache.FOLDER).exists()
    assert len(in_home(tmp_path)) == 1
    monkeypatch.setattr("dptune.trace.loading.reading.decode", refuse)
    assert same(read(str(trace_file)), first)


@of_users
@pytest.mark.parametrize("whose", ["folder", "file"])
def test_an_entry_of_another_user_is_not_used(trace_file, tmp_path, monkeypatch, whose):
    """A sound one: its content says nothing of who wrote it."""
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    other = (entry.parent if whose == "folder" else entry).stat().st_ino
    monkeypatch.setattr(private_folder, "is_ours", lambda status: status.st_ino != other)
    assert cache.Entry(str(trace_file)).load() is None
    assert same(read(str(trace_file)), first)
    assert (whose == "folder") == bool(in_home(tmp_path))


@of_users
@pytest.mark.parametrize("which", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_an_entry_that_others_may_write_is_not_used(trace_file, which, mode):
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    place = entry.parent if which == "folder" else entry
    place.chmod(place.stat().st_mode | mode)
    assert cache.Entry(str(trace_file)).load() is None
    assert same(read(str(trace_file)), first)
    assert place.stat().st_mode & 0o022 == 0
    assert same(cache.Entry(str(trace_file)).load(), first)


@of_users
def test_a_folder_of_traces_that_everybody_may_write_holds_no_entries(trace_file, tmp_path):
    trace_file.parent.chmod(0o777)
    read(str(trace_file))
    assert not (trace_file.parent / cache.FOLDER).exists()
    assert len(in_home(tmp_path)) == 1


@of_users
def test_what_is_kept_is_for_this_user_alone(trace_file):
    read(str(trace_file))
    (entry,) = entries(trace_file)
    assert (entry.stat().st_mode & 0o777, entry.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@of_users
@pytest.mark.parametrize("planted", ["folder", "folder of nothing", "entry", "entry of nothing", "hard link", "ignore"])
def test_links_that_were_planted_lead_nowhere(trace_file, tmp_path, planted):
    """Whatever of a cache is a link: nothing is read from where it leads, and nothing there is written or changed."""
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    sound, name = entry.read_bytes(), entry.name
    shutil.rmtree(entry.parent)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    victim = elsewhere / name
    if planted not in ("folder of nothing", "entry of nothing"):
        victim.write_bytes(sound)
        victim.chmod(0o600)
        age(victim)
    if planted == "folder":
        entry.parent.symlink_to(elsewhere)
    elif planted == "folder of nothing":
        entry.parent.symlink_to(elsewhere / "new")
    else:
        entry.parent.mkdir(mode=0o700)
        if planted == "ignore":
            (entry.parent / ".gitignore").symlink_to(elsewhere / "ignored")
        elif planted == "hard link":
            entry.hardlink_to(victim)
        else:
            entry.symlink_to(victim)
    before, when = everything(elsewhere), victim.stat().st_mtime_ns if victim.exists() else 0
    assert cache.Entry(str(trace_file)).load() is None
    assert same(read(str(trace_file)), first)
    assert everything(elsewhere) == before
    assert (victim.stat().st_mtime_ns if victim.exists() else 0) == when
    assert same(cache.Entry(str(trace_file)).load(), first)  # from the user's folder, or in place of the link


@of_users
def test_a_pipe_among_the_entries_is_not_waited_for(trace_file):
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    entry.unlink()
    os.mkfifo(entry)
    assert cache.Entry(str(trace_file)).load() is None
    assert same(read(str(trace_file)), first)


def test_without_descriptors_of_folders_links_are_refused_too(trace_file, tmp_path, monkeypatch):
    """As on Windows, where paths are all there is."""
    monkeypatch.setattr(private_folder, "_BY_DESCRIPTOR", False)
    monkeypatch.setattr(private_folder, "_DIRECTLY", 0)
    first = read(str(trace_file))
    (entry,) = entries(trace_file)
    assert same(cache.Entry(str(trace_file)).load(), first)
    entry.rename(tmp_path / "moved")
    try:
        entry.symlink_to(tmp_path / "moved")
    except OSError:
        pytest.skip("links need a privilege here")
    assert cache.Entry(str(trace_file)).load() is None


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
    monkeypatch.setattr("dptune.trace.loading.reading.decode", refuse)
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


def test_what_the_users_folder_has_room_for_stays(trace_file, tmp_path, monkeypatch):
    """Of three entries the oldest goes, as the limit holds two."""
    (trace_file.parent / cache.FOLDER).write_text("a file stands where the folder would")
    folder = tmp_path / "home" / "dptune" / "columns"
    folder.mkdir(parents=True)
    for number in (2, 1):
        (folder / f"{number}-0.columns").write_bytes(b"0" * 1000)
        age(folder / f"{number}-0.columns", 3600.0 * number)
    read(str(trace_file))
    (entry,) = set(folder.glob("*.columns")) - {folder / "1-0.columns", folder / "2-0.columns"}
    monkeypatch.setattr(cache, "USER_FOLDER_BYTES", entry.stat().st_size + 1000)
    entry.unlink()
    read(str(trace_file))
    assert {path.name for path in folder.glob("*.columns")} == {"1-0.columns", entry.name}


def test_of_a_trace_that_is_gone_nothing_is_kept_in_its_folder(tmp_path):
    assert not cache._may_hold_entries(tmp_path / "absent")
    assert cache._is_new(str(tmp_path / "absent" / "rank0.json"))


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
    for _ in range(5):
        for entry in Path(path).parent.glob(f"{cache.FOLDER}/*.columns"):
            entry.unlink(missing_ok=True)
        events.add(read(path).events)
    (one,) = events
    return one


def test_two_writers_at_once(trace_file):
    with ProcessPoolExecutor(2, get_context("forkserver")) as pool:
        counts = set(pool.map(_read_often, [str(trace_file)] * 4))
    assert counts == {decode(trace_file).events}
    assert [path.name for path in (trace_file.parent / cache.FOLDER).iterdir() if path.suffix == ".tmp"] == []


def test_the_command_keeps_columns_and_can_be_told_not_to(trace_file, monkeypatch):
    """On a trace that is large enough: of 1.8 MB."""
    monkeypatch.setattr(cache, "LEAST_TEXT_BYTES", LEAST_TEXT_BYTES)
    shutil.copy(LARGER, trace_file)
    age(trace_file)
    words = ("report", str(trace_file), "--format", "json")
    first = in_process.dptune(*words, "--no-cache")
    assert entries(trace_file) == []
    second = in_process.dptune(*words)
    assert len(entries(trace_file)) == 1
    assert json.loads(first.stdout)["measured"] == json.loads(second.stdout)["measured"]
