"""Activation checkpointing in a script: how long it recomputes, what it spares, and its line."""

import shutil
import textwrap

import pytest

from .. import forks  # noqa: TID252 - tests are no installed package
from .conftest import environment

pytestmark = pytest.mark.records

SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    REENTRANT = {reentrant}
    torch.manual_seed(0)
    layers = lambda: (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64))
    blocks = nn.ModuleList(nn.Sequential(*layers()) for _ in range(3))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    for step in range(12):
        rows = torch.randn(256, 64, requires_grad=True)
        for block in blocks:
            rows = checkpoint(block, rows, use_reentrant=REENTRANT)
        loss = rows.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())
"""
WINDOWS = ("--warmup", "2", "--untraced", "3", "--light", "2", "--detailed", "0", "--continue")
ROWS = 256 * 64 * 4  # bytes of one activation


@pytest.mark.parametrize("reentrant", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_recomputing_is_timed_and_weighed_and_changes_nothing(profile, tmp_path, reentrant):
    script = SCRIPT.format(reentrant=reentrant)
    done = profile(script, *WINDOWS)
    assert done.status == 0, done.err
    facts = done.facts()
    own = facts.checkpointing
    assert (own.where, own.reentrant, own.through) == ("train.py:14", reentrant, "")
    # Of each block: its input, what ReLU gives, what dropout gives, and dropout's mask of a byte or a float each.
    assert 3 * 2 * ROWS <= own.kept_bytes <= 3 * 5 * ROWS
    for window in facts.windows:
        assert window.backwards == [1] * window.steps  # those inside it are part of it
        assert all(0 < back < took for back, took in zip(window.backward_ns, window.durations_ns, strict=True))
        assert len(window.recomputed_ns) == window.steps
        assert all(0 < again < took for again, took in zip(window.recomputed_ns, window.durations_ns, strict=True))
    (tmp_path / "plain.py").write_text(textwrap.dedent(script))
    plain = forks.run("plain.py", cwd=tmp_path, env=environment())
    assert done.out.splitlines()[-1] == plain.stdout.splitlines()[-1]


@pytest.mark.thorough
def test_it_can_be_switched_off_from_outside(profile):
    script = SCRIPT.format(reentrant=False)
    done = profile(script, *WINDOWS, "--set", "memory.checkpointing=false")
    assert done.status == 0, done.err
    assert "did not take effect" not in done.err
    assert done.facts().checkpointing is None
    assert not any(done.facts().windows[0].recomputed_ns)
    shutil.rmtree(done.folder)
    done = profile(script, *WINDOWS, "--set", "memory.checkpointing=true")
    assert "only the script knows which parts to checkpoint" in done.err
