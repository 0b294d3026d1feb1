"""Training loops whose validation leaves the model in evaluation mode are told from those that switch back."""

from __future__ import annotations

import contextlib
import inspect
import sys

import pytest
from torch import nn

from dptune.capture.injected.observe.validation import keeps_evaluation_mode

TRAINS_AGAIN = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))

    def forward(self, rows):
        return self.body(rows)


def optimize(model):
    """Where the step is looked at."""
    return keeps_evaluation_mode(sys._getframe(), frozenset(map(id, model.modules())))


def score(net):
    net.eval()
    return sum(1 for _ in net.parameters())


def score_and_return(net):
    before = net.training
    net.eval()
    net.train(before)


@contextlib.contextmanager
def evaluating(net):
    net.eval()
    yield
    net.train()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.teacher = Net()

    def plain(self):
        found = None
        for step in range(2):
            found = optimize(self.model)
            if step > 100:
                self.validate()
        return found

    def validate(self):
        self.model.eval()
        if TRAINS_AGAIN:
            self.model.train()

    def restored_by_the_step(self):
        found = None
        for step in range(2):
            found = self.train_step()
            if step > 100:
                self.validate()
        return found

    def train_step(self):
        self.model.train()
        return optimize(self.model)

    def of_the_teacher(self):
        found = None
        for step in range(2):
            found = optimize(self.model)
            if step > 100:
                self.teacher.eval()
        return found


def in_a_function(model):
    found = None
    for step in range(2):
        found = optimize(model)
        if step > 100:
            score(model)
    return found


def by_keyword_in_an_outer_loop(model):
    found = None
    for _ in range(2):
        for _ in range(2):
            found = optimize(model)
        if found == "never":
            score(net=model)
    return found


def in_the_loop(model):
    found = None
    for step in range(2):
        found = optimize(model)
        if step > 100:
            model.body.eval()
    return found


def restored_in_each_epoch(model):
    found = None
    for epoch in range(2):
        model.train()
        for _ in range(2):
            found = optimize(model)
        if epoch > 100:
            score(model)
    return found


def restored_as_it_was(model):
    found = None
    for step in range(2):
        found = optimize(model)
        if step > 100:
            score_and_return(model)
    return found


def restored_by_a_context(model):
    found = None
    for step in range(2):
        found = optimize(model)
        if step > 100:
            with evaluating(model):
                pass
    return found


def restored_by_something_unknown(model, callbacks=()):
    found = None
    for step in range(2):
        found = optimize(model)
        if step > 100:
            score(model)
            for callback in callbacks:
                callback.on_train_step()
    return found


def of_a_copy(model, copied=None):
    found = None
    for step in range(2):
        found = optimize(model)
        if step > 100:
            score(Net() if copied is None else copied)
    return found


def evaluated_at_the_end(model):
    found = None
    for step in range(2):
        found = optimize(model)
        if step > 100:
            score(model)
            break
    return found


def evaluated_after_training(model):
    found = None
    for _ in range(2):
        found = optimize(model)
    if found == "never":
        score(model)
    return found


@pytest.mark.parametrize(
    ("train", "function"),
    [
        (lambda model: Trainer(model).plain(), Trainer.validate),
        (in_a_function, score),
        (by_keyword_in_an_outer_loop, score),
    ],
)
def test_what_leaves_it_in_evaluation_mode(train, function):
    rows, first = inspect.getsourcelines(function)
    line = next(first + at for at, row in enumerate(rows) if ".eval()" in row)
    found = train(Net())
    assert found is not None
    assert function.__name__ in found.partition(" (")[0]
    assert found.endswith(f"test_validation.py:{line})")


def test_a_call_in_the_loop_itself():
    assert in_the_loop(Net()).startswith("in_the_loop (")


@pytest.mark.parametrize(
    "train",
    [
        lambda model: Trainer(model).restored_by_the_step(),
        lambda model: Trainer(model).of_the_teacher(),
        restored_in_each_epoch,
        restored_as_it_was,
        restored_by_a_context,
        restored_by_something_unknown,
        of_a_copy,
        evaluated_at_the_end,
        evaluated_after_training,
    ],
)
def test_quiet(train):
    assert train(Net()) is None


def test_a_flag_of_the_script_is_heeded(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "TRAINS_AGAIN", True)
    assert Trainer(Net()).plain() is None
