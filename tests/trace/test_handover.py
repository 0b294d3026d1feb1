"""What another process hands over by a file comes out as it went in, and needs no room that is not there."""

import errno
import os
import sys
import tempfile
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from dptune.trace.loading import handover as parcels
from dptune.trace.loading import reading
from dptune.trace.loading.handover import Parcel, parcel


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Arrays of a few bytes are worth a file."""
    monkeypatch.setattr(parcels, "LEAST_BYTES", 1)


def test_arrays_come_out_as_they_went_in(tmp_path):
    arrays = {"a": np.arange(1000), "none": np.empty(0, dtype=np.int32), "b": np.array([1.5, np.inf])}
    packed = parcel(arrays, str(tmp_path))
    assert isinstance(packed, Parcel)
    assert len(list(tmp_path.iterdir())) == 1
    found = packed.open()
    assert list(tmp_path.iterdir()) == []
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].tolist() == array.tolist()
    found["a"][0] = 7  # columns may be written to, as those of this process may
    assert found["a"][:2].tolist() == [7, 1]


@pytest.mark.parametrize("small", [{"a": 1}, {"none": np.empty(0)}, ValueError("why"), {"few": np.arange(10)}])
def test_what_holds_few_bytes_is_handed_over_as_it_is(tmp_path, monkeypatch, small):
    monkeypatch.setattr(parcels, "LEAST_BYTES", 100)
    assert parcel(small, str(tmp_path)) is small
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_what_was_opened_holds_no_file_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = [parcel({"a": np.arange(1000)}, str(tmp_path)).open() for _ in range(50)]
    assert len(found) == 50
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_a_process_sends_is_opened_where_it_is_received(tmp_path):
    future = Future()
    future.set_result(parcel({"a": np.arange(10)}, str(tmp_path)))
    assert reading._opened(future, "rank0.json")["a"].tolist() == list(range(10))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_not_locked(tmp_path):
    assert parcels._lock(tmp_path / "gone") is None


def test_in_a_folder_that_is_gone_it_is_handed_over_as_it_is(tmp_path):
    arrays = {"a": np.arange(10)}
    assert parcel(arrays, str(tmp_path / "gone")) is arrays


def test_without_room_it_is_handed_over_as_it_is(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file, self.name = file, file.name

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    real = tempfile.NamedTemporaryFile
    monkeypatch.setattr(parcels.tempfile, "NamedTemporaryFile", lambda **options: Full(real(**options)))
    arrays = {"a": np.arange(10)}
    assert parcel(arrays, str(tmp_path)) is arrays
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_in_memory_where_there_is_room_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(parcels, "MEMORY", tmp_path)
    monkeypatch.setattr(parcels, "LEAST_ROOM_BYTES", 0)
    with parcels.folder() as inside:
        assert Path(inside).parent == tmp_path
    monkeypatch.setattr(parcels, "LEAST_ROOM_BYTES", 2**62)
    with parcels.folder() as inside:
        assert Path(inside).parent == Path(tempfile.gettempdir())
    monkeypatch.setattr(parcels, "MEMORY", tmp_path / "absent")
    with parcels.folder() as inside:
        assert Path(inside).parent == Path(tempfile.gettempdir())


def test_where_no_folder_can_be_made_there_is_none(monkeypatch):
    """In memory, because it is read-only; then anywhere."""
    asked = []

    def refuse(**options):
        asked.append(options.get("dir"))
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(parcels, "LEAST_ROOM_BYTES", 0)
    monkeypatch.setattr(parcels.tempfile, "mkdtemp", refuse)
    with parcels.folder() as inside:
        assert inside is None
    assert asked[-1] is None


@pytest.mark.skipif(sys.platform == "win32", reason="there is no folder in memory")
def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(parcels, "MEMORY", tmp_path)
    monkeypatch.setattr(parcels, "LEAST_ROOM_BYTES", 0)
    left, young = tmp_path / "dptune-parcels-left", tmp_path / "dptune-parcels-young"
    for each in (left, young):
        each.mkdir()
        (each / "parcel").write_bytes(b"x")
    with parcels.folder() as used:
        for each in (left, used):
            os.utime(each, (1e9, 1e9))
        with parcels.folder() as other:
            assert {path.name for path in tmp_path.iterdir()} == {Path(used).name, Path(other).name, young.name}
    assert list(tmp_path.iterdir()) == [young]
