"""Evaluations with gradients enabled: real modules, and calls as scripts make them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.evaluation_graphs import EvaluationGraphs


class Script:
    """A model that is trained, and validated after each step."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1))
        self.passes = 0
        self.graphs = EvaluationGraphs(lambda: self.passes)
        self.graphs.install()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self.passes += 1

    def train(self, steps: int = 3) -> str | None:
        """The function that is found."""
        for _ in range(steps):
            self.backward(self.model(torch.ones(2, 3)).sum())
            self.validate()
        return self.graphs.where

    def validate(self) -> None:
        self.model.eval()
        self.model(torch.ones(2, 3)).sum().item()
        self.model.train()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    for name in ("eval", "train", "__call__"):
        monkeypatch.setattr(nn.Module, name, getattr(nn.Module, name))
    call = nn.Module.__call__
    yield Script()
    assert nn.Module.__call__ is call  # nothing is watched between evaluations


def test_the_function_that_evaluates_is_named(script: Script) -> None:
    assert str(script.train()).startswith("Script.validate (tests/capture/test_evaluation_graphs.py:")
    assert pickle.loads(pickle.dumps(copy.deepcopy(script.model))).training  # nothing is left on the model


def test_once_is_no_habit(script: Script) -> None:
    assert script.train(steps=1) is None


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_gradients_are_disabled(script: Script, guard: type) -> None:
    def validate() -> None:
        script.model.eval()
        with guard():
            script.model(torch.ones(2, 3))
        script.model.train()

    script.validate = validate  # type: ignore[method-assign]
    assert script.train() is None


def test_a_backward_pass_in_evaluation_mode(script: Script) -> None:
    """As for adversarial examples, saliency maps, and models that are trained in evaluation mode."""

    def attack() -> None:
        script.model.eval()
        script.backward(script.model(torch.ones(2, 3, requires_grad=True)).sum())
        script.model.train()

    script.validate = attack  # type: ignore[method-assign]
    assert script.train() is None


def test_a_frozen_model_and_one_that_stays_in_evaluation_mode(script: Script) -> None:
    teacher = nn.Linear(3, 4).requires_grad_(False)

    def ask() -> None:
        teacher.eval()
        teacher(torch.ones(2, 3))
        teacher.train()
        script.model.eval()
        script.model(torch.ones(2, 3))

    script.validate = ask  # type: ignore[method-assign]
    assert script.train() is None
    script.model.train()


def test_another_module_is_called_first(script: Script) -> None:
    """Only a call of the module itself shows how it is evaluated."""

    def validate() -> None:
        script.model.eval()
        nn.Flatten()(torch.ones(2, 3))
        with torch.no_grad():
            script.model(torch.ones(2, 3))
        script.model.train()

    script.validate = validate  # type: ignore[method-assign]
    assert script.train() is None


def test_a_profiler_that_starts_while_calls_are_watched_records_the_module(script: Script) -> None:
    """torch's profiler takes the frame of `nn.Module.__call__` for a module's, and reads `self` of it.

    The script evaluates by a part of its model, so the call of the model is still awaited.
    """
    script.model.eval()
    with torch.profiler.profile(with_stack=True, with_modules=True) as profiler:
        script.model[0](torch.ones(2, 3))
    assert any(event.name.startswith("nn.Module: Linear") for event in profiler.events() or ())
    script.train(steps=1)
