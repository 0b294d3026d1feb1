"""Tensors that stay alive are counted by their storage, and what holds them is found."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from typing import ClassVar

import pytest
import torch

from dptune.capture.injected.observe.kept_tensors import Kept, optimizer_state
from dptune.capture.injected.observe.places import is_the_users
from dptune.runfile.memory_growth import memory_growth


class Summary:
    def __init__(self, outputs):
        self.outputs = outputs

    def add(self, output):
        self.outputs.append(output)


def tensor():
    """256 KiB."""
    return torch.zeros(256, 256)


def looked(keep):
    kept = Kept()
    kept.look(0, ())
    for _ in range(6):
        keep()
    kept.look(6, ())
    return kept.facts()


def test_a_list_of_tuples_that_an_object_holds():
    """Six steps of two tensors of 256 KiB, of which a view shares its storage."""
    summary = Summary([])

    def keep():
        both = tensor()
        summary.add((both, both[:2], tensor()))

    found = looked(keep)
    before, after = found.looks
    assert (before.step, after.step) == (0, 6)
    assert after.bytes - before.bytes == 6 * 2 * 256 * 256 * 4
    assert after.tensors - before.tensors == 18
    assert (found.held_by, found.limited) == ("Summary.outputs", False)
    _, first = inspect.getsourcelines(Summary.add)
    assert found.where.endswith(f"test_kept.py:{first + 1}")
    assert found.shapes[0] == "256x256 float32"


def test_the_history_of_an_optimizer_is_not_counted():
    """LBFGS keeps two tensors of each of its last 100 steps."""
    weight = torch.nn.Parameter(torch.ones(256, 256))
    optimizer = torch.optim.LBFGS([weight], max_iter=2)
    kept = Kept()

    def loss():
        optimizer.zero_grad()
        total = (weight * torch.arange(256.0)).square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    kept.look(0, optimizer_state([optimizer]))
    for _ in range(6):
        optimizer.step(loss)
    kept.look(6, optimizer_state([optimizer]))
    assert len(optimizer.state[weight]["old_dirs"]) > 1
    assert kept.facts().looks[0].bytes == kept.facts().looks[1].bytes


def test_an_attribute_of_a_class():
    class Shared:
        outputs: ClassVar[list[torch.Tensor]] = []

    found = looked(lambda: Shared.outputs.append(tensor()))
    assert found.held_by == "Shared.outputs"


def test_a_graph_that_stays():
    weight = torch.ones(256, 256, requires_grad=True)
    losses = []
    found = looked(lambda: losses.append(weight * 2))
    assert found.looks[1].with_graph - found.looks[0].with_graph == 6


def test_small_losses_with_their_graphs_are_named_before_larger_tensors_that_come_and_go():
    """Each step appends 12 bytes; 60 KiB a step became more between the looks, which is no growth."""
    weight = torch.ones(3, requires_grad=True)
    summary, more = Summary([]), []

    def keep():
        summary.add(weight * 2)
        more.append(torch.zeros(15 * 1024))

    found = looked(keep)
    assert (found.held_by, found.shapes[0]) == ("Summary.outputs", "3 float32")


@pytest.mark.parametrize(
    ("name", "collection"), [("replay", list), ("outputs", lambda: deque(maxlen=1000)), ("cache", list)]
)
def test_a_buffer_of_limited_size_is_told_apart(name, collection):
    class Holder:
        pass

    holder = Holder()
    setattr(holder, name, collection())
    found = looked(lambda: getattr(holder, name).append(tensor()))
    assert (found.held_by, found.limited) == (f"Holder.{name}", True)


def test_nothing_is_kept_and_nothing_is_kept_alive():
    found = looked(tensor)
    assert found.looks[0].bytes == found.looks[1].bytes
    assert found.shapes == []


def test_the_line_that_adds_to_it(tmp_path):
    """Of variables of a running function and of a module, and of an attribute."""
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    assert is_the_users(str(file))
    names = {"look": lambda train: looked(train), "__name__": "train", "__file__": str(file)}
    exec(compile(SCRIPT, str(file), "exec"), names)
    by_variable = names["by_variable"](looked)
    assert (by_variable.held_by, by_variable.where) == ("history", f"{file}:15")
    by_attribute = names["by_attribute"](looked)
    assert by_attribute.held_by == "Trainer.outputs"
    by_module = names["by_module"](looked)
    assert (by_module.held_by, by_module.where) == ("KEPT", f"{file}:26")


SCRIPT = """\
import torch

class Trainer:
    def __init__(self):
        self.outputs = []

    def step(self):
        self.outputs.append(torch.zeros(256, 256))

def by_variable(looked):
    history, losses = [], []

    def step():
        losses.append(float(1))
        history.append(torch.zeros(256, 256))

    return looked(step)

def by_attribute(looked):
    trainer = Trainer()
    return looked(trainer.step)

KEPT = []

def by_module(looked):
    return looked(lambda: KEPT.append(torch.zeros(256, 256)))
"""


TRAINS = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256))
            self.head = nn.Linear(256, 8)
            self.body.requires_grad_(False)

        def forward(self, rows):
            return self.head(self.body(rows))

    class Log:
        def __init__(self):
            self.rows = []

        def add(self, rows):
            self.rows.append(rows)

    net, log = Net(), Log()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    net.train()
    for step in range(60):
        rows = torch.randn(512, 64)
        net(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        log.add(rows)
"""


@pytest.mark.records
def test_a_recording_of_rows_that_are_kept_and_a_frozen_layer(profile):
    """Each step keeps 512 x 64 floats, 128 KiB: 10 in the timed window, and those of the traced one."""
    run = profile(TRAINS, "--warmup", "3", "--untraced", "10", "--light", "3", "--detailed", "0", "--window-time", "0")
    assert run.status == 0
    facts = run.facts()
    first, second, third = facts.kept.looks
    assert second.step - first.step == 10
    assert second.bytes - first.bytes == 10 * 512 * 64 * 4
    assert third.bytes - second.bytes == (third.step - second.step) * 512 * 64 * 4
    assert (facts.kept.held_by, facts.kept.where) == ("Log.rows", "train.py:20")
    (growth,) = memory_growth([facts])
    assert (growth.basis, growth.bytes_per_step) == ("tensors", 512 * 64 * 4)
    readings = facts.window("untraced").memory_bytes
    assert (len(readings), min(readings) > 10**7) == (10, True) if sys.platform == "linux" else (0, True)
    assert (facts.frozen_norms.parts, facts.frozen_norms.train_where) == (["body"], "train.py:24")
