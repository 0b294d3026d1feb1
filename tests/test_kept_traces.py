"""What tests read of the repository's traces is decoded once, and is what the file holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dptune.errors import TraceError
from dptune.trace import load
from dptune.trace.events import Trace
from dptune.trace.kineto.decode import decode
from dptune.trace.loading import reading

from . import sharing
from .kept_traces import ROOT, KeptTraces, keep, keeping

SAMPLE = ROOT / "tests" / "rules" / "recorded" / "runs" / "broadcast-buffers" / "rank-00000.trace.json.gz"


class Counted:
    """decode, and how often it was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, name: str, **options: object) -> Trace:
        self.calls.append(name)
        return decode(name, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no other process ran tests."""
    monkeypatch.delenv(sharing.FOLDER, raising=False)


def test_a_file_of_the_folders_is_read_once(tmp_path: Path) -> None:
    kept = KeptTraces(counted := Counted(), folders=(SAMPLE.parent,))
    first = kept(str(SAMPLE))
    ticks: list[int] = []
    assert kept(str(SAMPLE), tick=ticks.append) is first
    assert ticks == [SAMPLE.stat().st_size]
    without = kept(str(SAMPLE), keep_operators=False)
    assert (len(without.operators.row), len(counted.calls)) == (0, 2)
    copy = str(shutil.copy(SAMPLE, tmp_path))
    assert [kept(copy) is kept(copy), len(counted.calls)] == [False, 4]


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    kept = KeptTraces(Counted(), folders=(tmp_path,))
    copy = Path(shutil.copy(SAMPLE, tmp_path))
    first = kept(str(copy))
    copy.write_bytes(b"{}")
    os.utime(copy, ns=(1, 1))
    with pytest.raises(TraceError):
        kept(str(copy))
    assert first.events > 0


def test_the_least_recently_used_is_given_up() -> None:
    names = [str(SAMPLE), str(SAMPLE.parent.parent / "garbage-collection" / SAMPLE.name)]
    events = [decode(name).events for name in names]
    kept = KeptTraces(counted := Counted(), folders=(SAMPLE.parent.parent,), most=max(events), of_one=max(events))
    for name in (names[0], names[1], names[1], names[0]):
        kept(name)
    assert counted.calls == [names[0], names[1], names[0]]
    none = KeptTraces(counted := Counted(), folders=(SAMPLE.parent.parent,), most=max(events), of_one=0)
    assert [none(names[0]) is none(names[0]), len(counted.calls)] == [False, 2]


def test_of_several_processes_one_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sharing.FOLDER, str(tmp_path))
    first, second = (KeptTraces(Counted(), folders=(SAMPLE.parent,)) for _ in range(2))
    counted = second._decode
    one, other = first(str(SAMPLE)), second(str(SAMPLE))
    assert isinstance(counted, Counted)
    assert (counted.calls, other.path, other.events) == ([], one.path, one.events)
    assert other.columns.ts_ns.tolist() == one.columns.ts_ns.tolist()
    assert other.columns.names == one.columns.names
    large = KeptTraces(counted, folders=(SAMPLE.parent,), of_one=0)
    large(str(SAMPLE), keep_operators=False)
    large(str(SAMPLE), keep_operators=False)
    assert len(counted.calls) == 2


def test_runs_that_tests_load_share_what_was_read() -> None:
    assert isinstance(vars(reading)["decode"], KeptTraces)
    first, second = (load([SAMPLE.parent], cached=False).ranks[0].light for _ in range(2))
    assert first is second


def test_a_folder_of_recordings_is_kept_meanwhile(tmp_path: Path) -> None:
    copy = str(shutil.copy(SAMPLE, tmp_path))
    kept = keep()
    with keeping(tmp_path):
        assert kept(copy) is kept(copy)
    assert kept(copy) is not kept(copy)
