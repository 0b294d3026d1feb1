"""Perfetto files, read back by a reader of their own: every event is there, with its name and nanoseconds."""

from __future__ import annotations

import io
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.cli import main
from dptune.commands.export import late_ranks
from dptune.measure.one_timeline import OneTimeline, one_timeline
from dptune.measured import IDLE
from dptune.present.perfetto.file import write
from dptune.present.perfetto.nesting import edges
from dptune.present.perfetto.packets import Numbers, Packets, builder
from dptune.present.step_classes import NAMES
from dptune.present.visible import visible

from .. import in_process, reading  # noqa: TID252 - tests are no installed package
from .perfetto_reader import Read, read

SMALL = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "same-order"


@pytest.fixture(scope="module")
def timeline() -> OneTimeline:
    run, report = reading.sample("starved_loader")
    return one_timeline(run, report.measured, {0, 1})


@pytest.fixture(scope="module")
def exported(timeline: OneTimeline) -> Read:
    file = io.BytesIO()
    assert write(timeline, reading.sample("starved_loader")[1].advice, file) == sum(
        len(rank.columns) for rank in timeline.ranks
    )
    return read(file.getvalue())


def assert_every_event_is_there(timeline: OneTimeline, exported: Read) -> None:
    """Names, categories and times of the slices with a category, which are events of the traces."""
    written = Counter(
        (exported.process_of(each.track).pid - 1, each.name, each.category, each.start_ns, each.end_ns)
        for each in exported.slices
        if each.category
    )
    recorded: Counter[tuple[int, str, str, int, int]] = Counter()
    for rank in timeline.ranks:
        columns = rank.columns
        for row in range(len(columns)):
            start_ns = int(columns.ts_ns[row]) + rank.shift_ns
            category = columns.categories[columns.category_id[row]]
            recorded[
                rank.rank, visible(columns.name(row)), visible(category), start_ns, start_ns + int(columns.dur_ns[row])
            ] += 1
    assert written == recorded


def assert_arrows_lead_from_the_last_rank(timeline: OneTimeline, exported: Read) -> None:
    leaving = {number: each for each in exported.slices for number in each.leaving}
    arriving = {number: each for each in exported.slices for number in each.arriving}
    assert len(leaving) == sum(len(each.leaving) for each in exported.slices), "each number once"
    assert leaving.keys() == arriving.keys()
    assert len(leaving) == len(timeline.arrows) > 0
    for number, last in leaving.items():
        waited = arriving[number]
        assert waited.start_ns <= last.start_ns < waited.end_ns
        rank = exported.process_of(last.track).pid - 1
        assert waited.details["last rank to arrive"] == last.details["last rank to arrive"] == rank
        assert waited.details["ns before the last rank"] == last.start_ns - waited.start_ns
        assert last.details["ns before the last rank"] == 0


def test_every_event_of_a_recording_is_there(timeline: OneTimeline, exported: Read) -> None:
    assert_every_event_is_there(timeline, exported)
    assert_arrows_lead_from_the_last_rank(timeline, exported)


def test_ids_do_not_collide(exported: Read) -> None:
    assert exported.descriptors == len(exported.tracks)
    processes = [track for track in exported.tracks.values() if track.kind == "process"]
    threads = [track for track in exported.tracks.values() if track.kind == "thread"]
    assert [track.name.split(" on ")[0] for track in processes] == ["rank 0", "rank 1"]
    assert {track.tid for track in threads}.isdisjoint(track.pid for track in processes)
    assert len({track.tid for track in threads}) == len(threads)
    assert all(track.pid == exported.process_of(track.uuid).pid for track in threads)


def test_idle_time_by_cause_is_that_of_the_report(timeline: OneTimeline, exported: Read) -> None:
    measured = reading.sample("starved_loader")[1].measured
    for rank, figures in zip(timeline.ranks, measured.ranks, strict=True):
        for device in figures.devices:
            idle = exported.of(f"rank {rank.rank}", f"idle {device.device}, by cause")
            for cause in IDLE:
                inside = 0
                for step in device.steps:
                    start_ns = step.start_ns + rank.shift_ns
                    end_ns = start_ns + step.account.window_ns
                    inside += sum(
                        max(0, min(each.end_ns, end_ns) - max(each.start_ns, start_ns))
                        for each in idle
                        if each.name == NAMES[cause]
                    )
                assert inside == getattr(device.total, cause), (rank.rank, cause)


def test_recommendations_are_marks_on_their_evidence(timeline: OneTimeline, exported: Read) -> None:
    report = reading.sample("starved_loader")[1]
    places = {
        (f"{advice.rule} {advice.slug}", evidence.rank, evidence.start_ns, evidence.end_ns)
        for advice in report.advice
        for evidence in advice.evidence
        if evidence.start_ns is not None
    }
    shift_ns = {rank.rank: rank.shift_ns for rank in timeline.ranks}
    marks = set()
    for rank in (0, 1):
        for each in exported.of(f"rank {rank}", "recommendations"):
            marks.add((each.name, rank, each.start_ns - shift_ns[rank], each.end_ns - shift_ns[rank]))
            assert each.details["recommendation"]
    assert marks == places
    assert any(name.startswith("DP501") for name, *_ in marks)


