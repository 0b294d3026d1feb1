"""Loops over operators, by hand; times in microseconds.

A step of 4000 on a CPU: the forward pass runs to 1000, the loss to 3000, the backward pass to 4000. The loss calls an
operator of 20 each 100, for each of 16 samples or more.
"""

import pytest

from dptune.measure.host.user_code import user_code
from dptune.measure.views import view

from .handmade import BACKWARD, US, launched, load_events, operator, python, step

STEPS = 3
LENGTH = 4000


def looped(folder, repeats=16, loop=None, nodes=(), more=()):
    def ours(at):
        return [operator("aten::dot", at + 1010 + 100 * n, at + 1030 + 100 * n) for n in range(repeats)]

    events = [python("train.py(90): main", 0, LENGTH * STEPS), *more]
    for n in range(STEPS):
        at = LENGTH * n
        events += [
            step(n, at, at + LENGTH),
            python("nn.Module: Net_0", at, at + 1000),
            python("model.py(12): forward", at + 2, at + 998),
            *(operator("aten::mm", at + 10 + 100 * k, at + 90 + 100 * k) for k in range(9)),
            python("loss.py(20): pairs", at + 1001, at + 2999),
            *(loop or ours)(at),
            python("torch/_tensor.py(500): backward", at + 3000, at + 4000),
            operator(BACKWARD, at + 3010, at + 3990),
            *(operator(name, at + 3100 + 10 * k, at + 3105 + 10 * k) for k, name in enumerate(nodes)),
        ]
    found = user_code([view(0, load_events(folder, events).ranks[0].light)], {})
    return {one.name: one for one in found.loops}


def test_an_operator_that_a_loss_calls_for_each_sample(tmp_path):
    found = looped(tmp_path)
    assert found.keys() == {"pairs"}  # the model's operators are nine
    loop = found["pairs"]
    assert (loop.at, loop.phase, loop.operator, loop.repeats) == ("loss.py:20", "forward", "aten::dot", 16)
    # Each operator takes 20, and Python up to 80 to call the next one, of which 50 count.
    assert loop.cost_ns / US == pytest.approx(16 * 70, abs=50)
    assert loop.share == pytest.approx(loop.cost_ns / US / LENGTH)


def test_what_is_called_a_few_times_is_no_loop(tmp_path):
    assert looped(tmp_path, repeats=15) == {}


def test_what_modules_call_is_no_loop(tmp_path):
    """One layer after the other: each is called by a module."""

    def layers(at):
        begins = [(n, at + 1010 + 100 * n) for n in range(16)]
        return [
            event
            for n, begin in begins
            for event in (
                python(f"nn.Module: Linear_{n}", begin, begin + 30),
                operator("aten::linear", begin + 1, begin + 29),
            )
        ]

    assert looped(tmp_path, loop=layers) == {}


@pytest.mark.parametrize(
    ("nodes", "backward"),
    [
        (["DotBackward0"] * 16, True),
        (["MmBackward0"] * 16, False),
        (["DotBackward0", *["MmBackward0"] * 15], False),  # elsewhere in the model
    ],
)
def test_the_backward_pass_runs_nodes_of_operators_whose_results_need_gradients(tmp_path, nodes, backward):
    names = [f"autograd::engine::evaluate_function: {name}" for name in nodes]
    assert looped(tmp_path, nodes=names)["pairs"].backward is backward


def test_in_place_operators_on_parts_of_a_tensor(tmp_path):
    def fills(at):
        return [operator("aten::fill_", at + 1010 + 100 * n, at + 1030 + 100 * n) for n in range(16)]

    nodes = ["autograd::engine::evaluate_function: CopySlices"] * 16
    assert looped(tmp_path, loop=fills, nodes=nodes)["pairs"].backward
    assert not looped(tmp_path, nodes=nodes)["pairs"].backward


def numbered(at):
    """Sixteen operators of 100 elements make nodes 10 to 25; the engine runs each of these for 30, and others, too."""
    found = [
        operator("aten::dot", at + 1010 + 100 * n, at + 1030 + 100 * n, **shaped(at + 10 + n, [[50], [50]]))
        for n in range(16)
    ]
    after = operator("aten::sum", at + 2800, at + 2810, **shaped(at + 26, [[16]]))
    name = "autograd::engine::evaluate_function: DotBackward0"
    nodes = [
        operator(name, at + 3020 + 40 * n, at + 3050 + 40 * n, **{"Sequence number": at + 8 + n}) for n in range(20)
    ]
    return [*found, after, *nodes]


@pytest.mark.parametrize("most", [100_000, 100])
def test_the_backward_pass_of_a_loop_by_autograds_numbers(tmp_path, monkeypatch, most):
    """Also where there are so many operators that only some steps are read: 47 in a step, two steps of three."""
    monkeypatch.setattr("dptune.measure.host.recorded_operators._MOST", most)
    loop = looped(tmp_path, loop=numbered)["pairs"]
    assert loop.backward_share * loop.cost_ns / US == pytest.approx(16 * 30, abs=5)
    # An element takes a nanosecond at most: 1.6 of the 16 x 70 us.
    assert loop.computed_share == pytest.approx(1.6 / (16 * 70), rel=0.05)


def shaped(number, dims):
    return {"Sequence number": number, "Input Dims": dims}


@pytest.mark.parametrize(("numbers", "most"), [(None, 100_000), (numbered, 40)])
def test_what_the_trace_does_not_number_is_not_known(tmp_path, monkeypatch, numbers, most):
    """Nor if a step has more operators than are read: 47."""
    monkeypatch.setattr("dptune.measure.host.recorded_operators._MOST", most)
    loop = looped(tmp_path, loop=numbers)["pairs"]
    assert (loop.backward_share, loop.computed_share) == (None, None)


