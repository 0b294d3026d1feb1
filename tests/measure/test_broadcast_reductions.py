"""Pairs that broadcasting writes out and a reduction adds up, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.broadcast_reductions import broadcast_reductions
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3
LEFT, RIGHT, WHOLE = [64, 1, 16], [1, 64, 16], [64, 64, 16]


def called(name, start, end, *shapes, values=(), strides=()):
    arguments = {"Input Dims": list(shapes), "Concrete Inputs": list(values), "Input Strides": list(strides)}
    return operator(f"aten::{name}", start, end, **arguments)


def difference(at=10, left=LEFT, right=RIGHT, name="sub", strides=()):
    return called(name, at, at + 100, left, right, [], values=["", "", "1"], strides=strides)


def square(at=120, shape=WHOLE, power="2"):
    return called("pow", at, at + 50, shape, [], values=["", power])


def total(at=180, shape=WHOLE, dim="[-1]", name="sum"):
    return called(name, at, at + 40, shape, [], [], [], values=["", dim, "False", ""])


def norm(at=180, order="2", dim="[2]"):
    return called("linalg_vector_norm", at, at + 40, WHOLE, [], [], values=["", order, dim, "False", ""])


def found_in(folder, *calls):
    events = []
    for n in range(STEPS):
        at = 1000 * n
        moved = [event | {"ts": event["ts"] + at} for event in calls]
        events += [step(n, at, at + 1000), python("jets.py(13): nearest", at + 1, at + 900), *moved]
    loop = python("jets.py(90): main", 0, 1000 * STEPS)
    return broadcast_reductions([view(0, load_events(folder, [loop, *events]).ranks[0].light)], {})


def test_the_function_the_sizes_and_all_operators_of_the_chain(tmp_path):
    (found,) = found_in(tmp_path, difference(), square(), total())
    assert (found.name, found.at, found.kind) == ("nearest", "jets.py:13", "squared")
    assert (found.left, found.right, found.whole) == (LEFT, RIGHT, WHOLE)
    assert (found.calls, found.cost_ns, found.backward_ns) == (1, 190 * US, 0)
    assert found.share == pytest.approx(0.19)


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([difference(), called("mul", 120, 150, WHOLE, WHOLE), total()], "squared"),
        ([difference(), square(), total(name="mean")], "squared"),
        ([difference(), square(power="3"), total()], None),
        ([difference(), called("abs", 120, 150, WHOLE), total()], "absolute"),
        ([difference(), norm()], "distance"),
        ([difference(), norm(order="1")], None),
        ([difference(), total()], None),  # of differences themselves
        ([difference(name="mul"), total()], "product"),
        ([difference(name="mul"), square(), total()], None),
        ([difference(), square(), total(dim="[0]")], None),  # over rows: no distance
        ([difference(), square(), total(dim="[1, 2]")], None),
        ([difference(), square(), total(dim="[]")], None),
        ([difference(), called("exp", 120, 150, WHOLE), total()], None),
        ([difference(), square()], None),
        ([difference(), square(), total(), called("mul", 300, 350, WHOLE, [64, 64, 1])], None),  # needed again
        ([difference(), square(), total(), called("view", 300, 301, WHOLE)], "squared"),
        ([called("cosine_similarity", 10, 300, LEFT, RIGHT, [], [])], "cosine"),
        ([called("pairwise_distance", 10, 300, LEFT, RIGHT, [], [], [])], "distance"),
        ([called("cosine_similarity", 10, 300, [4096, 16], [4096, 16], [], [])], None),
        ([difference(left=[64, 64, 16], right=[1, 64, 16]), square(), total()], None),  # as large as an input
        ([difference(left=[4, 1, 16], right=[1, 4, 16]), square(shape=[4, 4, 16]), total(shape=[4, 4, 16])], None),
        ([called("sub", 10, 110, LEFT, [2, 3]), square(), total()], None),  # sizes that do not fit
    ],
)
def test_what_a_chain_computes(tmp_path, calls, kind):
    assert [found.kind for found in found_in(tmp_path, *calls)] == ([] if kind is None else [kind])


def test_an_expanded_input_has_its_size_in_memory(tmp_path):
    first = difference(left=WHOLE, strides=[[16, 0, 1], [0, 16, 1], []])
    (found,) = found_in(tmp_path, first, square(), total())
    assert found.left == LEFT


def test_two_chains_of_one_size(tmp_path):
    again = [difference(400), square(520), total(580)]
    (found,) = found_in(tmp_path, difference(), square(), total(), *again)
    assert (found.calls, found.cost_ns) == (2, 380 * US)


def test_without_sizes_nothing_is_known(tmp_path):
    assert found_in(tmp_path, operator("aten::sub", 10, 110), operator("aten::sum", 120, 160)) == []
