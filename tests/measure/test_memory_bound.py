"""Operators that a function calls itself in a forward pass or a loss, by hand; microseconds, steps of 1000."""

import pytest

from dptune.measure.host.memory_bound import memory_bound_functions
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3
NODE = "autograd::engine::evaluate_function: "


def numbered(name, start, end, number, *shapes):
    return operator(name, start, end, **{"Sequence number": number, "Input Dims": [list(shape) for shape in shapes]})


def events_of(at, number):
    """A model's own multiplication of 50, and a loss that squares twice, 30 and 60, with nodes of 50 and 70.

    Beside them a layer, a product, an activation, an update, and arithmetic outside of the passes.
    """
    return [
        step(at // 1000, at, at + 1000),
        python("nn.Module: Net_0", at, at + 200),
        python("net.py(12): forward", at + 1, at + 199),
        numbered("aten::mul", at + 2, at + 52, number, (8, 4), ()),
        python("nn.Module: Linear_0", at + 60, at + 120),
        numbered("aten::add", at + 70, at + 110, number + 1, (8, 4)),  # in a layer
        numbered("aten::mm", at + 130, at + 150, number + 2, (8, 4), (4, 8)),
        numbered("aten::relu", at + 160, at + 180, number + 3, (8, 8)),
        python("net.py(40): loss", at + 210, at + 250),
        numbered("aten::square", at + 215, at + 245, number + 4, (8, 8)),
        python("net.py(40): loss", at + 255, at + 320),
        numbered("aten::square", at + 258, at + 318, number + 5, (16, 8)),
        python("torch/_tensor.py(500): backward", at + 330, at + 800),
        operator(NODE + "PowBackward0", at + 340, at + 390, **{"Sequence number": number + 5}),
        operator(NODE + "PowBackward0", at + 400, at + 470, **{"Sequence number": number + 4}),
        python("net.py(70): adjust", at + 811, at + 899),
        operator("aten::add_", at + 820, at + 890),
    ]


def found_in(folder, *more):
    events = [event for n in range(STEPS) for event in events_of(1000 * n, 10 * n)]
    loop = python("net.py(90): main", 0, 1000 * STEPS)
    return memory_bound_functions([view(0, load_events(folder, [loop, *events, *more]).ranks[0].light)])


def test_the_functions_own_operators_with_their_nodes(tmp_path):
    loss, forward = found_in(tmp_path)
    assert (loss.name, loss.at, loss.calls, loss.runs) == ("loss", "net.py:40", 2, 2)
    assert (loss.cost_ns, loss.backward_ns) == (90 * US, 120 * US)
    assert loss.share == pytest.approx(0.21)
    (square,) = loss.operators
    assert (square.name, square.calls, square.size) == ("aten::square", 2, [16, 8])
    assert square.share == pytest.approx(0.21)
    assert (forward.name, forward.cost_ns, [cost.name for cost in forward.operators]) == (
        "forward",
        50 * US,
        ["aten::mul"],
    )


def test_the_training_loop_is_marked(tmp_path):
    more = [operator("aten::mul", 1000 * n + 321, 1000 * n + 329) for n in range(STEPS)]
    more += [operator("aten::mul", 1000 * n + 910, 1000 * n + 960) for n in range(STEPS)]
    more += [python("nn.Module: Net_0", 1000 * n + 905, 1000 * n + 906) for n in range(STEPS)]
    more += [python("torch/_tensor.py(500): backward", 1000 * n + 970, 1000 * n + 980) for n in range(STEPS)]
    marked = {function.name: function.calls_backward for function in found_in(tmp_path, *more)}
    assert marked == {"loss": False, "forward": False, "main": True}


def test_what_an_installed_package_calls_is_left_out(tmp_path):
    more = []
    for n in range(STEPS):
        more += [python("torchmetrics/metric.py(5): update", 1000 * n + 321, 1000 * n + 329)]
        more += [operator("aten::mul", 1000 * n + 322, 1000 * n + 328)]
    assert {function.name for function in found_in(tmp_path, *more)} == {"loss", "forward"}


def test_a_call_that_waits_for_a_core_counts_as_four_of_the_others(tmp_path):
    """Calls of 20 on 32 elements, one of which takes 170 in the last step: 80 of that count, so 120 in three steps.

    A call on 64 elements is alone of its size in each step: it takes 60 and counts whole.
    """
    events = [python("net.py(90): main", 0, 1000 * STEPS)]
    for n in range(STEPS):
        at = 1000 * n
        events += [step(n, at, at + 1000), python("nn.Module: Net_0", at, at + 300)]
        events += [python("net.py(60): scaled", at + 1, at + 299)]
        events += [numbered("aten::mul", at + 10, at + (180 if n == STEPS - 1 else 30), n, (8, 4))]
        events += [numbered("aten::mul", at + 200, at + 260, n, (8, 8))]
        events += [python("torch/_tensor.py(500): backward", at + 330, at + 800)]
    (found,) = memory_bound_functions([view(0, load_events(tmp_path, events).ranks[0].light)])
    assert (found.name, found.cost_ns) == ("scaled", (40 + 60) * US)
    assert found.share == found.operators[0].share == pytest.approx(0.1)
