"""Modules that a loop calls with one slice of a tensor after the other: small models are trained in this process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.repeated_forward import RepeatedForward

FRAMES, STEPS = 6, 4


class Clips(nn.Module):
    """A module for each frame, called in one of the ways below, within the model."""

    def __init__(self, way, *layers):
        super().__init__()
        self.way = way
        self.net = nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 4))
        self.last = None

    def forward(self, x):
        return self.way(self, x)


def by_number(model, x):
    found = []
    for t in range(x.size(1)):
        frame = model.net(x[:, t])
        found.append(frame)
    return torch.stack(found, 1)


def comprehension(model, x):
    return torch.stack([model.net(x[:, t]) for t in range(x.shape[1])], 1)


def unbound(model, x):
    return torch.stack([model.net(frame) for frame in x.unbind(1)], 1)


def recurrent(model, x):
    state = torch.zeros(len(x), 4)
    for t in range(x.size(1)):
        state = model.net(x[:, t] + state)
    return state


def scheduled(model, x):
    out, found = x[:, 0], []
    for t in range(x.size(1)):
        given = x[:, t] if t % 2 else out
        out = model.net(given)
        found.append(out)
    return torch.stack(found, 1)


def of_others(model, x):
    return torch.stack([model.net(x[:, t] * 2) for t in range(x.shape[1])], 1)


def ragged(model, x):
    return torch.cat([model.net(x[:, : t + 1]) for t in range(x.shape[1])], 1)


def two_frames(model, x):
    return torch.stack([model.net(x[:, t]) for t in range(2)], 1)


def found(way, *layers):
    torch.manual_seed(0)
    model, places = Clips(way, *layers), Places()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    passes = [0]
    observer = RepeatedForward(places, lambda: passes[0], lambda *_: None)
    observer.begin()
    for _ in range(STEPS):
        loss = model(torch.randn(5, FRAMES, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        passes[0] += 1
        optimizer.step()
        observer.stepped()
        observer.ticked()
    observer.end()
    return observer.slice_calls.facts()


@pytest.mark.parametrize("way", [by_number, comprehension, unbound])
def test_one_call_for_each_frame(way):
    (facts,) = found(way)
    assert (facts.module, facts.slices, facts.calls, facts.norms) == ("Sequential", FRAMES, FRAMES, False)
    first, line = int(facts.at.rpartition(":")[2]), int(facts.where.rpartition(":")[2])
    assert (facts.function, first) == (way.__name__, way.__code__.co_firstlineno)
    assert first < line <= first + 4


def test_batch_norm_sees_other_samples_then():
    (facts,) = found(by_number, nn.BatchNorm1d(8))
    assert facts.norms


@pytest.mark.parametrize("way", [recurrent, scheduled, of_others, ragged, two_frames])
def test_calls_that_may_need_the_one_before_or_are_few(way):
    assert found(way) == []


class Cells(nn.Module):
    """A loop over a cell, in one of the ways below."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.cell, self.head, self.embed = nn.GRUCell(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.way(self, x)


def given(model, x):
    state = torch.zeros(len(x), 4)
    for t in range(x.size(1)):
        state = model.cell(x[:, t], state)
    return state


def embedded(model, x):
    state, states = torch.zeros(len(x), 4), []
    for t in range(x.size(1)):
        frame = model.embed(x[:, t])
        state = model.cell(frame, state)
        states.append(state)
    return torch.stack(states)


def fed_back(model, x):
    state = token = torch.zeros(len(x), 4)
    for _ in range(FRAMES):
        state = model.cell(token, state)
        token = model.head(state)
    return state


def attending(model, x):
    state = torch.zeros(len(x), 4)
    for t in range(x.size(1)):
        context = (x * state[:, None]).sum(1)
        state = model.cell(x[:, t] + context, state)
    return state


def masked(model, x):
    state = torch.zeros(len(x), 4)
    for t in range(x.size(1)):
        state = model.cell(x[:, t], state)
        state = state * (x[:, t, :1] > 0)
    return state


@pytest.mark.parametrize(
    ("way", "known"), [(given, True), (embedded, True), (fed_back, False), (attending, False), (masked, False)]
)
def test_whether_the_inputs_of_cells_are_known_before_the_loop(way, known):
    torch.manual_seed(0)
    model, watch = Cells(way), RepeatedForward(Places(), lambda: 0, lambda *_: None)
    watch.begin()
    model(torch.randn(5, FRAMES, 4))
    watch.end()
    (facts,) = watch.slice_calls.cell_loops()
    assert (facts.function, facts.inputs_known) == (way.__name__, known)
    assert facts.at.endswith(f":{way.__code__.co_firstlineno}")


class Heads(nn.Module):
    """Modules for one input, called in one of the ways below."""

    def __init__(self, way, widths):
        super().__init__()
        self.way = way
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4)) for width in widths)

    def forward(self, x):
        return self.way(self, x)


def together(model, x):
    return torch.cat([head(x) for head in model.heads], -1)


def looped(model, x):
    found = []
    for head in model.heads:
        found.append(head(x))  # noqa: PERF401 - as people write it
    return torch.cat(found, -1)


def one_after_the_other(model, x):
    for head in model.heads:
        x = head(x)
    return x


def on_parts(model, x):
    return torch.cat([head(x[:, at]) for at, head in enumerate(model.heads)], -1)


def siblings_of(way, widths=(8,) * 5):
    torch.manual_seed(0)
    model, passes = Heads(way, widths), [0]
    watch = RepeatedForward(Places(), lambda: passes[0], lambda *_: None)
    watch.begin()
    for _ in range(STEPS):
        model(torch.randn(5, FRAMES, 4)).square().mean().backward()
        passes[0] += 1
        watch.stepped()
        watch.ticked()
    watch.end()
    return [facts for facts in watch.slice_calls.facts() if facts.siblings]


@pytest.mark.parametrize("way", [together, looped])
def test_like_modules_on_one_input(way):
    (facts,) = siblings_of(way)
    assert (facts.module, facts.slices, facts.calls, facts.function) == ("Sequential", 5, 5, way.__name__)


@pytest.mark.parametrize(
    ("way", "widths"),
    [(one_after_the_other, (8,) * 5), (on_parts, (8,) * 5), (together, (8, 8, 9, 8, 8)), (together, (8,) * 3)],
)
def test_layers_and_modules_of_other_inputs_or_shapes(way, widths):
    assert siblings_of(way, widths) == []
