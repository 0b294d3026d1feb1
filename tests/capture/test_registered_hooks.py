"""Hooks on modules that steps register, and which of them stay."""

import sys

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.registered_hooks import _METHODS, RegisteredHooks


@pytest.fixture
def hooks(monkeypatch):
    for method in _METHODS:
        monkeypatch.setattr(nn.Module, method, getattr(nn.Module, method))
    found = RegisteredHooks()
    found.install()
    return found


def test_hooks_of_steps_by_line_without_those_that_are_removed(hooks):
    model, seen = nn.Linear(2, 2), []
    model.register_forward_hook(lambda *_: None)  # before training
    lines = []
    for _ in range(5):
        handle = model.register_forward_hook(lambda module, inputs, output: seen.append(output))
        model.register_full_backward_hook(lambda *_: None)
        lines += [sys._getframe().f_lineno - 2, sys._getframe().f_lineno - 1] if not lines else []
        removed = model.register_forward_pre_hook(lambda *_: None)
        model(torch.ones(1, 2))
        removed.remove()
        hooks.stepped()
    assert len(seen) == 1 + 2 + 3 + 4 + 5  # they run as without dptune
    found = hooks.facts()
    assert [(int(line.where.rpartition(":")[2]), line.kept, line.in_steps, line.of_steps) for line in found] == [
        (lines[0], 4, 4, 5),  # the first one came before a step had ended
        (lines[1], 4, 4, 5),
    ]
    handle.remove()
    assert [line.kept for line in hooks.facts()] == [3, 4]
    del model, handle, removed
    assert hooks.facts() == []  # nothing is kept alive
