"""Whether optimizer steps use the gradients that were clipped."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from dptune.capture.injected.observe.clipping import Clipping
from dptune.capture.injected.observe.places import Places


@pytest.fixture
def observed(monkeypatch):
    for module in (torch.nn.utils, clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            monkeypatch.setattr(module, name, getattr(module, name))
    places = Places()
    monkeypatch.setattr(Optimizer, "__init__", Optimizer.__init__)
    places.watch(Optimizer)
    found = Clipping(places)
    found.install()
    found.begin()
    yield found
    found.end()


def train(observed, when, *, limit=1.0, steps=4, micro_batches=1):
    """The line that clips, and the largest change of a weight in a step, at a rate of 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)

    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            if when == "before":
                clip()
            (100 * model(torch.ones(2, 4)).mean()).backward()
            observed.after_pass()
            if when == "each":
                clip()
        if when == "between":
            clip()
        optimizer.step()
        if when == "after":
            clip()
    return clip.__code__.co_firstlineno + 1, optimizer


@pytest.mark.parametrize("when", ["before", "after"])
def test_calls_that_no_step_uses(observed, when):
    line, _alive = train(observed, when)
    (facts,) = observed.facts()
    assert (int(facts.where.rpartition(":")[2]), facts.optimizer) == (line, "SGD")
    steps = 4 if when == "before" else 3  # the first step is before the first call
    assert (facts.calls, facts.steps, facts.changed) == (4, steps, steps)


@pytest.mark.parametrize("when", ["between", "each"])
def test_calls_that_steps_use(observed, when):
    _, _alive = train(observed, when, micro_batches=3)
    (facts,) = observed.facts()
    assert (facts.calls, facts.steps, facts.changed) == (12 if when == "each" else 4, 4, 0)


def test_a_limit_that_only_measures_the_norm(observed):
    _, _alive = train(observed, "after", limit=float("inf"))
    assert observed.facts() == []


def test_a_pass_of_something_else_between_call_and_step(observed):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        observed.after_pass()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        other(torch.ones(1, 2)).sum().backward()
        observed.after_pass()
        optimizer.step()
    assert [(facts.steps, facts.changed) for facts in observed.facts()] == [(3, 0)]


def test_the_function_gets_and_returns_what_it_would(observed):
    model = nn.Linear(4, 1)
    model(torch.ones(2, 4)).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_((each for each in model.parameters()), max_norm=1.0)
    assert float(norm) == pytest.approx(5**0.5)
    assert float(torch.linalg.vector_norm(model.weight.grad)) == pytest.approx((4 / 5) ** 0.5)
    assert float(torch.nn.utils.clip_grad_norm_(model.weight, 1.0)) == pytest.approx((4 / 5) ** 0.5)


def test_an_iterator_that_fails_is_not_used_half_read(observed):
    def failing():
        yield nn.Linear(2, 1).weight
        raise TypeError("no more")

    with pytest.raises(TypeError, match="no more"):
        torch.nn.utils.clip_grad_norm_(failing(), 1.0)


def test_steps_with_a_closure_are_left_out(observed):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        observed.after_pass()
        return loss

    for _ in range(3):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(closure)
    assert all(facts.steps == 0 for facts in observed.facts())


class Sharded(nn.Linear):
    """What FullyShardedDataParallel shows of itself: how it shards, and among how many ranks."""

    def __init__(self, strategy, ranks):
        super().__init__(4, 1)
        self.sharding_strategy = SimpleNamespace(name=strategy)
        self.world_size = ranks


@pytest.mark.parametrize(
    ("strategy", "ranks", "local"), [("FULL_SHARD", 2, 3), ("NO_SHARD", 2, 0), ("FULL_SHARD", 1, 0)]
)
def test_shards_of_one_rank(observed, monkeypatch, strategy, ranks, local):
    model = Sharded(strategy, ranks)
    alive = observed._places.alive
    named = {"FullyShardedDataParallel": [model]}
    monkeypatch.setattr(observed._places, "alive", lambda kind: named.get(kind) or alive(kind))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).mean().backward()
        observed.after_pass()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    (facts,) = observed.facts()
    assert (facts.calls, facts.local) == (3, local)
