"""Traces of one run were recorded at one time; those of different times are refused together."""

import json
import shutil

import pytest

from dptune.errors import RunError
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord
from dptune.trace import load
from dptune.trace.loading.same_run import APART_NS
from dptune.trace.run import Run

from .conftest import RUNS, SAMPLE

EPOCH_US = 1_700_000_000_000_000
FAR_US = APART_NS // 1000


def write(path, start_us, rank, base_ns=None):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": start_us, "dur": 10}
    document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [event]}
    if base_ns is not None:
        document["baseTimeNanoseconds"] = base_ns
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "name",
    [
        *("torchrec_4xv100", "torchrec_straggler_4xv100", "torchrec_qcomm_a_4xv100", "torchrec_qcomm_b_4xv100"),
        *("torchrec_resnet18_2xv100", "nanogpt_8xh100"),
    ],
)
def test_real_runs_are_of_one_time(real_traces, name):
    assert len(load([real_traces / name]).ranks) > 1


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["kineto_resnet50_loader"], marks=pytest.mark.thorough),
        pytest.param(["large_single"], marks=pytest.mark.thorough),
        ["torchrec_4xv100", "torchrec_straggler_4xv100"],
    ],
)
def test_real_traces_of_different_times_are_refused(real_traces, names):
    with pytest.raises(RunError, match=r"not of one run: .* starts .* after .* ended") as refused:
        load([real_traces / name for name in names])
    assert "dptune compare" in refused.value.hint


@pytest.mark.parametrize(("gap_us", "refused"), [(FAR_US + 10, False), (FAR_US + 11, True)])
def test_the_gap_is_from_the_end_of_one_to_the_beginning_of_the_next(tmp_path, gap_us, refused):
    write(tmp_path / "rank0.json", EPOCH_US, 0)
    write(tmp_path / "rank1.json", EPOCH_US + gap_us, 1)
    if refused:
        with pytest.raises(RunError, match=r"rank1\.json starts 60 seconds after .*rank0\.json ended"):
            load([tmp_path])
    else:
        assert len(load([tmp_path]).ranks) == 2


def test_a_long_trace_bridges_what_lies_within_it(tmp_path):
    write(tmp_path / "rank0.json", EPOCH_US, 0)
    text = (tmp_path / "rank0.json").read_text().replace('"dur": 10', f'"dur": {5 * FAR_US}')
    (tmp_path / "rank0.json").write_text(text)
    write(tmp_path / "rank1.json", EPOCH_US + FAR_US, 1)
    write(tmp_path / "rank2.json", EPOCH_US + 5 * FAR_US, 2)
    assert len(load([tmp_path]).ranks) == 3


def test_times_that_count_from_no_epoch_are_not_compared(tmp_path):
    write(tmp_path / "rank0.json", 5, 0)
    write(tmp_path / "rank1.json", EPOCH_US, 1)
    write(tmp_path / "rank2.json", 10 * FAR_US, 2)
    assert len(load([tmp_path]).ranks) == 3


def test_an_offset_counts_from_its_base(tmp_path):
    write(tmp_path / "rank0.json", 5, 0, base_ns=EPOCH_US * 1000)
    write(tmp_path / "rank1.json", 5, 1, base_ns=EPOCH_US * 1000 + 3 * 86_400 * 10**9)
    with pytest.raises(RunError, match="starts 3 days after"):
        load([tmp_path])


@pytest.mark.parametrize(("gap_us", "doubted"), [(1_000_010, False), (1_000_011, True), (20_000_000, True)])
def test_ranks_that_were_not_recorded_at_the_same_time_are_doubted(tmp_path, gap_us, doubted):
    write(tmp_path / "rank0.json", EPOCH_US, 0)
    write(tmp_path / "rank1.json", EPOCH_US + gap_us, 1)
    found = [one for one in load([tmp_path]).findings if one.code == "ranks-apart"]
    assert [one.level for one in found] == (["partial"] if doubted else [])
    assert not doubted or "these may be traces of two runs" in found[0].text


@pytest.fixture
def recorded(tmp_path):
    """A recording whose folder may be written to."""
    return shutil.copytree(SAMPLE, tmp_path / "run", copy_function=shutil.copyfile)


def findings(folder):
    return [(one.code, one.level, one.text) for one in load([folder]).findings]


def test_a_recording_is_of_one_run(recorded):
    assert findings(recorded) == []


