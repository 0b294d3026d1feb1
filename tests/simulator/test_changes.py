"""Every change of the catalogue changes a run, and both sides can be simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.simulator import pairs, training
from tests.simulator.__main__ import main
from tests.simulator.changes import CHANGES, Run, algorithm_bandwidth, latency_us
from tests.simulator.engine import Simulation


def small(run: Run) -> Run:
    return run[0], replace(run[1], layers=2, width=512, heads=8, tokens=128)


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_both_sides_run(name: str) -> None:
    pair = pairs.drawn(1, 2, name)
    assert pair.before != pair.after
    for run in (small(pair.before), small(pair.after)):
        timelines = Simulation(run[0], training.scripts(*run), steps=1, traced=False).run()
        assert len(timelines) == run[1].ranks
        assert all(timeline.device for timeline in timelines)


def test_links_are_changed_to_the_figures_that_whatif_is_given() -> None:
    for name, figure in (("link.gb_per_s", algorithm_bandwidth), ("link.alpha_us", latency_us)):
        pair = pairs.drawn(2, 8, name)
        assert figure(pair.after) == pytest.approx(float(pair.value))


@pytest.mark.long
def test_the_command_line_writes_both_sides_and_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change = "ddp.bucket_cap_mb=50"
    monkeypatch.setattr(
        "sys.argv", ["simulator", "--seed", "1", "--ranks", "2", "--change", change, "-o", str(tmp_path)]
    )
    main()
    printed = capsys.readouterr().out
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert (truth["change"], truth["value"]) == ("ddp.bucket_cap_mb", "50")
    for side in ("before", "after"):
        assert len(list((tmp_path / side).iterdir())) == len(truth[side]["steps_ns"]) == 2
        assert f"{truth[side]['step_ns'] / 1e6:.3f}" in printed
