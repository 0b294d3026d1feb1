"""The line at which a rank spends longer than the others: stack samples made up, times worked out by hand."""

import pytest

from dptune.runfile.facts import Facts
from dptune.runfile.late_lines import LateLine, late_line
from dptune.runfile.window import SampledFacts, Window

LOOP = "main (train.py:40)"


def rank(number, *places, steps=10):
    """`places`: phase, ms in all steps together, and the lines below the loop."""
    window = Window("untraced", 3, [100_000_000] * steps)
    window.sampled = [
        SampledFacts([LOOP, *lines], phase, looks=9, steps=[0], spent_ns=[ms * 1_000_000])
        for phase, ms, *lines in places
    ]
    return Facts(number, windows=[window])


AUGMENT, CUT = "augment (train.py:20)", "cut (train.py:9)"
USUAL = [("forward", 200, "Net.forward (net.py:5)"), ("", 50, AUGMENT)]


def test_the_innermost_line_that_explains_most():
    """300 + 40 ms of the late rank in ten steps against 50 of the others: 29 ms a step, 30 of them in `cut`."""
    late = rank(2, USUAL[0], ("", 300, AUGMENT, CUT), ("", 40, AUGMENT))
    facts = [rank(0, *USUAL), rank(1, *USUAL), late]
    assert late_line(facts, 2, 15e6) == LateLine("cut", "train.py:9", pytest.approx(30e6))
    assert late_line(facts, 2, 31e6) is None
    assert late_line(facts, 0, 15e6) is None


def test_a_line_that_all_run_and_a_line_where_others_wait():
    """What they all run counts by its difference; in a backward pass the others wait."""
    late = rank(1, ("forward", 500, "Net.forward (net.py:5)"), ("backward", 100, "main (train.py:44)"))
    other = rank(0, USUAL[0], ("backward", 900, "main (train.py:44)"))
    assert late_line([other, late], 1, 10e6) == LateLine("Net.forward", "net.py:5", pytest.approx(30e6))
    assert late_line([other, late], 0, 10e6) is None


def test_one_rank_or_none_sampled():
    assert late_line([rank(0, *USUAL)], 0, 1.0) is None
    assert late_line([Facts(0), Facts(1)], 0, 1.0) is None
    assert late_line([rank(0, *USUAL), Facts(1)], 1, 1.0) is None
