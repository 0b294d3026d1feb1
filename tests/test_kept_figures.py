"""What commands in tests measure of the repository's runs is measured once, for each of what else figures depend on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import dptune.measure
from dptune.commands.shared.reading import measured_of
from dptune.measure.communication.links import Sweep
from dptune.measure.figures import measure
from dptune.measured import Measured
from dptune.trace import load
from dptune.trace.kineto.decode import decode
from dptune.trace.run import Run

from . import sharing
from .kept_figures import KeptFigures
from .kept_traces import KeptTraces
from .test_kept_traces import SAMPLE


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no other process ran tests."""
    monkeypatch.delenv(sharing.FOLDER, raising=False)


class Counted:
    """measure, and how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, run: Run, sweep: Sweep | None, tokens: int | None, samples: int | None) -> Measured:
        self.calls += 1
        return measure(run, sweep, tokens, samples)


def of_kept(run: Run, traces: KeptTraces) -> Run:
    return replace(run, ranks=[replace(rank, light=traces(rank.light.path)) for rank in run.ranks])


def test_a_run_is_measured_once_for_each_of_what_else_is_given() -> None:
    traces = KeptTraces(decode, folders=(SAMPLE.parent,))
    kept = KeptFigures(counted := Counted(), traces)
    runs = [of_kept(load([SAMPLE.parent], cached=False), traces) for _ in range(2)]
    first, second = map(kept, runs)
    assert (first == second == measure(runs[0]), first is second, counted.calls) == (True, False, 1)
    first.missing["step"] = "changed by who asked"
    assert kept(runs[0]) == second
    assert kept(runs[0], tokens=640).samples_per_step == second.samples_per_step
    assert counted.calls == 2
    runs[0].facts[0].loaders.clear()
    assert kept(runs[0]) == measure(runs[0])
    assert counted.calls == 3
    assert kept(replace(runs[1], ranks=runs[1].ranks[:1])) == measure(replace(runs[1], ranks=runs[1].ranks[:1]))
    assert counted.calls == 4


def test_another_process_takes_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(sharing.FOLDER, str(tmp_path))
    counted = Counted()
    found = []
    for _ in range(2):
        traces = KeptTraces(decode, folders=(SAMPLE.parent,))
        run = of_kept(load([SAMPLE.parent], cached=False), traces)
        found += [KeptFigures(counted, traces)(run, tokens=tokens) for tokens in (None, 640)]
    assert counted.calls == 2
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_a_run_of_other_traces_is_measured_each_time() -> None:
    kept = KeptFigures(counted := Counted(), KeptTraces(decode, folders=()))
    run = load([SAMPLE.parent], cached=False)
    assert kept(run) == kept(run)
    assert counted.calls == 2


def test_commands_measure_so() -> None:
    assert isinstance(vars(dptune.measure)["measure"], KeptFigures)
    found = [measured_of([str(SAMPLE.parent)], 1, cached=False)[1] for _ in range(2)]
    assert found[0] == found[1]
