"""Figures of a trace whose file was deleted before the arguments of its events were read: none is guessed or fails."""

from dataclasses import replace

import pytest

from dptune.measure import measure
from dptune.measure.host import operator_arguments
from dptune.measure.host.attention import eager_attention
from dptune.measure.host.convolutions import long_convolutions
from dptune.measure.host.double_operators import double_functions
from dptune.measure.host.elements import elements_per_step
from dptune.measure.host.generation import uncached_generations
from dptune.measure.host.one_hot_products import one_hot_products
from dptune.measure.host.recorded_operators import RecordedOperators
from dptune.measure.inferred.batches import batch
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.inferred.recomputing import recomputed
from dptune.measure.views import view
from dptune.trace.columns import NO_OPERATORS

from .handmade import load_events, operator, python, step
from .test_attention import attention, steps_of
from .test_inferred_buckets import TWO, gradients
from .test_inferred_buckets import steps as buckets_in

ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
IMAGES, KERNEL = [4, 3, 5000], [8, 3, 4000]  # 1,001 outputs of 4,000 taps each: 800 taps for each input position


def trained_on_images():
    """Two steps of a long convolution on four samples of float64, whose backward pass runs it again in a checkpoint."""
    args = {"Input Dims": [IMAGES, KERNEL], "Input type": ["double", "double"], "Sequence number": 3}
    plain = {**args, "Concrete Inputs": ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"]}
    events = [python("net.py(90): main", 0, 2000)]
    for number in range(2):
        at = 1000 * number
        events += [
            step(number, at, at + 1000),
            python("net.py(15): front", at + 1, at + 499),
            operator("aten::conv1d", at + 10, at + 110, **args),
            operator("aten::convolution", at + 20, at + 100, **plain),
            operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", at + 500, at + 600),
            operator("aten::conv1d", at + 510, at + 560, **{**args, "Sequence number": 4}),
            operator(ACCUMULATES, at + 610, at + 620),
        ]
    return events


def generated():
    """Ten calls of a module in a step, on 6 to 15 tokens."""
    events = [python("net.py(90): main", 0, 2000), step(0, 0, 1000), step(1, 1000, 2000)]
    for number, at in enumerate(range(0, 1000, 100)):
        events.append(python("nn.Module: GPT2Model_0", at + 1, at + 99))
        events.append(operator("aten::embedding", at + 5, at + 90, **{"Input Dims": [[400, 64], [4, 6 + number], []]}))
    return events


def looked_up():
    """A product of 64 one-hot rows in each of two steps."""
    events = [python("net.py(90): main", 0, 2000)]
    for number in range(2):
        at = 1000 * number
        one_hot = {"Input Dims": [[64], []], "Concrete Inputs": ["", "500"]}
        events += [
            step(number, at, at + 1000),
            python("net.py(15): look_up", at + 1, at + 499),
            operator("aten::one_hot", at + 10, at + 50, **one_hot),
            operator("aten::mm", at + 60, at + 110, **{"Input Dims": [[64, 500], [500, 32]]}),
        ]
    return events


def loaded(folder, events):
    """The file of the trace, and the trace without the arguments that are kept as it is read."""
    return folder / "0.json", replace(load_events(folder, events).ranks[0].light, operators=NO_OPERATORS)


FIGURES = {
    "attention": (steps_of(attention), lambda rank: [found.keys for found in eager_attention([rank], {})], [600], []),
    "convolutions": (
        trained_on_images(),
        lambda rank: [found.taps for found in long_convolutions([rank], {})],
        [4000],
        [],
    ),
    "doubles": (
        trained_on_images(),
        lambda rank: [found.operator for found in double_functions([rank], {})],
        ["aten::conv1d"],
        [],
    ),
    "elements": (trained_on_images(), elements_per_step, 3 * (4 * 3 * 5000 + 8 * 3 * 4000), None),
    "generation": (
        generated(),
        lambda rank: [(found.shortest, found.longest) for found in uncached_generations([rank])],
        [(6, 15)],
        [],
    ),
    "one-hot": (looked_up(), lambda rank: [found.classes for found in one_hot_products([rank], {})], [500], []),
    "samples": (
        trained_on_images(),
        lambda rank: found.samples if (found := batch(HostEvents(rank), None)) is not None else None,
        4,
        None,
    ),
    "checkpoints": (
        trained_on_images(),
        lambda rank: recomputed(HostEvents(rank)) is not None,
        True,
        False,
    ),
}


@pytest.mark.parametrize(("events", "figure", "whole", "none"), FIGURES.values(), ids=FIGURES)
def test_figures_of_arguments_are_not_known(tmp_path, events, figure, whole, none):
    file, trace = loaded(tmp_path, events)
    assert figure(view(0, trace)) == whole
    file.unlink()
    assert figure(view(0, replace(trace))) == none


@pytest.mark.parametrize(("name", "unsized"), [("attention", [None]), ("one-hot", [])])
def test_sizes_that_were_not_read_with_the_operators(tmp_path, monkeypatch, name, unsized):
    """Of a large trace each figure reads the sizes that it takes. Attention is found without them, too."""
    monkeypatch.setattr(operator_arguments, "MOST", 0)
    events, figure, whole, _ = FIGURES[name]
    file, trace = loaded(tmp_path, events)
    assert figure(view(0, trace)) == whole
    numbered = view(0, replace(trace))
    assert RecordedOperators.of(numbered) is not None
    file.unlink()
    assert figure(numbered) == unsized


def test_buckets_without_the_grids_of_kernels(tmp_path):
    run = load_events(tmp_path, buckets_in(*[gradients(TWO)] * 2))
    assert measure(run).inferred.buckets.gradients == [2, 1]
    (tmp_path / "0.json").unlink()
    assert measure(run).inferred.buckets is None
