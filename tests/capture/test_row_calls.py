"""Modules that a loop over a list calls with one row each: small models are trained in this process."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.repeated_forward import RepeatedForward

WIDTH, ITEMS, MOMENTS = 4, 3, 6


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, 1)

    def forward(self, row):
        return self.head(torch.tanh(self.body(row)))

    def act(self, row):
        return self(row).detach()


class Remembering(Policy):
    """Keeps what it computed for the next call."""

    def forward(self, row):
        self.last = super().forward(row)
        return self.last


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, row, state):
        return self.cell(row, state)


def comprehension(model, rows):
    return [model.act(torch.from_numpy(row)) for row in rows]


def loop(model, rows):
    found = []
    for at, row in enumerate(rows):
        given = torch.from_numpy(row)
        action = model.act(given)
        found.append(action)
        rows[at] = row + 1
    return found


def by_index(model, rows):
    rows = [torch.from_numpy(row) for row in rows]
    for at, _ in enumerate(rows):
        action = model.act(rows[at])
        rows[at] = rows[at] + action


def together(model, rows):
    return model.act(torch.from_numpy(np.stack(rows)))


def batches(model, rows):
    return [model.act(torch.from_numpy(np.stack([row, row]))) for row in rows]


def over_time(model, rows):
    state = torch.from_numpy(rows[0])
    for _ in rows:
        state = state + model.act(state)


def over_numbers(model, rows):
    return [model.act(torch.from_numpy(rows[at])) for at in range(len(rows))]


def carried(model, rows):
    state = torch.zeros(1, WIDTH)
    for row in rows:
        state = model(torch.from_numpy(row)[None], state)


def growing(model, rows):
    seen = []
    for row in rows:
        seen.append(row)
        model.act(torch.from_numpy(row + len(seen)))


def trains(model, rows):
    for row in rows:
        model(torch.from_numpy(row)).sum().backward()


def of_other_lengths(model, rows):
    return [model.act(torch.zeros(*[1] * at, WIDTH)) for at, _ in enumerate(rows)]


@pytest.fixture
def found():
    """The places in steps in which a function runs at some moments, each before a training pass and a step."""

    def steps(run, model, count=3):
        torch.manual_seed(0)
        optimizer, done = torch.optim.SGD(model.parameters(), lr=0.01), [0]
        watch = RepeatedForward(Places(), lambda: done[0], lambda *_: None)
        backward = torch.Tensor.backward

        def counted(tensor, *args, **kwargs):
            done[0] += 1
            backward(tensor, *args, **kwargs)

        torch.Tensor.backward = counted
        watch.begin()
        try:
            for _ in range(count):
                for moment in range(MOMENTS):
                    run(model, [np.full(WIDTH, item + moment, dtype=np.float32) for item in range(ITEMS)])
                state = (torch.zeros(2, WIDTH),) if isinstance(model, Cell) else ()
                model(torch.ones(2, WIDTH), *state).sum().backward()
                optimizer.step()
                watch.stepped()
                watch.ticked()
        finally:
            torch.Tensor.backward = backward
            watch.end()
        return watch.row_calls.facts()

    return steps


def text_of(place):
    return inspect.getsource(inspect.getmodule(text_of)).splitlines()[int(place.rpartition(":")[2]) - 1].strip()


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (comprehension, "return [model.act(torch.from_numpy(row)) for row in rows]"),
        (loop, "action = model.act(given)"),
        (by_index, "action = model.act(rows[at])"),
    ],
)
def test_a_call_for_each_item(found, run, line):
    (one,) = found(run, Policy())
    assert (one.function, one.module, one.items, one.calls) == ("Policy.act", "Policy", ITEMS, ITEMS * MOMENTS)
    assert text_of(one.where) == line


@pytest.mark.parametrize(
    "run",
    [together, batches, over_time, over_numbers, growing, trains, of_other_lengths],
    ids=lambda run: run.__name__,
)
def test_quiet(found, run):
    assert found(run, Policy()) == []


def test_what_keeps_a_state_needs_the_call_before(found):
    assert found(comprehension, Remembering()) == []
    assert found(carried, Cell()) == []


def test_each_module_of_a_list_is_called_once(found):
    def each(model, rows):
        return [model.layers[at](torch.from_numpy(row)) for at, row in enumerate(rows)]

    model = Policy()
    model.layers = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(ITEMS))
    assert found(each, model) == []
