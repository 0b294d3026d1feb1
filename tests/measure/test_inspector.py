"""Logs of NCCL Inspector: the example of its documentation, and a job whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dptune.errors import TraceError
from dptune.measure.inspector import inspector_figures
from dptune.measured.inspector import InspectorFigures
from dptune.trace.inspector import is_inspector_log, read_log

from .. import in_process  # noqa: TID252 - tests are no installed package

SIZE, TRANSFER_US, BUSBW = 2**20, 100, 18.35


def record(rank: int, number: int, exec_us: float, **perf: Any) -> dict[str, Any]:
    """A completed all-reduce of 1 MiB, with the fields of NCCL's documentation."""
    return {
        "header": {"id": "0x7f8c496ae9f661", "comm_name": "DP Group 0", "rank": rank, "n_ranks": 4, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": 1748030377748202,
            "hostname": f"node{rank // 2}",
            "pid": 100 + rank,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": number,
            "coll_msg_size_bytes": SIZE,
            "coll_exec_time_us": exec_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": BUSBW / 1.5 * TRANSFER_US / exec_us,
            "coll_busbw_gbs": BUSBW * TRANSFER_US / exec_us,
            **perf,
        },
    }


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Four ranks, 20 all-reduces. Rank 2 is 50 us late at 15 of them; one log is on lines, one printed over lines."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in range(4):
        records = [record(rank, number, TRANSFER_US + (50 if number < 15 and rank != 2 else 0)) for number in range(20)]
        indent = 2 if rank == 1 else None
        text = "".join(json.dumps(each, indent=indent) + "\n" for each in records)
        (folder / f"node{rank // 2}-pid{100 + rank}.log").write_text(text)
    return folder


def figures(folder: Path) -> InspectorFigures:
    read = [read_log(path) for path in sorted(folder.iterdir())]
    return inspector_figures([call for calls, _ in read for call in calls], sum(unread for _, unread in read))


def test_transfer_waiting_and_the_last_rank(logs: Path) -> None:
    assert all(map(is_inspector_log, logs.iterdir()))
    found = figures(logs)
    assert (found.processes, found.calls, found.unread) == (4, 80, 0)
    (row,) = found.collectives
    assert (row.kind, row.message_bytes, row.ranks, row.of_ranks, row.nodes, row.calls) == (
        "AllReduce",
        SIZE,
        4,
        4,
        2,
        20,
    )
    assert (row.exec_us, row.transfer_us, row.busbw_gb_per_s) == (150, 100, pytest.approx(BUSBW))
    (last,) = found.last_ranks
    assert (last.rank, last.host, last.pid, last.share, last.waiting_us) == (2, "node1", 102, 0.75, 50)


def test_ranks_that_take_turns_or_arrive_together_are_not_named(tmp_path: Path) -> None:
    for late in (lambda number: number % 4, lambda number: -1):
        lines = [
            json.dumps(record(rank, number, 100 if rank == late(number) or late(number) < 0 else 150))
            for number in range(20)
            for rank in range(4)
        ]
        (tmp_path / "a.log").write_text("\n".join(lines))
        assert figures(tmp_path).last_ranks == []


@pytest.mark.parametrize("changed", [{"coll": "Broadcast"}, {"ranks": 3}])
def test_nobody_is_last_where_ranks_leave_early_or_a_log_is_missing(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Rank 2 takes 100 us, the others 150: of an all-reduce of four ranks, that makes it the last to arrive."""

    def last(ranks: int = 4, **perf: Any) -> list[int]:
        calls = [record(rank, at, 100 if rank == 2 else 150, **perf) for at in range(20) for rank in range(ranks)]
        (tmp_path / "a.log").write_text("\n".join(map(json.dumps, calls)))
        return [found.rank for found in figures(tmp_path).last_ranks]

    assert last() == [2]
    assert last(**changed) == []


def test_damage_is_counted(logs: Path) -> None:
    path = next(iter(sorted(logs.iterdir())))
    text = path.read_text()
    broken = json.dumps(record(0, 30, 100, coll_exec_time_us="x"))
    path.write_text(text[:200] + "\n" + text + broken + "\n" + json.dumps({"p2p_perf": {}}) + "\n[1]\n" + text[:300])
    calls, unread = read_log(path)
    assert (len(calls), unread) == (20, 4)


def test_a_log_without_collectives_ends_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text('{"metadata": {"inspector_output_format_version": "v4.0"}}')
    with pytest.raises(TraceError, match="holds no collective"):
        read_log(path)
    path.write_text("{" * 100_000)
    assert not is_inspector_log(path)


def test_the_command_shows_them(logs: Path) -> None:
    done = in_process.dptune("report", str(logs), "--width", "120")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "NCCL Inspector: 4 processes, 80 calls"
    assert lines[1].startswith(
        "  Straggler: rank 2 of 4 in DP Group 0 on node1 (pid 102) arrives last at 75.0 % of the"
    )
    assert "AllReduce" in done.stdout
    done = in_process.dptune("report", str(logs), "--format", "json")
    assert InspectorFigures.model_validate_json(done.stdout).last_ranks[0].rank == 2


def test_a_log_that_is_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nccl-0.log"
    assert not is_inspector_log(path)
    with pytest.raises(TraceError, match=r"cannot read .*nccl-0\.log: No such file"):
        read_log(path)
    path.write_text(json.dumps(record(0, 1, 100.0)))
    monkeypatch.setattr("dptune.trace.inspector.MOST_BYTES", 20)
    with pytest.raises(TraceError, match="is larger than 20 bytes"):
        read_log(path)


@pytest.mark.parametrize("field", ["coll_sn", "coll_msg_size_bytes"])
def test_a_record_without_a_whole_number_is_left_out(tmp_path: Path, field: str) -> None:
    path = tmp_path / "nccl-0.log"
    path.write_text(
        "\n".join(json.dumps(record(0, at, 100.0, **({field: None} if at == 2 else {}))) for at in (1, 2, 3))
    )
    calls, unread = read_log(path)
    assert (len(calls), unread) == (2, 1)
