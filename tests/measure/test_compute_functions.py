"""Functions of the script by what they compute, with their backward pass, by hand; microseconds, steps of 1000."""

from pathlib import Path

import pytest

from dptune.measure.host.compute_functions import compute_functions
from dptune.measure.views import view

from ..reading import measured  # noqa: TID252 - tests are no installed package
from .handmade import US, kernel, launch, load_events, operator, python, step

RUNS = Path(__file__).parents[1] / "rules" / "recorded" / "runs"
STEPS = 3
NODE = "autograd::engine::evaluate_function: "


def events_of(at, number):
    """Forward: a product of 100 and a relu of 20; a penalty of 50 in the loss; backward nodes of 150, 30 and 90."""
    return [
        step(at // 1000, at, at + 1000),
        python("nn.Module: Net_0", at, at + 200),
        python("net.py(12): forward", at + 1, at + 199),
        operator("aten::linear", at + 10, at + 110, **{"Sequence number": number}),
        operator("aten::addmm", at + 12, at + 108, **{"Sequence number": number}),
        operator("aten::relu", at + 120, at + 140, **{"Sequence number": number + 1}),
        python("net.py(40): penalty", at + 210, at + 290),
        operator("aten::pow", at + 220, at + 270, **{"Sequence number": number + 2}),
        python("torch/_tensor.py(500): backward", at + 300, at + 800),
        operator(NODE + "PowBackward0", at + 310, at + 400, **{"Sequence number": number + 2}),
        operator(NODE + "ReluBackward0", at + 410, at + 440, **{"Sequence number": number + 1}),
        operator(NODE + "AddmmBackward0", at + 450, at + 600, **{"Sequence number": number}),
        operator("aten::mm", at + 460, at + 590),  # counted with its node
        operator("Optimizer.step#SGD.step", at + 810, at + 900),
        python("net.py(70): adjust", at + 811, at + 899),
        operator("aten::add_", at + 820, at + 890),  # the optimizer's
    ]


def rank_view(folder, *more):
    events = [event for n in range(STEPS) for event in events_of(1000 * n, 10 * n)]
    loop = python("net.py(90): main", 0, 1000 * STEPS)
    return view(0, load_events(folder, [loop, *events, *more]).ranks[0].light)


def test_operators_count_for_their_function_with_their_nodes(tmp_path):
    forward, penalty = compute_functions([rank_view(tmp_path)])
    assert (forward.name, forward.at, forward.operator, forward.calls) == ("forward", "net.py:12", "aten::linear", 2)
    assert (forward.cost_ns, forward.backward_ns) == (120 * US, 180 * US)
    assert forward.share == pytest.approx(0.3)
    assert (penalty.name, penalty.at, penalty.operator) == ("penalty", "net.py:40", "aten::pow")
    assert (penalty.cost_ns, penalty.backward_ns, penalty.rank) == (50 * US, 90 * US, 0)
    assert not forward.calls_backward
    assert not penalty.calls_backward


def test_the_training_loop_is_marked(tmp_path):
    more = [operator("aten::mean", 1000 * n + 910, 1000 * n + 930) for n in range(STEPS)]
    *_, main = compute_functions([rank_view(tmp_path, *more)])
    assert (main.name, main.cost_ns, main.calls_backward) == ("main", 20 * US, True)


def test_on_a_gpu_kernels_count(tmp_path):
    """A kernel of 300 for the penalty, launched within its operator, and one of 40 by its node; none for the others."""
    more = []
    for n in range(STEPS):
        more += [launch(10 * n + 1, 1000 * n + 230, 1000 * n + 235), launch(10 * n + 2, 1000 * n + 320, 1000 * n + 325)]
        more += [kernel("pow", 1000 * n + 240, 1000 * n + 540, 10 * n + 1)]
        more += [kernel("pow_grad", 1000 * n + 550, 1000 * n + 590, 10 * n + 2)]
    (penalty,) = compute_functions([rank_view(tmp_path, *more)])
    assert (penalty.name, penalty.cost_ns, penalty.backward_ns) == ("penalty", 300 * US, 40 * US)


def test_without_stacks_nothing_is_known(tmp_path):
    events = [step(n, 1000 * n, 1000 * n + 1000) for n in range(STEPS)]
    events += [operator("aten::mm", 1000 * n + 1, 1000 * n + 900) for n in range(STEPS)]
    assert compute_functions([view(0, load_events(tmp_path, events).ranks[0].light)]) is None


@pytest.mark.long
def test_functions_share_what_a_recorded_step_computes():
    """One of them is named by the sorts that it calls; all together compute no longer than the step."""
    figures = measured(RUNS / "full-sorts")
    functions = figures.compute_functions
    (sort, *_) = figures.user_code.full_sorts
    (same,) = [function for function in functions if (function.name, function.at) == (sort.name, sort.at)]
    assert same.cost_ns >= sort.cost_ns > 0
    assert 0 < sum(function.share for function in functions) <= figures.attribution.compute_share + 1e-9
