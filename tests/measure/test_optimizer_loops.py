"""Optimizer steps of the script, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.optimizer_loops import optimizer_loops
from dptune.measure.views import view

from .handmade import US, annotation, load_events, operator, python, step

STEPS = 2


def rank_view(folder, *around, calls=("mul_", "add_", "sqrt", "detach"), rank=0):
    """Two steps with operators of 50 each from 300 on, within these functions of the optimizer's range."""
    events = []
    for n in range(STEPS):
        at = 1000 * n
        events += [step(n, at, at + 1000), annotation("Optimizer.step#Lamb.step", at + 200, at + 800)]
        events += [python(name, at + start, at + end) for name, start, end in around]
        events += [
            operator(f"aten::{name}", at + 300 + 60 * place, at + 350 + 60 * place, **{"Input Dims": [[8]]})
            for place, name in enumerate(calls)
        ]
    loop = python("train.py(90): main", 0, 1000 * STEPS)
    return view(rank, load_events(folder, [loop, *events]).ranks[0].light)


def found_in(folder, *around):
    return optimizer_loops([rank_view(folder, *around)], {})


def test_the_class_its_functions_and_operators(tmp_path):
    (found,) = found_in(tmp_path, ("train.py(20): step", 210, 790), ("train.py(31): update", 350, 400))
    assert found.optimizer == "Lamb"
    assert found.functions == ["step at train.py:20", "update at train.py:31"]
    assert found.operators == {"mul_": 1, "add_": 1, "sqrt": 1}  # a view computes nothing
    assert found.cost_ns == 150 * US
    assert found.share == pytest.approx(0.15)


@pytest.mark.parametrize(
    "around",
    [
        [("torch/optim/adam.py(213): step", 210, 790)],
        [("timm/optim/lamb.py(60): step", 210, 790)],
        [("train.py(20): step", 210, 790), ("torch/optim/adam.py(213): step", 220, 780)],  # inherits from it
        [],  # only the training loop is around
        [("torch/optim/adam.py(213): step", 210, 790), ("train.py(50): training_step", 220, 780)],  # a closure
        [("train.py(20): step", 210, 790), ("nn.Module: Net_0", 220, 780), ("train.py(60): forward", 230, 770)],
    ],
)
def test_steps_of_torch_and_of_packages_are_none_of_the_scripts(tmp_path, around):
    assert found_in(tmp_path, *around) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_rank_on_which_it_takes_most(tmp_path, order):
    """Two operators on rank 0, one on rank 1."""
    views = []
    for rank, calls in enumerate((("mul_", "add_"), ("mul_",))):
        (tmp_path / str(rank)).mkdir()
        views.append(rank_view(tmp_path / str(rank), ("train.py(20): step", 210, 790), calls=calls, rank=rank))
    (found,) = optimizer_loops([views[rank] for rank in order], {})
    assert (found.rank, found.cost_ns) == (0, 100 * US)
