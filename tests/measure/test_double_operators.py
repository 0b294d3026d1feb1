"""Operators on float64 tensors, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host import operator_arguments
from dptune.measure.host.double_operators import double_functions
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3


def called(name, start, end, *inputs):
    """Inputs are types and shapes."""
    types, shapes = [kind for kind, _ in inputs], [shape for _, shape in inputs]
    return operator(name, start, end, **{"Input Dims": shapes, "Input type": types})


def found_in(folder, make, function="net.py(15): front"):
    events = []
    for n in range(STEPS):
        at = 1000 * n
        events += [step(n, at, at + 1000), python(function, at + 1, at + 499), *make(at + 10)]
    loop = python("net.py(90): main", 0, 1000 * STEPS)
    return double_functions([view(0, load_events(folder, [loop, *events]).ranks[0].light)], {})


def products(at):
    """A product of doubles takes 100, with an operator of its own inside; then a root, a cast and one of floats."""
    return [
        called("aten::matmul", at, at + 100, ("double", [64, 32]), ("double", [32, 32])),
        called("aten::mm", at + 10, at + 90, ("double", [64, 32]), ("double", [32, 32])),
        called("aten::sqrt", at + 105, at + 110, ("double", [64, 32])),
        called("aten::to", at + 110, at + 130, ("double", [64, 32]), ("Scalar", [])),
        called("aten::mul", at + 140, at + 240, ("float", [64, 32]), ("double", [])),
    ]


def test_the_function_and_what_it_spends(tmp_path):
    (found,) = found_in(tmp_path, products)
    assert (found.name, found.at, found.operator) == ("front", "net.py:15", "aten::matmul")
    assert (found.calls, found.cost_ns, found.backward_ns) == (4, 125 * US, 0)
    assert found.share == pytest.approx(0.125)


@pytest.mark.parametrize(
    "make",
    [
        lambda at: [called("aten::matmul", at, at + 100, ("float", [64, 32]), ("float", [32, 32]))],
        lambda at: [called("aten::sum", at, at + 100, ("double", [1000]))],
        lambda at: [*products(at), called("aten::linalg_cholesky", at + 300, at + 310, ("double", [32, 32]))],
        lambda at: [operator("aten::matmul", at, at + 100)],
        lambda at: [operator("aten::matmul", at, at + 100, **{"Input Dims": "odd", "Input type": ["double"]})],
    ],
)
def test_floats_few_numbers_and_decompositions(tmp_path, make):
    assert found_in(tmp_path, make) == []


def test_a_function_without_a_name_is_not_listed(tmp_path):
    assert found_in(tmp_path, products, "net.py(15): ") == []


def test_of_more_operators_than_are_read_again_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(operator_arguments, "MOST", -1)
    assert found_in(tmp_path, products) == []
