"""What is measured while others have the cores is measured again, and never held against the code."""

import time
from types import SimpleNamespace

import pytest

from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.load import LoadFacts
from dptune.runfile.window import Window

from . import quiet


@pytest.fixture(params=["taken_s", "used_s"])
def stolen(monkeypatch, request):
    """The seconds that others have had a core, by the host's choice or by this machine's, to set."""
    seconds = [0.0]
    for name in ("taken_s", "used_s"):
        monkeypatch.setattr(quiet, name, lambda own=name == request.param: seconds[0] if own else 0.0)
    monkeypatch.setattr(quiet, "USED", quiet.TAKEN)
    monkeypatch.setattr(time, "monotonic", iter(range(1000)).__next__)  # an attempt takes a second
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
    return seconds


def attempts(stolen, *outcomes):
    """An attempt that, at each number, has so many seconds stolen and passes or fails."""

    def attempt(number):
        lost, good = outcomes[number]
        stolen[0] += lost
        assert good, f"number {number}"
        return number

    return attempt


def test_the_first_attempt_that_holds_counts(stolen):
    assert quiet.measured_in_quiet(attempts(stolen, (0.0, True))) == 0
    assert quiet.measured_in_quiet(attempts(stolen, (0.0, False), (0.5, False), (0.5, True))) == 2


def test_it_fails_by_the_attempt_that_had_the_machine(stolen):
    with pytest.raises(AssertionError, match="number 1"):
        quiet.measured_in_quiet(attempts(stolen, (0.1, False), (0.01, False), (0.02, False)))


def test_it_is_skipped_where_none_had(stolen):
    with pytest.raises(pytest.skip.Exception, match=r"others had 5.0%, 1.0%, 50.0% of this"):
        quiet.measured_in_quiet(attempts(stolen, (0.1, False), (0.02, False), (1.0, False)))


def test_what_the_kernel_counts_never_falls():
    before = quiet.taken_s()
    assert 0 <= before <= quiet.taken_s()


def test_what_this_process_and_those_it_started_use_is_not_others(monkeypatch):
    """Of 130 s this process used 7 with a child that has ended, and one that runs 20; another ends as it is asked."""

    class Process:
        def __init__(self, *times):
            self.times = times

        def cpu_times(self):
            if not self.times:
                raise quiet.psutil.NoSuchProcess(9)
            return SimpleNamespace(
                **dict(zip(("user", "system", "children_user", "children_system"), self.times, strict=True))
            )

        def children(self, recursive):
            assert recursive
            return [Process(15, 3, 1, 1), Process()]

    machine = SimpleNamespace(user=100.0, nice=10.0, system=20.0, idle=900.0, irq=5.0, softirq=5.0, steal=50.0)
    monkeypatch.setattr(quiet.psutil, "cpu_times", lambda: machine)
    monkeypatch.setattr(quiet.psutil, "Process", lambda: Process(3, 1, 2, 1))
    assert quiet.used_s() == 103.0


def test_a_recording_as_if_alone_has_neither_load_nor_what_was_taken(tmp_path):
    window = Window("untraced", 3, load=LoadFacts(5, 2, 3, 2, 2, 1, 1, 4), taken_share=0.3)
    json_files.write(tmp_path / "rank-00000.facts.json", Facts(rank=0, windows=[window]))
    quiet.as_if_alone(tmp_path)
    (found,) = json_files.read(tmp_path / "rank-00000.facts.json", Facts).windows
    assert (found.load, found.taken_share, found.disturbed) == (None, None, False)
