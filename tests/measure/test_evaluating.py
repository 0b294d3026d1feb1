"""Dropout that is off while gradients flow through it: events by hand, and runs of torch.profiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dptune.measure import measure
from dptune.measure.inferred.evaluating import dropouts_off
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.views import view
from dptune.rule import RunView
from dptune.trace import load
from dptune.trace.columns import NO_OPERATORS
from dptune_rules.memory.evaluation_mode_kept import check

from .handmade import load_events, measure_events, operator, step

NODE = "autograd::engine::evaluate_function: "


def trained(
    drops: str = "False", p: str = "0.1", *, reached: bool = True, frozen: bool = False
) -> list[dict[str, Any]]:
    """Two steps of a linear layer, whose node may be the one that runs in the backward pass, and dropout.

    A frozen layer has no gradient between its node and that of a layer below, which is trained.
    """
    events = []
    for at, number in ((0, 20), (100, 22)):
        dropout = {"Sequence number": number + 1, "Concrete Inputs": ["", p, drops], "Input Dims": [[8, 8], [], []]}
        events += [
            step(at // 100, at, at + 100),
            operator("aten::linear", at + 1, at + 9, **{"Sequence number": number, "Input Dims": [[8, 8], [8, 8], []]}),
            operator("aten::dropout", at + 10, at + 12, **dropout),
            operator(f"{NODE}AddmmBackward0", at + 50, at + 70, **{"Sequence number": number + (0 if reached else 9)}),
            operator(f"{NODE}AddmmBackward0", at + 75, at + 80, **{"Sequence number": number - 10}),
            operator(
                f"{NODE}torch::autograd::AccumulateGrad", at + (82 if frozen else 71), at + (84 if frozen else 73)
            ),
        ]
    return events


@pytest.mark.parametrize(
    ("events", "off"),
    [
        (trained(), 1.0),
        (trained(drops="True"), 0.0),
        (trained(p="0."), 0.0),
        (trained(p=""), 0.0),
        (trained(drops=""), 0.0),
        (trained(frozen=True), 0.0),
        (trained(reached=False), 0.0),  # no gradient flows through what dropout gets
        ([*trained(), *trained("True")[2:3]], 0.0),  # one of three drops: a part is in evaluation mode on purpose
    ],
)
def test_by_hand(tmp_path: Path, events: list[dict[str, Any]], off: float) -> None:
    assert measure_events(tmp_path, events).inferred.dropouts_off == off


def test_arguments_that_can_no_longer_be_read(tmp_path: Path) -> None:
    trace = replace(load_events(tmp_path, trained()).ranks[0].light, operators=NO_OPERATORS)
    assert dropouts_off(HostEvents(view(0, trace))) == 1.0
    (tmp_path / "0.json").unlink()
    assert dropouts_off(HostEvents(view(0, replace(trace)))) == 0.0


@pytest.mark.long
@pytest.mark.parametrize(("mode", "off"), [("train", 0), ("eval", 2), ("frozen", 0), ("prompt", 0)])
def test_a_run_of_the_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, off: int) -> None:
    """Two layers with dropout under a linear one; `frozen` needs no gradients of both, as a pretrained part.

    `prompt`: the same frozen layers, with a trained input, through which gradients flow.
    """
    # the profiler looks whether torch has this, and looking loads torch's compiler: 3 s
    monkeypatch.setattr(torch, "_lazy_modules", getattr(torch, "_lazy_modules", set()) - {"_inductor"})
    blocks = [(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.ReLU()) for _ in range(2)]
    body, head = torch.nn.Sequential(*blocks[0], *blocks[1]).train(mode == "train"), torch.nn.Linear(8, 4)
    body.requires_grad_(mode not in ("frozen", "prompt"))
    prompt = torch.nn.Parameter(torch.ones(16, 8), requires_grad=mode == "prompt")
    optimizer = torch.optim.SGD([prompt, *body.parameters(), *head.parameters()], lr=0.1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(4):
            loss = head(body(prompt)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    measured = measure(load([tmp_path / "trace.json"]))
    assert measured.inferred.dropouts_off == off
    found = list(check(RunView(measured, []))) if off else []
    assert [advice.title for advice in found] == [
        "Dropout is off in all 2 calls of a step: the model is probably in evaluation mode. Call .train() before "
        "training steps"
    ][: bool(off)]
    assert all((advice.kind, advice.confidence, advice.impact) == ("risk", "medium", "medium") for advice in found)
