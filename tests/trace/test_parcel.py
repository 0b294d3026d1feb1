"""What another process hands over by a file comes out as it went in, and needs no room that is not there."""

import errno
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dptune.trace import parcel as parcels
from dptune.trace.parcel import Parcel, parcel


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


@pytest.mark.parametrize("small", [{"a": 1}, {"none": np.empty(0)}, ValueError("why")])
def test_what_holds_no_bytes_is_handed_over_as_it_is(tmp_path, small):
    assert parcel(small, str(tmp_path)) is small
    assert list(tmp_path.iterdir()) == []


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
