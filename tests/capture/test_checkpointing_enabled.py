"""The line that turns checkpointing on, which is not the one that runs it."""

import sys

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.utils import checkpoint

from dptune.capture.injected.observe.checkpointing import Checkpointing
from dptune.capture.injected.observe.places import Places


@pytest.fixture
def watching(monkeypatch):
    for kind in (checkpoint_wrapper.CheckpointWrapper, checkpoint._CheckpointFrame):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    monkeypatch.setattr(checkpoint.CheckpointFunction, "forward", checkpoint.CheckpointFunction.forward)
    found = Checkpointing(Places())
    found.install()
    return found


def test_blocks_that_are_wrapped_have_the_line_that_wraps_them(watching):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    wrapped = sys._getframe().f_lineno + 1
    model[0] = checkpoint_wrapper.checkpoint_wrapper(model[0])
    model[2] = checkpoint_wrapper.checkpoint_wrapper(model[2])
    ran = sys._getframe().f_lineno + 1
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    facts = watching.facts()
    assert [int(line.rpartition(":")[2]) for line in (facts.enabled_where, facts.where)] == [wrapped, ran]


def test_a_checkpoint_that_the_script_calls_itself_is_turned_on_nowhere_else(watching):
    layer = nn.Linear(4, 4)
    checkpoint.checkpoint(layer, torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
    facts = watching.facts()
    assert facts.where.rpartition(":")[0].endswith("test_checkpointing_enabled.py")
    assert facts.enabled_where is None
