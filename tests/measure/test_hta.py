"""HTA as an independent oracle for the whole account, on the real traces where the manifest says that it is right."""

import json
import logging
import warnings
from pathlib import Path

import pytest

from .. import reading  # noqa: TID252 - tests are no installed package

REAL_TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "real_traces"
# The larger ones say nothing that these do not, and HTA is slow.
LARGEST_BYTES = 400_000
# One SendRecv kernel of 288 us began before its launch was recorded: HTA drops such kernels.
KERNELS_HTA_DROPS_US = {
    "torchrec_straggler_4xv100/4cb2357_21147.1698955063520869240.pt.trace.json.gz": 288,
    "torchrec_straggler_4xv100/5f12e73_21150.1698955063519804832.pt.trace.json.gz": 288,
    "torchrec_straggler_4xv100/eb95e19_21148.1698955063516156627.pt.trace.json.gz": 288,
}


@pytest.fixture(scope="module")
def trace_analysis():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("hta.trace_analysis", reason="the extra `hta` is not installed")
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield module.TraceAnalysis
    logging.disable(level)


def comparable():
    manifest = REAL_TRACES / "MANIFEST.json"
    entries = json.loads(manifest.read_text()) if manifest.is_file() else []
    right = [e for e in entries if e["hta_agrees_with_interval_union"] and e["bytes"] <= LARGEST_BYTES]
    often = {entry["file"] for entry in right[::8]}
    return [
        pytest.param(entry, id=entry["file"], marks=() if entry["file"] in often else pytest.mark.thorough)
        for entry in right
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", comparable())
def test_hta_gives_the_same_account(real_traces, entry, trace_analysis):
    name = entry["file"]
    path = real_traces / name
    analysis = trace_analysis(trace_files={0: str(path)}, trace_dir=str(path.parent), include_last_profiler_step=True)
    theirs = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    (device,) = reading.measured(path).ranks[0].devices
    whole = device.whole
    # HTA rounds fractional microseconds, by up to one at each end of an operation.
    slack_us = 1 + device.device_operations if entry["oddities"].get("frac_ts") else 0
    busy_us = theirs["compute_time(us)"] + theirs["non_compute_time(us)"]
    dropped_us = KERNELS_HTA_DROPS_US.get(name, 0)
    assert theirs["compute_time(us)"] == pytest.approx(whole.compute_ns / 1e3, abs=slack_us)
    assert busy_us - slack_us <= whole.busy_ns / 1e3 <= busy_us + dropped_us + slack_us
    assert theirs["kernel_time(us)"] == pytest.approx(whole.window_ns / 1e3, abs=slack_us and 2)
    if whole.communication_ns:
        overlap = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
        hidden = 100 * whole.hidden_communication_ns / (whole.communication_ns - dropped_us * 1000)
        assert overlap == pytest.approx(hidden, abs=0.01)
