"""More of the same work by the shapes of tensors: two ranks, by hand. Times in microseconds."""

import pytest

from dptune.measure.host.elements import elements_per_step
from dptune.measure.straggler import by_shapes
from dptune.measure.views import view
from dptune.measured import ArrivalFigures, LagDifference, StragglerFigures

from .handmade import load_events, operator, step


def rank(rows, shaped=True):
    """Two steps of a product of `rows` x 4 and 4 x 5, and an operator outside of them."""
    events = [operator("aten::add", 5, 9, **{"Input Dims": [[1000], []]})]
    for number in range(2):
        at = 100 + 1000 * number
        dims = {"Input Dims": [[rows, 4], [[4, 5], [5]], []]} if shaped else {}
        events += [step(number, at, at + 1000), operator("aten::mm", at + 10, at + 500, **dims)]
        events += [operator("autograd::engine", at + 600, at + 700, **{"Input Dims": [[999, 999]]})]
    return events


def elements(folder, *ranks):
    run = load_events(folder, *ranks, backend="gloo")
    return [elements_per_step(view(one.rank, one.light)) for one in run.ranks]


def test_elements_that_operators_read_in_a_step(tmp_path):
    assert elements(tmp_path, rank(10), rank(30)) == [10 * 4 + 4 * 5 + 5 + 1, 30 * 4 + 4 * 5 + 5 + 1]


def test_without_shapes_nothing_is_known(tmp_path):
    assert elements(tmp_path, rank(10, shaped=False)) == [None]


def test_without_operators_nothing_is_known(tmp_path):
    assert elements(tmp_path, [step(0, 0, 100), operator("autograd::engine", 10, 90)]) == [None]


def late(ratio, kind="work", others_ns=35, share=0.6):
    difference = LagDifference.only("by hand", kind=kind, name="forward", rank_ns=78, others_ns=others_ns, share=share)
    missing = {"gain_share": "by hand"} | ({"work_ratio": "by hand"} if ratio is None else {})
    return StragglerFigures(
        rank=1,
        lag_ns=43,
        steps_share=1.0,
        waiting_share=0.3,
        work_ratio=ratio,
        differences=[difference],
        missing=missing,
    )


@pytest.mark.parametrize(
    ("figures", "moves"),
    [
        (late(2.2), True),
        (late(1.0), False),  # the same tensors: it is slower
        (late(None), None),
        (late(2.2, "function", others_ns=0), False),  # a stall, whatever else it has to do
        (late(2.2, "function", others_ns=30), True),  # all ranks run it, this one on more samples
        (late(None, "gap", others_ns=0), False),
    ],
)
def test_what_moves_to_the_others_once_it_is_mended(figures, moves):
    assert figures.moves is moves


@pytest.mark.parametrize(
    ("ratio", "cause", "found"),
    [
        (2.2, None, "more compute"),  # other processes disturbed the durations: no class covers half of the lag
        (2.2, "slower compute", "more compute"),
        (1.0, "more compute", "slower compute"),
        (1.0, None, None),
        (None, "more compute", "more compute"),
        (2.2, "input", "input"),
    ],
)
def test_shapes_decide_whether_compute_is_more_or_slower(ratio, cause, found):
    missing = {} if cause else dict.fromkeys(("cause", "cause_share"), "no single cause explains half of its lag")
    covers = 0.9 if cause else None
    arrival = ArrivalFigures(
        collectives=4, last_share=1.0, lag_ns=43, steps=[], cause=cause, cause_share=covers, missing=missing
    )
    assert by_shapes(arrival, late(ratio)).known("cause") == found