def test_steps_are_those_of_the_trace(timeline: OneTimeline, exported: Read) -> None:
    for rank in timeline.ranks:
        steps = exported.of(f"rank {rank.rank}", "steps")
        assert [(each.name, each.start_ns - rank.shift_ns) for each in steps] == [
            (f"step {step.number}", step.start_ns) for step in rank.steps
        ]


def test_gpu_ranks_of_other_hosts_have_streams_and_one_clock(real_traces: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.pftrace"
    done = in_process.dptune("export", str(real_traces / "torchrec_straggler_4xv100"), "--no-cache", "-o", str(output))
    assert done.returncode == 0, done.stderr
    measured = reading.measured(real_traces / "torchrec_straggler_4xv100")
    run = reading.load([real_traces / "torchrec_straggler_4xv100"], cached=False)
    timeline = one_timeline(run, measured, {0, 1, 2, 3})
    exported = read(output.read_bytes())
    assert_every_event_is_there(timeline, exported)
    assert_arrows_lead_from_the_last_rank(timeline, exported)
    streams = {track.name for track in exported.tracks.values() if track.name.startswith("device 0 stream")}
    assert {"device 0 stream 7"} <= streams
    ahead_ns = {rank.rank: rank.clock_ahead_ns for rank in measured.ranks}
    assert {rank.rank: rank.trace.base_ns - rank.shift_ns for rank in timeline.ranks} == ahead_ns
    assert late_ranks(measured) == {0, 2}


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=40),
)
def test_lanes_nest(extents: list[tuple[int, int]]) -> None:
    start_ns = np.array([start for start, _ in extents], dtype=np.int64)
    end_ns = start_ns + np.array([length for _, length in extents], dtype=np.int64)
    opened: dict[int, list[int]] = {}
    last_ns: dict[int, int] = {}
    ended = []
    for lane, at, ends in edges(start_ns, end_ns):
        time_ns = int(end_ns[at] if ends else start_ns[at])
        assert time_ns >= last_ns.get(lane, 0)
        last_ns[lane] = time_ns
        if ends:
            assert opened[lane].pop() == at
            ended.append(at)
        else:
            opened.setdefault(lane, []).append(at)
    assert sorted(ended) == list(range(len(extents)))


def test_slices_that_overlap_without_nesting_are_in_lanes_of_their_own() -> None:
    start_ns, end_ns = np.array([0, 5, 6]), np.array([10, 15, 9])
    lanes = {at: lane for lane, at, ends in edges(start_ns, end_ns) if not ends}
    assert lanes == {0: 0, 1: 1, 2: 0}


def test_hostile_names_are_written_as_codes() -> None:
    file = io.BytesIO()
    packets = Packets(file, builder(), Numbers(), 1)
    process = packets.process("rank 0 on evil\x1b[2J")
    track = packets.track(process, "stream \ud800")
    packets.intern(["a\u202eb"], ["c\0d"])
    packets.begin(track, 5, "a\u202eb", "c\0d", details={"host": "x\ny"})
    packets.end(track, 7)
    packets.flush()
    found = read(file.getvalue())
    assert [each.name for each in found.tracks.values()] == ["rank 0 on evil\\x1b[2J", "stream \\ud800"]
    (only,) = found.slices
    assert (only.name, only.category, only.details) == ("a\\u202eb", "c\\x00d", {"host": "x\\x0ay"})
    assert (only.start_ns, only.end_ns) == (5, 7)


@pytest.mark.long
def test_a_file_that_exists_is_kept_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run.pftrace"
    output.write_bytes(b"kept")
    assert main(["export", str(SMALL), "--no-cache", "-o", str(output)]) == 2
    assert "exists\nhint: replace it with --force" in capsys.readouterr().err
    assert output.read_bytes() == b"kept"
    assert main(["export", str(SMALL), "--no-cache", "-o", str(output), "--force", "--ranks", "1"]) == 0
    assert "wrote" in capsys.readouterr().err
    processes = [track.name for track in read(output.read_bytes()).tracks.values() if track.kind == "process"]
    assert len(processes) == 1
    assert processes[0].startswith("rank 1")
    assert [path.name for path in tmp_path.iterdir()] == ["run.pftrace"]


def test_what_a_file_lacks_is_said_beside_it(
    real_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = real_traces / "damaged" / "truncated_midway.json"
    assert main(["export", str(damaged), "--no-cache", "-o", str(tmp_path / "cut.pftrace")]) == 0
    said = capsys.readouterr().err
    assert "dptune: wrote" in said
    assert "dptune: partial data: truncated_midway.json breaks off after" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "7"], "--ranks: no trace of rank 7\nhint: there are traces of 0-1"),
        (["--ranks", "x"], "'x' is not a rank"),
        (["-o", "."], "it is a folder"),
        (["-o", "no/where"], "the folder no does not exist"),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path) -> None:
    output = [] if "-o" in words else ["-o", "run.pftrace"]
    done = in_process.dptune("export", str(SMALL), "--no-cache", *output, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_the_package_it_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    done = in_process.dptune("export", str(SMALL), "-o", "run.pftrace", cwd=tmp_path)
    assert done.returncode == 2
    assert 'a package that is not installed\nhint: pip install "dptune[perfetto]"' in done.stderr
