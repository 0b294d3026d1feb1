"""Sizes and autograd numbers of operators, whatever a file holds in their place, against json.loads."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict

from dptune.measure.device.alignment import unaligned_products
from dptune.measure.device.primitives import cpu_primitives
from dptune.measure.efficiency import inputs
from dptune.measure.efficiency.counting import count
from dptune.measure.efficiency.formulas import Arguments
from dptune.measure.efficiency.inputs import called_with
from dptune.measure.efficiency.tokens import Tokens, tokens
from dptune.measure.host import operator_arguments as module
from dptune.measure.host.operator_arguments import OperatorArguments, operator_arguments
from dptune.measure.views import view
from dptune.trace import load
from dptune.trace.columns import NO_OPERATORS

from .handmade import launched, load_events, operator, step

NUMBERS = (7, 0, -3, True, None, "8", 1.5, 10**18, 2**63 - 1, 10**30, -(10**30), [1])
KEPT = (7, 0, -3, 1, -1, -1, -1, 10**18, 2**63 - 1, -1, -1, -1)
DIMS = ([[2, 3], [], [[4, 5], [6]]], [[2, 3], [], [[4, 5], [6]]], [], None, "[[2]]", [[10**9, 10**9, 10**9]])
ELEMENTS = (6 + 1 + 20 + 6, 6 + 1 + 20 + 6, 1, 0, 0, 2**62)
WRITTEN = (
    *("[[2, 3], [], [4]]", "[[2,3],[[4, 5],[6]],[]]", "[[-1, 2], [1.0], [true], [null], 3]", "[]", "null", "", "5"),
    *("[[2], [3]", "[[1e3]]", f"[[{10**30}]]", '[["2"]]', '{"2": [3]}'),
)
KEYS = ("Input Dims", "Input dims", "Input type", "Concrete Inputs", "Input Strides")


@pytest.fixture
def written(tmp_path):
    """Operators with all of these, with odd arguments, and with none; one in a block that no parser takes."""
    args = [{"Sequence number": number, "Ev Idx": at} for at, number in enumerate(NUMBERS)]
    args += [{"Input Dims": dims, "Input type": ["float", ""], "Concrete Inputs": ["", "1"]} for dims in DIMS]
    args += [{"Input dims": [[1]], "Input Strides": [[1]]}, {}, None, [5], "text"]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": at, "dur": 1, "args": each}
        for at, each in enumerate(args)
    ]
    events.append({**events[0], "cat": "user_annotation", "ts": 99})
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return load([path]).ranks[0].light, [each if isinstance(each, dict) else {} for each in args]


@pytest.mark.parametrize("most", [module.MOST, 3])
def test_as_they_are_written(written, monkeypatch, most):
    monkeypatch.setattr(module, "MOST", most)
    trace, args = written
    trace = replace(trace, operators=NO_OPERATORS)
    rows = trace.columns.rows({"cpu_op"})
    read = OperatorArguments.reading(trace, rows)
    assert (OperatorArguments.of(trace) is None) == (most == 3)
    assert read.numbers.tolist() == [*KEPT, *[-1] * (len(args) - len(KEPT))]
    assert read.elements[len(NUMBERS) :].tolist() == [*ELEMENTS, 0, 0, 0, 0, 0]
    backwards = rows[::-1]
    expected = [{key: each[key] for key in KEYS if key in each} for each in reversed(args)]
    assert operator_arguments(trace, backwards) == expected


def test_of_a_file_that_is_gone_no_size_is_known(tmp_path):
    """A trace whose arguments were not kept while it was read."""
    sizes = {"Input Dims": [[2, 64, 64], [2, 64, 64]], "Input type": ["float", "float"]}
    events = [step(0, 0, 100), operator("aten::bmm", 10, 20, **sizes)]
    events.append(operator("aten::embedding", 30, 40, **{"Input Dims": [[5000, 32], [2, 16]]}))
    events.append(operator("aten::_softmax", 50, 60, **{"Input Dims": [[2, 4, 16, 16]]}))
    events += launched("cutlass_80_tensorop_s1688gemm_64x64_nn_align1", 11, 20, 40, 1)

    def figures(trace):
        """FLOPs of operators, or why there are none; products of a CPU; tokens; sizes of unaligned products."""
        of_rank = view(0, replace(trace, operators=NO_OPERATORS))
        counted = count(of_rank)
        flops = counted if isinstance(counted, str) else [each.flops.total for each in counted.operators]
        unaligned = [each.sizes for each in unaligned_products(of_rank)]
        return flops, cpu_primitives(of_rank).products, tokens(of_rank), unaligned

    trace, again = (load_events(tmp_path, events).ranks[0].light for _ in range(2))
    product = 2 * 2 * 64 * 64 * 64
    assert figures(trace) == ([product], 1, Tokens(32, (2, 16)), [[[2, 64, 64], [2, 64, 64]]])
    Path(trace.path).unlink()
    why, *others = figures(again)
    assert others == [0, None, [[]]]
    assert str(tmp_path) in why


def test_operators_alike_share_what_was_read(written):
    trace, _ = written
    first, second = operator_arguments(trace, trace.columns.rows({"cpu_op"})[len(NUMBERS) :][:2])
    assert first is second


def test_of_what_is_no_operator(written):
    trace, _ = written
    annotation = trace.columns.rows({"user_annotation"})
    assert operator_arguments(trace, annotation) == [{}]
    assert OperatorArguments.reading(trace, annotation).numbers.tolist() == [NUMBERS[0]]


@pytest.mark.parametrize("dims_at", [0, 1])
def test_inputs_are_those_of_the_decoded_arguments(dims_at):
    types, values = '["float", 5, ""]', '["", "[1, 1]", null]'
    texts = [(*("" if at != dims_at else dims for at in range(2)), types, values, "") for dims in WRITTEN]
    rows = np.arange(2 * len(texts))
    written = tuple(tuple(map(str.encode, text)) for text in texts)
    read = OperatorArguments(rows, rows, rows // 2, written)
    found = called_with(read, rows)
    assert all(first is second for first, second in zip(found[::2], found[1::2], strict=True))
    for dims, arguments in zip(WRITTEN, found[::2], strict=True):
        given = {KEYS[dims_at]: json.loads(dims)} if dims not in ("", "[[2], [3]") else {}
        expected = Arguments.of({**given, "Input type": json.loads(types), "Concrete Inputs": json.loads(values)})
        assert asdict(arguments) == asdict(expected), dims


def test_one_argument_of_operators(written):
    trace, args = written
    rows = trace.columns.rows({"cpu_op"})
    read = OperatorArguments.reading(trace, rows)
    for key in KEYS:
        assert read.argument(key, rows) == [each.get(key) for each in args]


def test_sizes_of_many_are_decoded_together_and_odd_ones_by_themselves():
    plain = [f"[[{at}, 2], [], [{at}]]" for at in range(2 * inputs.AT_ONCE)]
    texts = [*plain[: inputs.AT_ONCE], WRITTEN[1], "", *plain[inputs.AT_ONCE :]]
    rows = np.arange(len(texts))
    found = called_with(OperatorArguments(rows, rows, rows, [(text.encode(), *[b""] * 4) for text in texts]), rows)
    expected = [Arguments.of({"Input Dims": json.loads(text)} if text else {}) for text in texts]
    assert [asdict(each) for each in found] == [asdict(each) for each in expected]
