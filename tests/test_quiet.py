"""What is measured while the host takes the cores away is measured again, and never held against the code."""

import time

import pytest

from . import quiet


@pytest.fixture
def stolen(monkeypatch):
    """The seconds that the machine has been without its cores, to set."""
    seconds = [0.0]
    monkeypatch.setattr(quiet, "taken_s", lambda: seconds[0])
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
    with pytest.raises(pytest.skip.Exception, match=r"5.0%, 1.0%, 50.0% were taken away"):
        quiet.measured_in_quiet(attempts(stolen, (0.1, False), (0.02, False), (1.0, False)))


def test_what_the_kernel_counts_never_falls():
    before = quiet.taken_s()
    assert 0 <= before <= quiet.taken_s()
