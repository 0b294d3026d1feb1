"""Modules that a function calls again and again, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.user_code import user_code
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3


def linear(at, rows):
    shape = [32] if rows is None else [rows, 32]
    return operator("aten::linear", at + 2, at + 5, **{"Input Dims": [shape, [64, 32], [64]]})


def module(at, name, rows):
    """A sequence of 12 with a product of 3 in a layer of 10."""
    called = python(f"nn.Module: {name}", at, at + 12)
    layer = python("nn.Module: Linear_7", at + 1, at + 11)
    return [called, python("torch/nn/modules/container.py(240): forward", at, at + 12), layer, linear(at, rows)]


def loops(folder, make, function="net.py(12): encode", more=()):
    events = []
    for n in range(STEPS):
        at = 1000 * n
        events += [step(n, at, at + 1000), python(function, at + 5, at + 600), *make(at + 10)]
        events += [python(name, at + start, at + end) for name, start, end in more]
    loop = python("net.py(90): main", 0, 1000 * STEPS)
    return user_code([view(0, load_events(folder, [loop, *events]).ranks[0].light)], {}).loops


def repeated(rows, times=20, name="Sequential_0"):
    return lambda at: [
        event
        for number in range(times)
        for event in module(at + 20 * number, name.format(number), rows[number % len(rows)])
    ]


@pytest.mark.parametrize(
    ("rows", "alone"), [([1], True), ([None], True), ([3, 5, 4], True), ([8], False)]
)  # of one sample, of a row, of documents of different lengths, of a whole batch
def test_one_module_called_again_and_again(tmp_path, rows, alone):
    (loop,) = loops(tmp_path, repeated(rows))
    assert (loop.name, loop.at, loop.module, loop.operator) == ("encode", "net.py:12", "Sequential", "aten::linear")
    assert (loop.repeats, loop.alone) == (20, alone)
    assert loop.cost_ns >= 20 * 3 * US


def test_slices_between_the_calls_do_not_hide_them(tmp_path):
    """The function slices its input for each call: 20 slices of 1 beside 20 products of 3."""

    def make(at):
        slices = [operator("aten::select", at + 20 * number + 14, at + 20 * number + 15) for number in range(20)]
        return [*repeated([1])(at), *slices]

    (loop,) = loops(tmp_path, make)
    assert (loop.module, loop.operator, loop.repeats) == ("Sequential", "aten::linear", 20)


def test_each_call_may_run_an_operator_several_times(tmp_path):
    """Two products in each of 20 calls."""

    def make(at):
        return [*repeated([1])(at), *(linear(at + 20 * number + 5, 1) for number in range(20))]

    (loop,) = loops(tmp_path, make)
    assert loop.repeats == 20


def test_what_a_single_call_runs_is_not_repeated(tmp_path):
    """The last of 21 calls also sorts, for longer than all the products take."""

    def make(at):
        last = [python("nn.Module: Sequential_0", at + 410, at + 500), linear(at + 410, 1)]
        return [*repeated([1])(at), *last, operator("aten::sort", at + 420, at + 490)]

    (loop,) = loops(tmp_path, make)
    assert (loop.operator, loop.repeats) == ("aten::linear", 21)


def test_fewer_calls_are_no_loop(tmp_path):
    assert [loop.repeats for loop in loops(tmp_path, repeated([8], times=4))] == [4]  # rules ask for more
    assert loops(tmp_path, repeated([1], times=3)) == []


def test_layers_called_one_after_the_other_are_no_loop(tmp_path):
    assert loops(tmp_path, repeated([1], name="Sequential_{}")) == []


def test_micro_batches_are_no_loop(tmp_path):
    """The function runs a backward pass after each call."""
    passes = [("torch/_tensor.py(500): backward", 18 + 20 * number, 25 + 20 * number) for number in range(20)]
    assert loops(tmp_path, repeated([1]), more=passes) == []


def test_one_backward_pass_after_all_calls(tmp_path):
    """The loop adds up a loss for each position."""
    (loop,) = loops(tmp_path, repeated([8]), more=[("torch/_tensor.py(500): backward", 450, 590)])
    assert (loop.name, loop.module, loop.repeats) == ("encode", "Sequential", 20)


def test_the_training_loop_may_call_its_model_often(tmp_path):
    assert loops(tmp_path, repeated([1]), function="torch/nn/functional.py(12): encode") == []
