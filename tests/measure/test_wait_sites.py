"""Where the script waits for a device: by hand, and in a public trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import US, Event, annotation, call, copy, kernel, launch, measure_events, operator, python, step


def waiting(*, stacks: bool) -> list[Event]:
    """Four steps of 100: a synchronization of 30 in an operator and a range, and a blocking copy of 20 in another."""
    events: list[Event] = []
    for number in range(4):
        at, first = 100 * number, 10 * number
        events += [step(number, at, at + 100), annotation("## log ##", at + 5, at + 50)]
        events += [launch(first + 1, at + 1, at + 2), kernel("gemm", at + 2, at + 35, first + 1)]
        events += [operator("aten::item", at + 8, at + 42), operator("aten::_local_scalar_dense", at + 9, at + 41)]
        events += [call("cudaStreamSynchronize", at + 10, at + 40)]
        events += [operator("aten::to", at + 55, at + 80)]
        events += [call("cudaMemcpy", at + 58, at + 78, first + 2)]
        events += [copy("DtoH (Device -> Pageable)", at + 60, at + 76, first + 2)]
        if stacks:
            events += [python("train.py(40): log", at + 6, at + 49), python("nn.Module: Net_0", at + 54, at + 81)]
    return events


@pytest.mark.parametrize("stacks", [False, True])
def test_by_call_and_place(tmp_path: Path, stacks: bool) -> None:
    first, second = measure_events(tmp_path, waiting(stacks=stacks)).wait_sites
    assert (first.call, first.operator, first.annotation) == ("cudaStreamSynchronize", "aten::item", "## log ##")
    assert (second.call, second.operator, second.known("annotation")) == ("cudaMemcpy", "aten::to", None)
    assert (first.held_ns % (30 * US), second.held_ns % (20 * US)) == (0, 0)
    assert first.share == pytest.approx(0.3)
    assert first.calls_per_step == 1
    assert first.known("function") == ("train.py(40): log" if stacks else None)
    assert second.known("module") == ("Net_0" if stacks else None)
    assert ("without Python's stacks" in first.missing.get("module", "")) is not stacks


def test_a_public_trace(real_traces: Path) -> None:
    """Six copies of one line hold the host for 34.5 ms in six steps: more than those that are called most often."""
    first, *others = reading.measured(real_traces / "hta_training" / "b1ceb4c_control.json.gz").wait_sites
    assert (first.operator, first.annotation) == ("aten::to", "## all2all_tw_data:wait ##")
    assert first.held_ns / 1e6 == pytest.approx(34.47, abs=0.1)
    assert others[0].operator == "aten::item"
