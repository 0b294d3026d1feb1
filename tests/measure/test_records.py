"""Records of ranks: small, and with them all that compares ranks comes out to the bit as from their events."""

import pickle
from functools import cache
from pathlib import Path

import pytest

from dptune.errors import TraceError
from dptune.measure import measure
from dptune.measure.records import choosing
from dptune.measure.records.making import recorded, recording
from dptune.measure.views import view
from dptune.trace import load
from dptune.trace.loading.gathering import with_events

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import annotation, load_events, operator, step
from .many_ranks import Planted, run

STRAGGLER = "torchrec_straggler_4xv100"
COMPARING = ("account", "collectives", "links", "steps", "step", "process_groups", "world_size", "input")


@cache
def records_of(folder):
    return load([folder], digest=recording)


def test_a_record_has_no_events_and_is_small(real_traces):
    records = records_of(real_traces / STRAGGLER)
    assert not records.ranks
    assert [rank.rank for rank in records.digested] == [0, 1, 2, 3]
    for rank in records.digested:
        assert not len(rank.light.columns)
        assert rank.light.events > 1_000
        assert len(pickle.dumps((rank.light, rank.digest))) < 50_000


def test_records_of_other_processes_share_the_names_of_kernels(real_traces):
    """Each name is one string, however many ranks ran it; what is known by it is as it was."""
    record = records_of(real_traces / STRAGGLER).digested[0].digest.record
    first, second = (pickle.loads(pickle.dumps(record)) for _ in range(2))
    assert (first.ran.streams, first.ran.usual_ns, first.kernel_times) == (
        record.ran.streams,
        record.ran.usual_ns,
        record.kernel_times,
    )
    ours, theirs = (
        [*each.ran.usual_ns, *(name for ran in each.ran.streams.values() for name in ran)] for each in (first, second)
    )
    assert len(ours) > 10
    assert all(mine is other for mine, other in zip(ours, theirs, strict=True))
    assert all(mine is other for (mine, _), (other, _) in zip(first.kernel_times, second.kernel_times, strict=True))


def test_with_all_ranks_read_in_full_nothing_differs(real_traces):
    records, whole = records_of(real_traces / STRAGGLER), reading.measured(real_traces / STRAGGLER)
    assert choosing.differing(records) == [0, 1, 2, 3]
    assert measure(with_events(records, [0, 1, 2, 3])) == whole


def test_what_compares_ranks_needs_their_records_only(real_traces):
    records, whole = records_of(real_traces / STRAGGLER), reading.measured(real_traces / STRAGGLER)
    measured = measure(with_events(records, [0]))
    ours, expected = (figures.model_dump(include=set(COMPARING)) for figures in (measured, whole))
    assert ours == expected
    for mine, theirs in zip(measured.ranks, whole.ranks, strict=True):
        but_for_causes = {"arrival", "missing"}
        assert mine.model_dump(exclude=but_for_causes) == theirs.model_dump(exclude=but_for_causes)
        arrival, other = mine.arrival, theirs.arrival
        assert (arrival.lag_ns, arrival.steps, arrival.more_ns) == (other.lag_ns, other.steps, other.more_ns)
    late, other_late = measured.known("straggler"), whole.known("straggler")
    assert (late.rank, late.lag_ns, late.gain_share) == (other_late.rank, other_late.lag_ns, other_late.gain_share)


def test_records_of_hsdp_over_gloo_have_its_process_groups():
    """gloo's events name no group; a record has those of the mesh, which facts and the rank tell."""
    folder = Path(__file__).parent / "units_over_gloo" / "hybrid"
    records, whole = records_of(folder), reading.measured(folder)
    for rank in records.digested:
        row, column = divmod(rank.rank, 2)
        groups = {call.kind: call.members for call in rank.digest.devices[0].record.calls}
        assert groups["all_gather"] == groups["reduce_scatter"] == str([2 * row, 2 * row + 1])
        assert groups["all_reduce"] == str([column, column + 2])
    measured = measure(with_events(records, [0]))
    ours, expected = (figures.model_dump(include=set(COMPARING)) for figures in (measured, whole))
    assert ours == expected
    assert [each.arrival.lag_ns for each in measured.ranks] == [each.arrival.lag_ns for each in whole.ranks]


def rank_of(folder, shapes):
    """The light or detailed window of a CPU whose two all-reduces have shapes, or not."""
    folder.mkdir()
    events = [step(1, 0, 100), operator("aten::mm", 1, 5), operator("aten::mm", 60, 65)]
    for at, shape in zip((20, 70), shapes, strict=True):
        events.append(annotation("gloo:all_reduce", at, at + 9, thread=2, **shape))
    return load_events(folder, events).ranks[0].light


def test_sizes_of_a_record_are_those_of_the_detailed_window(tmp_path):
    """500 and 8 floats. Where that window cannot be read, or the light one has sizes, it has none to keep."""
    sized = [{"Input Dims": [[elements]], "Input type": ["float"]} for elements in (500, 8)]
    light, detailed = rank_of(tmp_path / "light", [{}, {}]), rank_of(tmp_path / "detailed", sized)

    def unreadable():
        raise TraceError("it is gone", "record it again")

    def shaped(trace, read):
        return [call.message_bytes for call in recorded(view(0, trace), None, read).record.shaped]

    assert shaped(light, lambda: detailed) == [2000, 32]
    assert shaped(light, unreadable) == shaped(light, None) == []
    assert shaped(detailed, lambda: detailed) == []


@pytest.mark.long
def test_sixteen_ranks_are_compared_by_their_records(tmp_path):
    planted = Planted(gemm_times={5: 1.3}, delays=lambda rank, _: 2_000.0 * (rank == 9), data_times={2: 2.5})
    whole = measure(run(tmp_path, 4, planted))
    records = load([tmp_path], digest=recording)
    chosen = choosing.differing(records)
    assert {0, 5, 9} <= set(chosen)
    assert len(chosen) == choosing.MOST
    ours, expected = (
        figures.model_dump(include={*COMPARING, "outliers"})
        for figures in (measure(with_events(records, chosen)), whole)
    )
    assert ours["outliers"]["slow_devices"][0]["rank"] == 5
    assert ours == expected


def test_the_latest_ranks_are_read_in_full(real_traces, monkeypatch):
    records, whole = records_of(real_traces / STRAGGLER), reading.measured(real_traces / STRAGGLER)
    monkeypatch.setattr(choosing, "MOST", 3)
    chosen = choosing.differing(records)
    assert {0, whole.known("straggler").rank} <= set(chosen)


def test_a_rank_that_can_no_longer_be_read_is_a_finding(real_traces, tmp_path):
    for path in sorted((real_traces / STRAGGLER).iterdir()):
        (tmp_path / path.name).symlink_to(path)
    records = load([tmp_path], digest=recording)
    Path(records.digested[1].light.path).unlink()
    some = with_events(records, [0, 1])
    assert [rank.rank for rank in some.ranks] == [0]
    assert [rank.rank for rank in some.digested] == [1, 2, 3]
    assert any(finding.code == "file-unreadable" for finding in some.findings)
