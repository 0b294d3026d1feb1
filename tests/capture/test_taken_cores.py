"""What the host of a virtual machine took of its cores' time while a window was open."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dptune.capture import recording, repeats
from dptune.capture.injected.observe import stolen_time
from dptune.capture.injected.observe.stolen_time import Ticks, taken_share
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.record import Schedule
from dptune.runfile.window import MOST_TAKEN, Window


def test_this_machine_counts_and_its_count_grows():
    first, second = Ticks.now(), Ticks.now()
    assert first is not None
    assert second is not None
    assert first.ran > 0
    assert second.ran >= first.ran
    assert second.taken >= first.taken


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu a b c d e f g h\n", "cpu  1 2 3 4 5 6 7\n"])
def test_a_kernel_that_counts_otherwise_tells_nothing(tmp_path, monkeypatch, text):
    counts = tmp_path / "stat"
    counts.write_text(text)
    monkeypatch.setattr(stolen_time, "_COUNTS", str(counts))
    assert Ticks.now() is None
    monkeypatch.setattr(stolen_time, "_COUNTS", str(tmp_path / "none"))
    assert Ticks.now() is None


def test_what_ran_is_all_but_idle(tmp_path, monkeypatch):
    counts = tmp_path / "stat"
    counts.write_text("cpu  100 20 30 4000 500 6 7 80 9 1\ncpu0 1 2 3 4 5 6 7 8 9 1\n")
    monkeypatch.setattr(stolen_time, "_COUNTS", str(counts))
    assert Ticks.now() == Ticks(ran=100 + 20 + 30 + 6 + 7, taken=80)


@pytest.mark.parametrize(
    ("begun", "ended", "share"),
    [
        (Ticks(100, 10), Ticks(190, 20), 0.1),
        (Ticks(100, 10), Ticks(200, 10), 0.0),
        (Ticks(100, 10), Ticks(130, 20), None),  # so few ticks may be chance
        (Ticks(100, 10), Ticks(300, 9), None),  # some kernels count backwards
        (None, Ticks(300, 9), None),
        (Ticks(300, 9), None, None),
    ],
)
def test_the_part_of_what_cores_had_to_do(begun, ended, share):
    assert taken_share(begun, ended) == (None if share is None else pytest.approx(share))


def repeated(tmp_path, monkeypatch, shares, times):
    """Which repeats are kept, and what was said, where such a part was taken of each, in the order of running."""
    given = iter(shares)

    def record(started, options):
        options.run_dir.mkdir()
        window = Window(name="untraced", first_step=5, durations_ns=[10**7], taken_share=next(given))
        json_files.write(options.run_dir / "rank-00000.facts.json", Facts(rank=0, windows=[window]))
        return SimpleNamespace(complete=True, interrupted=False, hung=False, folder=options.run_dir)

    monkeypatch.setattr(recording, "record", record)
    monkeypatch.setattr(repeats, "replace", lambda old, **new: SimpleNamespace(**{**vars(old), **new}))
    options = SimpleNamespace(schedule=Schedule(5, 1, 0, 0), environment={}, limits=SimpleNamespace())
    said = []
    assert repeats.repeat(None, options, tmp_path, times, said.append) is None
    kept = sorted(path.parent for path in tmp_path.glob("repeats/*/rank-00000.facts.json"))
    return {
        path.name: json_files.read(path / "rank-00000.facts.json", Facts).windows[0].taken_share for path in kept
    }, said


def test_a_repeat_that_lost_its_cores_is_run_anew(tmp_path, monkeypatch):
    kept, said = repeated(tmp_path, monkeypatch, [0.0, 0.3, None, MOST_TAKEN], 3)
    assert kept == {"1": 0.0, "2": None, "3": MOST_TAKEN}
    assert "30 % of the CPU time was taken by other virtual machines: running that one again" in said


def test_where_cores_are_always_taken_it_ends_all_the_same(tmp_path, monkeypatch):
    kept, said = repeated(tmp_path, monkeypatch, [0.3, 0.31, 0.32, 0.33], 2)
    assert kept == {"1": 0.32, "2": 0.33}
    assert len([line for line in said if "running that one again" in line]) == 2


def test_a_window_is_disturbed_by_more_than_the_most():
    window = Window(name="light", first_step=5)
    assert [replace(window, taken_share=share).disturbed for share in (None, 0.0, MOST_TAKEN, MOST_TAKEN + 0.001)] == [
        *(False, False, False),
        True,
    ]
