"""What real cards have shown, from the results and recordings that are kept: figures, accounts, advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.keeping import RESULTS, SAMPLES
from tests.gpu.stages.known import WITHIN

from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.measure import measure
from dptune.trace import load

NONE = "no run on a card has been kept yet: `make gpu-check` on one, then `python -m tests.gpu --keep FOLDER`"


def _kept(paths: list[Path]) -> list[Any]:
    return [pytest.param(path, id=path.name) for path in paths] or [
        pytest.param(None, marks=pytest.mark.skip(reason=NONE))
    ]


@pytest.mark.parametrize("path", _kept(sorted(RESULTS.glob("*.json"))))
def test_known_durations_were_found(path: Path) -> None:
    known = json.loads(path.read_text())["stages"]["known"]["figures"]
    errors = {name: found["error"] for name, found in known["parts"]["compared"].items()}
    assert all(abs(error) <= WITHIN for error in errors.values()), errors
    assert known["queue"]["host_idle_share"] + known["queue"]["launch_idle_share"] <= WITHIN


@pytest.mark.parametrize("folder", _kept([path.parent for path in sorted(SAMPLES.glob("*/run.json"))]))
def test_a_recording_of_a_card_reads_as_one(folder: Path) -> None:
    run = load([folder])
    measured = measure(run)
    report = build_report(run, measured, Settings())
    assert measured.device_kind == "cuda"
    assert report.trust.level == "sound", [finding.text for finding in report.trust.findings]
    for rank in measured.ranks:
        for device in rank.devices:
            for step in device.steps:
                account = step.account
                busy = account.compute_ns + account.exposed_communication_ns + account.copy_ns + account.memset_ns
                assert busy + account.idle_ns == account.window_ns
