"""What several figures take is found once, and the search for garbage waits until a run is measured."""

import gc
from pathlib import Path

import pytest

from dptune.measure import figures, measure
from dptune.measure.device.operations import misdated
from dptune.measure.host.launches import _calls
from dptune.trace import load

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "healthy" / "rank-00000.trace.json.gz"


@pytest.fixture
def run():
    return load([SAMPLE])


def test_launches_and_misdated_operations_are_found_once_for_a_trace(run):
    columns = run.ranks[0].light.columns
    for found in (_calls, misdated):
        assert found(columns) is found(columns)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_searched_for_while_a_run_is_measured(run, monkeypatch, enabled):
    while_measuring = []

    def views(run):
        while_measuring.append(gc.isenabled())
        raise ValueError("measured no further")

    monkeypatch.setattr(figures, "complete_views", views)
    if not enabled:
        gc.disable()
    try:
        with pytest.raises(ValueError, match="measured no further"):
            measure(run)
        assert (while_measuring, gc.isenabled()) == ([False], enabled)
    finally:
        gc.enable()