def test_a_loop_that_takes_less_than_a_hundredth_is_not_listed(tmp_path):
    """Sixteen operators within 4 of the step's 4000, and another one right after them."""

    def short(at):
        dots = [operator("aten::dot", at + 1010 + 0.25 * n, at + 1010.25 + 0.25 * n) for n in range(16)]
        return [*dots, operator("aten::sum", at + 1014.1, at + 2990)]

    assert looped(tmp_path, loop=short) == {}


def test_the_least_compute_is_not_known_where_a_gpu_computes(tmp_path):
    """On a CPU each operator of 20 computes for 10: 160 in a step."""
    assert looped(tmp_path)["pairs"].least_computed_ns == 160 * US
    kernels = [
        each for n in range(STEPS) for each in launched("dot", LENGTH * n + 5, LENGTH * n + 6, LENGTH * n + 9, n)
    ]
    found = looped(tmp_path, more=kernels)["pairs"]
    assert (found.least_computed_ns, found.least_computed_share) == (None, None)


def test_a_loop_inside_a_library_is_not_the_functions(tmp_path):
    """One call generates twenty tokens, each after the one before."""

    def generates(at):
        called = python("transformers/generation/utils.py(2200): generate", at + 1002, at + 2990)
        return [called, *(operator("aten::cat", at + 1010 + 90 * n, at + 1030 + 90 * n) for n in range(20))]

    assert looped(tmp_path, loop=generates) == {}


def test_a_library_that_the_function_calls_in_a_loop_is(tmp_path):
    def rearranges(at):
        for n in range(16):
            begin = at + 1010 + 100 * n
            yield python("einops/einops.py(500): rearrange", begin, begin + 40)
            yield operator("aten::permute", begin + 5, begin + 25)

    found = looped(tmp_path, loop=rearranges)["pairs"]
    assert (found.operator, found.repeats) == ("aten::permute", 16)


@pytest.mark.parametrize("wrapped", [False, True])
def test_cells_of_a_recurrent_network(tmp_path, wrapped):
    """Modules call them, also one of the script; the function that goes over the positions is named."""

    def goes_over(at):
        for n in range(18):
            begin = at + 1010 + 100 * n
            yield operator("aten::select", begin, begin + 5)
            yield python("nn.Module: Gate_0" if wrapped else "nn.Module: LSTMCell_0", begin + 6, begin + 90)
            if wrapped:
                yield python("loss.py(5): forward", begin + 7, begin + 89)
                yield python("nn.Module: LSTMCell_0", begin + 8, begin + 88)
            yield operator("aten::lstm_cell", begin + 10, begin + 80)

    found = looped(tmp_path, loop=goes_over)
    assert found.keys() == {"pairs"}
    assert (found["pairs"].operator, found["pairs"].repeats) == ("aten::lstm_cell", 18)


def test_few_cells_are_no_loop(tmp_path):
    def decodes(at):
        return [operator("aten::lstm_cell", at + 1010 + 100 * n, at + 1080 + 100 * n) for n in range(15)]

    assert looped(tmp_path, loop=decodes) == {}


@pytest.mark.parametrize(("name", "least_us"), [("aten::dot", 64), ("aten::select", 0)])
def test_the_compute_of_a_loop_is_what_its_operators_take_beyond_a_call(tmp_path, name, least_us):
    """Each operator takes 20 and calls another one of 6: 14 by itself, of which 4 are compute, and so 64 of 320.

    A view of a tensor computes nothing.
    """

    def nested(at):
        begins = [at + 1010 + 100 * n for n in range(16)]
        return [
            event
            for begin in begins
            for event in (
                operator(name, begin, begin + 20),
                operator("aten::mul", begin + 2, begin + 8),
            )
        ]

    loop = looped(tmp_path, loop=nested)["pairs"]
    assert loop.least_computed_ns == least_us * US
    assert loop.least_computed_share == pytest.approx(least_us / 320)
    assert not loop.checks


def test_views_of_large_tensors_are_no_compute(tmp_path):
    def selecting(at):
        return [
            operator("aten::select", at + 1010 + 100 * n, at + 1030 + 100 * n, **shaped(at + 10 + n, [[50_000]]))
            for n in range(16)
        ]

    assert looped(tmp_path, loop=selecting)["pairs"].computed_share == 0


@pytest.mark.parametrize(
    ("names", "checks"),
    [
        (["aten::isnan", "aten::any", "aten::is_nonzero"], True),
        (["aten::isfinite", "aten::all", "aten::item"], True),
        (["aten::isnan", "aten::any"], False),
        (["aten::eq", "aten::any", "aten::is_nonzero"], False),
    ],
)
def test_checks_for_nan_that_python_reads(tmp_path, names, checks):
    def checked(at):
        return [
            operator(name, at + 1010 + 100 * n + 10 * k, at + 1018 + 100 * n + 10 * k)
            for n in range(16)
            for k, name in enumerate(names)
        ]

    assert looped(tmp_path, loop=checked)["pairs"].checks == checks


def test_nodes_that_the_backward_pass_runs_are_no_loop(tmp_path):
    def nodes(at):
        name = "autograd::engine::evaluate_function: AddBackward0"
        return [operator(name, at + 1010 + 100 * n, at + 1030 + 100 * n) for n in range(16)]

    assert looped(tmp_path, loop=nodes) == {}
