"""The sample runs: what dptune says of each, and that they are what their README says they are."""

import re
import shlex
from pathlib import Path

import pytest

from dptune.commands.demo import FAULTS, PACKAGED
from dptune.runfile import json_files
from dptune.runfile.record import RunRecord

from . import reading

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_traces"
# The rules that speak, the planted fault's first, and the fault. Small models have an optimizer worth fusing, too, and
# what is predicted of a larger batch needs links.
RUNS = {
    "healthy": ([], "none"),
    "tiny_buckets": (["DP101", "DP603"], "tiny-buckets"),
    "starved_loader": (["DP501"], "starved-loader"),
    "accumulation_without_no_sync": (["DP102", "DP603"], "accumulation-without-no-sync"),
}
NEED_LINKS = {"DP103", "DP301"}
NOT_RECORDED = {"DP609"}  # where the training thread was, in runs that are older


@pytest.fixture(params=RUNS)
def name(request):
    return request.param


def test_each_fault_is_found_and_nothing_else(name):
    _, report = reading.sample(name)
    assert report.trust.level == "sound"
    expected, _ = RUNS[name]
    assert [a.rule for a in report.advice if a.impact != "low"] == expected
    skipped = {one.rule for one in report.skipped} - NOT_RECORDED
    assert skipped <= NEED_LINKS
    assert expected or not skipped
    for rank in report.measured.ranks:
        (device,) = rank.devices
        assert device.device == "cpu"
        assert [step.number for step in device.steps] == [*range(47, 55)]


def test_the_line_in_the_readme_made_it(name):
    readme = (SAMPLES / "README.md").read_text()
    (line,) = re.findall(rf"\| `{name}` \|.*\| `dptune profile (.*?)` \|", readme)
    record = json_files.read(SAMPLES / name / "run.json", RunRecord)
    script = line.partition("train.py")[2]
    assert record.command == ["python", "train.py", *shlex.split(script)]
    assert f"--nproc-per-node {record.nproc_per_node}" in line
    planned = record.schedule
    assert f"--untraced {planned.untraced} --light {planned.light} --detailed {planned.detailed}" in line
    fault = RUNS[name][1]
    assert script.strip() == FAULTS[fault]
    assert f"`--fault {fault}`" in readme


def test_the_packaged_run_is_one_of_them():
    folders = SAMPLES / PACKAGED.replace("-", "_"), ROOT / "advisor" / "dptune" / "demo" / "run"
    files, packaged = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in folders
    )
    assert packaged == {name: text for name, text in files.items() if ".dptune-cache" not in name.parts}


def test_of_the_packaged_run_the_promise_was_kept():
    """What running the change gave lies within what the report promises of it."""
    report = reading.sample(PACKAGED.replace("-", "_"))[1]
    advice, (found,) = report.advice[0], report.verified
    assert (found.outcome, found.advice) == ("better", advice.rule)
    assert advice.saves.basis == "replayed"
    assert advice.saves.low_share <= 1 - found.ratio <= advice.saves.high_share