@pytest.mark.long
def test_a_trace_of_another_rank_in_a_recording_is_left_out(recorded):
    shutil.copyfile(recorded / "rank-00000.trace.json.gz", recorded / "rank-00001.trace.json.gz")
    assert [rank.rank for rank in load([recorded]).ranks] == [0]
    wrong, missing = findings(recorded)
    assert wrong[:2] == ("rank-differs", "partial")
    assert "rank-00001.trace.json.gz is left out: its name is that of rank 1, its content that of rank 0" in wrong[2]
    assert missing == ("trace-missing", "partial", "rank 1 has facts but no readable trace")


@pytest.mark.long
def test_a_trace_of_another_run_in_a_recording_is_refused(recorded):
    shutil.copyfile(RUNS / "late-rank" / "rank-00001.trace.json.gz", recorded / "rank-00001.trace.json.gz")
    with pytest.raises(RunError, match=r"not of one run: .*rank-00000\.trace.* starts 4 days after .*rank-00001"):
        load([recorded])


def changed(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("facts", [{}, {1: 4}])
def test_a_world_size_of_the_record_that_facts_and_traces_contradict(recorded, facts):
    changed(recorded / "run.json", world_size=4)
    for rank, world_size in facts.items():
        changed(recorded / f"rank-{rank:05d}.facts.json", world_size=world_size)
    of_facts = "2, 4" if facts else "2"
    text = f"world sizes differ (run.json: 4; the facts: {of_facts}; the traces: 2): 2 is used"
    assert findings(recorded) == [("world-size-differs", "partial", text)]


def test_a_world_size_of_the_facts_that_record_and_traces_contradict(recorded):
    for rank in range(2):
        changed(recorded / f"rank-{rank:05d}.facts.json", world_size=8)
    text = "world sizes differ (run.json: 2; the facts: 8; the traces: 2): 2 is used"
    assert findings(recorded) == [("world-size-differs", "partial", text)]


def test_of_world_sizes_that_are_claimed_as_often_the_record_counts_unless_a_rank_lies_beyond_it():
    facts = {rank: Facts(rank, world_size=8 - rank) for rank in range(2)}
    assert Run([], RunRecord(world_size=7), facts).world_size == 7
    assert Run([], RunRecord(world_size=2), facts).world_size == 2
    assert Run([], RunRecord(world_size=1), facts).world_size == 8
    assert Run([], None, facts).world_size == 8
    assert Run([]).world_size is None


def window(path, start_us):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 1, "ts": start_us, "dur": 10}
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))


def left_out(run: Run) -> list[str]:
    return [finding.text for finding in run.findings if finding.code == "windows-left-out"]


def test_later_windows_of_a_process_are_no_further_ranks(tmp_path):
    """A schedule with `repeat` and tensorboard_trace_handler: a file for each window, here minutes apart."""
    for number in range(3):
        window(tmp_path / f"host_4711.{1_700_000_000_000 + number}.pt.trace.json", EPOCH_US + number * 3 * FAR_US)
    run = load([tmp_path])
    assert [rank.source for rank in run.ranks] == [str(tmp_path / "host_4711.1700000000000.pt.trace.json")]
    (text,) = left_out(run)
    assert text.startswith("2 traces are left out (for example ")
    assert text.endswith("host_4711.1700000000001.pt.trace.json): later windows of a process whose first trace is used")


def test_later_windows_whose_times_count_from_no_epoch(tmp_path):
    """They overlap by their times, which may each count from the start of the window."""
    for number in range(2):
        window(tmp_path / f"host_4711.{1_700_000_000_000 + number}.pt.trace.json", 5)
    run = load([tmp_path])
    assert [rank.source for rank in run.ranks] == [str(tmp_path / "host_4711.1700000000000.pt.trace.json")]
    assert left_out(run)[0].startswith("1 trace is left out (")


def test_processes_that_record_at_one_time_are_ranks_whatever_their_names(tmp_path):
    """Hosts may have one name, and processes on them one number."""
    window(tmp_path / "host_7.1700000000000.pt.trace.json", EPOCH_US)
    window(tmp_path / "host_7.1700000000001.pt.trace.json", EPOCH_US + 5)
    window(tmp_path / "host_8.1700000000001.pt.trace.json", EPOCH_US + 20)
    run = load([tmp_path])
    assert len(run.ranks) == 3
    assert not left_out(run)
