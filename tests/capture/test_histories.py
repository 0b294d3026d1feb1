"""Lists of the values of all steps so far: real joins, in steps of plain torch."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.histories import Histories, _growing
from dptune.capture.injected.observe.same_results import SameResults

from .other_observer import through_another_observer


class Uncompiled:
    compiled = ()


def found(step, steps=5):
    """What is found in steps of a model; `step(outputs, kept)` gets a list that stays from step to step."""
    histories = Histories(Uncompiled())
    watched = SameResults(Uncompiled(), histories.joined)
    model, kept = nn.Linear(4, 4), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    histories.begin()
    watched.begin()
    try:
        for _ in range(steps):
            outputs = model(torch.randn(3, 4))
            outputs.sum().backward()
            optimizer.step()
            step(outputs.detach(), kept)
            watched.ticked()
            histories.ticked()
    finally:
        watched.end()
        histories.end()
    return histories.facts()


def accuracy(outputs, kept):
    kept.append(outputs)
    return torch.cat(kept).mean()


def score(outputs, kept):
    kept.append(outputs.numpy())
    return np.concatenate(kept).mean()


def two_for_each(outputs, kept):
    kept.extend((outputs, outputs))
    return torch.stack(kept), torch.vstack(kept)


def past_others(outputs, kept):
    kept.append(outputs.numpy())
    return through_another_observer(np.concatenate)(kept).mean()


@pytest.mark.parametrize(
    ("step", "grows", "last"), [(accuracy, 1, 3), (score, 1, 4), (two_for_each, 2, 3), (past_others, 1, 4)]
)
def test_a_list_that_grows_in_each_step(step, grows, last):
    """Calls of torch are seen in the second to fourth step only."""
    (facts,) = found(step)
    assert facts.function == step.__name__
    assert facts.where.startswith(__file__) or facts.where.split(":")[0].endswith("test_histories.py")
    assert (facts.grows, facts.step, facts.length) == (grows, last, grows * (last + 1))
    assert facts.steps_joined(last + 20) == last + 21


def made_anew(outputs, kept):
    return torch.cat([outputs, outputs])


def emptied(outputs, kept):
    kept.append(outputs)
    torch.cat(kept)
    kept.clear()


def of_a_window(outputs, kept):
    kept.append(outputs)
    return torch.cat(kept[-2:])


def with_a_state(outputs, kept):
    """Keys and values of a decoder: one more at each position."""
    parts = [outputs]
    for _ in range(3):
        parts.append(outputs)
        torch.cat(parts)


@pytest.mark.parametrize("step", [made_anew, emptied, of_a_window, with_a_state])
def test_lists_that_do_not_grow_from_step_to_step(step):
    assert found(step) == []


def test_numpy_is_left_alone_where_numba_compiles_it(monkeypatch):
    call = np.concatenate
    assert found(score) != []
    assert np.concatenate is call
    monkeypatch.setitem(sys.modules, "numba", sys)
    assert found(score) == []


@pytest.mark.parametrize(
    ("lengths", "found"),
    [((2, 3, 4), True), ((1, 3, 4), False), ((0, 0, 0), False), ((4, 4, 4), False), ((12, 13, 14), False)],
)
def test_a_list_grows_by_the_same_number_in_each_step_from_the_first_on(lengths, found):
    """By step 3 of the recording, one value of each step so far is four."""
    by_step = {step: {length} for step, length in enumerate(lengths, 1)}
    assert bool(_growing("compute", "train.py:7", by_step)) is found
