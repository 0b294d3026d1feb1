"""torch.compile from outside: which module is compiled, and that a script's model really is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .. import forks  # noqa: TID252 - tests are no installed package
from .conftest import environment
from .launching import DPTUNE, facts_in, run

pytestmark = pytest.mark.records

# torch.compile only notes the module here. `Whole` is called within `Trainer`, which holds nothing more than it does.
WHICH = """\
import torch
from torch import nn

from dptune.capture.injected.applying.compiling import compiling
from dptune.capture.injected.applying.requested import asked

compiled = []
def compile_(function):
    compiled.append(type(function.__closure__[0].cell_contents.__self__).__name__)
    return function
torch.compile = compile_
before = nn.Module.__call__
compiling(True)

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return self.second(self.first(x))

class Trainer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, x):
        return self.model(x).sum()

whole = Whole()
trainer = Trainer(whole)
trainer(torch.ones(1, 4))  # before there is an optimizer
optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
with torch.no_grad():
    trainer(torch.ones(1, 4))
whole.first(torch.ones(1, 4))  # holds some of its parameters only
assert compiled == [] and nn.Module.__call__ is not before
for _ in range(3):
    trainer(torch.ones(1, 4)).backward()
assert compiled == ["Trainer"], compiled
assert nn.Module.__call__ is before
assert not asked.refused

apart = torch.optim.SGD([*nn.Linear(4, 4).parameters(), *whole.parameters()], lr=0.1)
for _ in range(1000):
    trainer(torch.ones(1, 4))
assert compiled == ["Trainer"], compiled
assert nn.Module.__call__ is before
assert list(asked.refused) == ["compile.model"], asked.refused
"""
TRAIN = """\
import sys
import torch
import torch.distributed as dist

torch.manual_seed(3)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(600, 600) for _ in range(3)])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    model(torch.randn(8, 600)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


def test_the_outermost_module_that_holds_all_parameters_is_compiled_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="appliers need torch")
    (tmp_path / "which.py").write_text(WHICH)
    done = forks.run("which.py", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_a_wrapped_model_is_compiled_on_each_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++")
    (tmp_path / "train.py").write_text(TRAIN)
    windows = ("--warmup", "3", "--untraced", "6", "--light", "0", "--detailed", "0", "-q", "--run-dir", "run")
    words = (*DPTUNE, "profile", *windows, "--set", "compile.model=true", "--nproc-per-node", "2", "train.py")
    done = run(*words, cwd=tmp_path, env={"PYTHONPATH": ""})  # with torch's own compiler
    assert done.status == 0, done.err
    assert "did not take effect" not in done.err
    facts = facts_in(tmp_path / "run")
    assert [rank.compiled is not None for rank in facts] == [True, True]
    assert all(rank.ddp_graphs for rank in [found.compiled for found in facts if found.compiled])
