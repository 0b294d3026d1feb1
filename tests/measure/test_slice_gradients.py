"""Slices and the gradients that their backward pass fills, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.slice_gradients import slice_gradients
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS, SLICES = 3, 16
NODE = "autograd::engine::evaluate_function: "
SIZE = [16, 8]


def sliced(at, number, size=SIZE, name="aten::select"):
    return operator(name, at, at + 2, **{"Sequence number": number, "Input Dims": [size, [], []]})


def node(at, number, name="SelectBackward0", length=10):
    return operator(NODE + name, at, at + length, **{"Sequence number": number})


def found_in(folder, slices=SLICES, size=SIZE, around=(), name="SelectBackward0", more=lambda at, number: ()):
    """Steps in which `read` takes slices, from 100 on, each with a node of 10 from 400 on."""
    events = []
    for n in range(STEPS):
        at, number = 1000 * n, 100 * n
        events += [step(n, at, at + 1000), python("net.py(12): read", at + 50, at + 300)]
        events += [python(frame, at + 60 + depth, at + 290 - depth) for depth, frame in enumerate(around)]
        events += [sliced(at + 100 + 5 * k, number + k, size) for k in range(slices)]
        events += [python("torch/_tensor.py(500): backward", at + 390, at + 900)]
        events += [node(at + 400 + 20 * k, number + slices - 1 - k, name) for k in range(slices)]
        events += more(at, number)
    loop = python("net.py(90): main", 0, 1000 * STEPS)
    return slice_gradients([view(0, load_events(folder, [loop, *events]).ranks[0].light)], {})


def test_the_nodes_count_for_the_function_that_takes_the_slices(tmp_path):
    (found,) = found_in(tmp_path)
    assert (found.name, found.at, found.size, found.through) == ("read", "net.py:12", [16, 8], "")
    assert (found.calls, found.cost_ns, found.backward_ns) == (16, 32 * US, 160 * US)
    assert found.share == pytest.approx(0.16)
    assert found.saved_share == pytest.approx(0.032 + 0.16)


def test_the_function_of_torch_that_takes_them(tmp_path):
    (found,) = found_in(
        tmp_path, around=("torch/autograd/functional.py(587): jacobian", "torch/_vmap_internals.py(224): wrapped")
    )
    assert (found.name, found.through) == ("read", "jacobian")
    # jacobian runs from 60 to 290 and creates 16 nodes of 10
    assert found.saved_share == pytest.approx(0.23 + 0.16)


def test_nodes_that_the_backward_pass_inside_of_jacobian_creates(tmp_path):
    """16 slices in a node that runs within jacobian, whose numbers lie between those before and after the call."""
    events = []
    for n in range(STEPS):
        at, number = 1000 * n, 100 * n
        events += [step(n, at, at + 1000), python("net.py(12): read", at + 50, at + 350)]
        events += [python("torch/autograd/functional.py(587): jacobian", at + 60, at + 300)]
        events += [operator("aten::tanh", at + 70, at + 80, **{"Sequence number": number, "Input Dims": [SIZE]})]
        events += [node(at + 100, number, "TanhBackward0", 150)]
        events += [sliced(at + 110 + 5 * k, number + 1 + k) for k in range(SLICES)]
        events += [operator("aten::mul", at + 310, at + 320, **{"Sequence number": number + 17, "Input Dims": [SIZE]})]
        events += [python("torch/_tensor.py(500): backward", at + 390, at + 990)]
        events += [node(at + 400, number + 17, "MulBackward0", 30)]
        events += [node(at + 440 + 20 * k, number + 16 - k) for k in range(SLICES)]
        events += [node(at + 800, number, "TanhBackward0", 50)]
    loop = python("net.py(90): main", 0, 1000 * STEPS)
    (found,) = slice_gradients([view(0, load_events(tmp_path, [loop, *events]).ranks[0].light)], {})
    # the call takes 240, and after it run 16 nodes of 10 and that of tanh, 50; not that of the product
    assert found.saved_share == pytest.approx(0.24 + 0.16 + 0.05)


@pytest.mark.parametrize("changed", [{"slices": 15}, {"size": []}, {"name": "UnbindBackward0"}])
def test_few_slices_unknown_sizes_and_other_nodes(tmp_path, changed):
    assert found_in(tmp_path, **changed) == []


def test_of_a_graph_that_runs_twice_the_first_pass_counts(tmp_path):
    """Another loss runs the same 16 nodes again, each for 4."""
    (found,) = found_in(
        tmp_path, more=lambda at, number: [node(at + 760 + 5 * k, number + k, length=4) for k in range(SLICES)]
    )
    assert found.backward_ns == 160 * US


def test_of_slices_of_two_sizes_those_whose_gradients_take_most(tmp_path):
    """16 slices of a smaller tensor by the same function have nodes of 4."""

    def smaller(at, number):
        return [
            *(sliced(at + 200 + 5 * k, number + 20 + k, [4]) for k in range(SLICES)),
            *(node(at + 760 + 5 * k, number + 20 + k, length=4) for k in range(SLICES)),
        ]

    (found,) = found_in(tmp_path, more=smaller)
    assert (found.size, found.calls, found.backward_ns) == (SIZE, 16, 160 * US)
