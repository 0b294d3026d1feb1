"""The load of a machine, by hand: what its ranks counted -> cores of the job, of others, and what these withheld."""

from __future__ import annotations

import pytest

from dptune.measure.load import UNCOUNTED, UNRECORDED, load
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.load import LoadFacts
from dptune.runfile.window import Window

S = 10**9


def rank(number, host="a", seconds=10, machine=None, job=5.0, waited=2.0, window="untraced"):
    """`machine`, `job` and `waited` in seconds of CPU time."""
    counts = {"machine_ns": machine, "job_ns": job, "waited_ns": waited}
    found = LoadFacts(seconds * S, 4, **{name: None if of is None else round(of * S) for name, of in counts.items()})
    return Facts(rank=number, host=host, windows=[Window(window, 3, load=found)])


def test_what_others_used_and_withheld():
    """Two ranks use 0.5 cores each and wait for 0.2 each; the machine's 1.8 cores leave 0.8 to others."""
    (found,) = load([rank(0, machine=18), rank(1, machine=18)], 2)
    assert (found.host, found.window, found.cores) == ("a", "untraced", 4)
    assert (found.job_cores, found.other_cores) == (pytest.approx(1.0), pytest.approx(0.8))
    assert found.waiting_cores == pytest.approx(0.4)
    assert found.withheld_share == pytest.approx(0.4 / 1.4)


def test_threads_of_the_job_that_wait_for_each_other_were_not_held_up_by_others():
    """They wait for 4 cores, but others used only 0.1."""
    (found,) = load([rank(0, machine=21, job=20, waited=40)], 1)
    assert found.other_cores == pytest.approx(0.1)
    assert found.withheld_share == pytest.approx(0.1 / 2.1)


def test_a_busy_machine_with_free_cores_withholds_nothing():
    (found,) = load([rank(0, machine=35, job=5, waited=0)], 1)
    assert (found.other_cores, found.withheld_share) == (pytest.approx(3.0), 0.0)


def test_threads_that_wait_beside_free_cores_are_not_held_up_by_others():
    """2 of 16 cores in use or waited for; but ranks that may use 2 of them may share these with the others."""
    for usable, withheld in ((16, 0.0), (2, 0.4 / 1.4)):
        ranks = [rank(0, machine=18), rank(1, machine=18)]
        for each in ranks:
            each.device = DeviceFacts("cuda", usable_cores=usable)
            each.windows[0].load.cores = 16
        (found,) = load(ranks, 2)
        assert found.withheld_share == pytest.approx(withheld)


def test_machines_and_windows_are_apart():
    ranks = [rank(0, machine=5), rank(1, host="b", machine=10), rank(2, host="b", machine=10)]
    ranks[0].windows += rank(0, window="light", machine=5).windows
    found = load(ranks, 3)
    assert [(one.host, one.window, round(one.job_cores, 2)) for one in found] == [
        ("a", "untraced", 0.5),
        ("a", "light", 0.5),
        ("b", "untraced", 1.0),
    ]


def test_where_it_was_not_counted_it_is_not_known():
    assert load([], None) == UNCOUNTED
    assert load([Facts(rank=0, windows=[Window("untraced", 3)])], 1) == UNCOUNTED
    assert load([rank(0, machine=None)], 1) == UNCOUNTED
    assert load([rank(0, machine=20)], 2) == UNRECORDED  # the other rank's load would count as that of others
    (found,) = load([rank(0, machine=20, waited=None)], 1)
    assert found.other_cores == pytest.approx(1.5)
    assert found.missing["withheld_share"] == "the kernel does not count how long threads wait for a core"
