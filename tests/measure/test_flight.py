"""Who hangs, by dumps of the flight recorder: written by hand as NCCL's recorder writes them, and real ones of gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dptune.measure.flight import flight_figures, traced_durations
from dptune.measured.flight import FlightFigures
from dptune.trace.flight.dump import read_dump

from .handmade import all_reduce, launch, load_events, operator, step

DUMPS = Path(__file__).parents[1] / "trace" / "flight_dumps"
GROUPS = {"0": [0, 1, 2, 3], "tp0": [0, 1], "tp1": [2, 3]}


def call(group: str, number: int, state: str = "completed", kind: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """A collective of 1,000 floats that took 2 ms."""
    given = {
        "process_group": (group, {"0": "default_pg"}.get(group, "mesh_tp")),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "op_id": number,
        "pg_id": 0,
        "record_id": number,
        "profiling_name": f"nccl:{kind}",
        "input_sizes": [[1000]],
        "output_sizes": [[1000]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "time_discovered_started_ns": None if state == "scheduled" else 1_700_000_000_000_000_000,
        "time_discovered_completed_ns": 1_700_000_000_002_000_000 if state == "completed" else None,
        "timeout_ms": 600_000,
        "frames": [
            {"filename": "/usr/lib/torch/distributed/distributed_c10d.py", "line": 3245, "name": "all_reduce"},
            {"filename": "train.py", "line": 80 + number, "name": "step"},
        ],
    }
    return given | more


def written(folder: Path, by_rank: dict[int, list[dict[str, Any]]]) -> list[Path]:
    """The dumps as files, with the groups that each rank is in."""
    paths = []
    for rank, entries in by_rank.items():
        config = {
            name: {"name": name, "desc": "mesh_tp" if name != "0" else "default_pg", "ranks": str(ranks)}
            for name, ranks in GROUPS.items()
            if rank in ranks
        }
        paths.append(folder / f"nccl_trace_rank_{rank}.json")
        paths[-1].write_text(json.dumps({"version": "2.9", "pg_config": config, "pg_status": {}, "entries": entries}))
    return paths


def figures(folder: Path, by_rank: dict[int, list[dict[str, Any]]]) -> FlightFigures:
    return flight_figures([read_dump(path) for path in written(folder, by_rank)])


HEALTHY = [call("0", 1), call("0", 2)]


def test_nobody_hangs(tmp_path: Path) -> None:
    found = figures(tmp_path, dict.fromkeys(range(4), HEALTHY))
    assert (found.stuck, found.culprits, found.mismatches, found.without_dump) == ([], [], [], [])
    (row,) = found.calls
    assert (row.kind, row.calls, row.ranks, row.message_bytes) == ("all_reduce", 2, 4, 4000)
    assert (row.duration_ms, row.longest_ms) == (2.0, 2.0)


def test_the_rank_that_others_wait_for_through_another_group(tmp_path: Path) -> None:
    """Rank 3 stops. Rank 2 waits for it in their tensor group, so that ranks 0 and 1 wait for rank 2, too."""
    waits = [*HEALTHY, call("0", 3, "started")]
    found = figures(
        tmp_path, {0: waits, 1: waits, 2: [*HEALTHY, call("tp1", 7, "scheduled")], 3: [*HEALTHY, call("tp1", 6)]}
    )
    by_group = {each.group: each for each in found.stuck}
    assert by_group.keys() == {"0", "tp1"}
    assert (by_group["0"].sequence, by_group["0"].reached, by_group["0"].missing) == (3, [0, 1], [2, 3])
    assert by_group["0"].at == "train.py:83"
    assert (by_group["tp1"].sequence, by_group["tp1"].missing, by_group["tp1"].not_started) == (7, [3], [2])
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.dumped, culprit.holds_up) == (3, True, [0, 1, 2])
    assert (culprit.last_call, culprit.at) == ("all_reduce #6 of group tp1 (mesh_tp)", "train.py:86")


def test_a_rank_without_dump_may_have_died(tmp_path: Path) -> None:
    waits = [*HEALTHY, call("0", 3, "started")]
    found = figures(tmp_path, dict.fromkeys((0, 1, 3), waits))
    assert found.without_dump == [2]
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.dumped, culprit.holds_up) == (2, False, [0, 1, 3])


def test_ranks_that_call_in_different_orders_wait_for_each_other(tmp_path: Path) -> None:
    found = figures(
        tmp_path,
        {
            0: [call("0", 1, "started")],
            1: [call("tp0", 1, "started")],
            2: [call("0", 1, "started")],
            3: [call("0", 1, "started")],
        },
    )
    assert found.culprits == []
    assert any("different orders" in finding for finding in found.findings)


@pytest.mark.parametrize(
    ("odd", "what", "values"),
    [
        ({"kind": "all_gather"}, "kind", {"all_reduce": [0, 1, 3], "all_gather": [2]}),
        (
            {"input_sizes": [[999]], "output_sizes": [[999]]},
            "sizes",
            {"in 1000 out 1000": [0, 1, 3], "in 999 out 999": [2]},
        ),
        (
            {"input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"]},
            "types",
            {"in Float out Float": [0, 1, 3], "in BFloat16 out BFloat16": [2]},
        ),
    ],
)
def test_calls_that_differ(odd: dict[str, Any], what: str, values: dict[str, list[int]], tmp_path: Path) -> None:
    usual = [*HEALTHY, call("0", 3, "started"), call("0", 4, "scheduled")]
    found = figures(tmp_path, {**dict.fromkeys((0, 1, 3), usual), 2: [*HEALTHY, call("0", 3, "started", **odd)]})
    (mismatch,) = found.mismatches
    assert (mismatch.sequence, mismatch.what, mismatch.values) == (3, what, values)


@pytest.mark.parametrize(("kind", "of_root"), [("scatter", "input_sizes"), ("gather", "output_sizes")])
def test_sizes_of_a_scatter_and_a_gather_may_differ_where_torch_says_so(
    kind: str, of_root: str, tmp_path: Path
) -> None:
    root = call("0", 1, kind=kind, **{of_root: [[1000]] * 4})
    other = call("0", 1, kind=kind, **{of_root: []})
    assert figures(tmp_path, {0: [root], **{rank: [other] for rank in (1, 2, 3)}}).mismatches == []


def test_a_gather_of_different_inputs_is_a_mismatch(tmp_path: Path) -> None:
    usual, odd = call("0", 1, kind="gather"), call("0", 1, kind="gather", input_sizes=[[999]])
    (mismatch,) = figures(tmp_path, {0: [usual], 1: [usual], 2: [odd], 3: [usual]}).mismatches
    assert (mismatch.what, mismatch.values) == ("sizes", {"in 1000": [0, 1, 3], "in 999": [2]})


def test_dumps_without_calls_name_the_setting_that_records_them(tmp_path: Path) -> None:
    found = figures(tmp_path, {0: [], 1: []})
    assert (found.entries, found.stuck) == (0, [])
    (finding,) = found.findings
    assert "TORCH_FR_BUFFER_SIZE" in finding


def test_a_call_of_an_unknown_type_has_no_size(tmp_path: Path) -> None:
    """1,000 floats and 1,000 of a type that is not known: what is known of the sum would be too small."""
    unknown = call("0", 1, input_sizes=[[1000], [1000]], input_dtypes=["Float", "Float5"])
    (row,) = figures(tmp_path, {rank: [unknown] for rank in range(4)}).calls
    assert row.message_bytes is None


def test_durations_of_the_device_count_before_those_of_the_recorder(tmp_path: Path) -> None:
    """The recorder notices 2 ms between start and end of each call; the device took 1.5 ms on rank 0."""
    found = figures(tmp_path, {0: [call("0", 1, duration_ms=1.5)], 1: [call("0", 1)]})
    (row,) = found.calls
    assert (row.duration_ms, row.longest_ms) == (1.5, 2.0)


@pytest.mark.parametrize(("enqueued", "missing"), [(3, []), (2, [2])])
def test_a_call_that_has_left_the_buffer_was_enqueued(enqueued: int, missing: list[int], tmp_path: Path) -> None:
    """Rank 2's buffer holds call 2 only; what is enqueued in a group that nobody lists counts nowhere."""
    waits = [*HEALTHY, call("0", 3, "started")]
    paths = written(tmp_path, {0: waits, 1: waits, 2: HEALTHY[1:], 3: waits})
    document = json.loads(paths[2].read_text())
    document["pg_status"] = {name: {"last_enqueued_collective": enqueued} for name in ("0", "elsewhere")}
    paths[2].write_text(json.dumps(document))
    (stuck,) = flight_figures([read_dump(path) for path in paths]).stuck
    assert (stuck.group, stuck.sequence, stuck.missing) == ("0", 3, missing)


def test_durations_in_traces_are_those_of_the_device(tmp_path: Path) -> None:
    """Of call 5 only the operator on the host was recorded: it does not last as long as the collective."""
    reduced = all_reduce(100, 150, 1, 1000, "0", 2)
    reduced["args"]["Seq"] = 4
    called = operator("record_param_comms", 200, 209, **(reduced["args"] | {"Seq": 5}))
    run = load_events(tmp_path, [step(0, 0, 900), called, launch(1, 5, 6), reduced])
    assert traced_durations(run) == {(0, "0", 4): 0.05}


def peer(name: str, number: int, state: str = "completed", group: str = "0", **more: Any) -> dict[str, Any]:
    """A send or receive, `send 0->1` or `recv 1<-0`, in the ranks of its group."""
    more = {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True, **more}
    return call(group, number, state, name, **more)


SENT = [peer("send 2->3", 1), peer("send 2->3", 2)]
RECEIVED = [peer("recv 3<-2", 1), peer("recv 3<-2", 2)]


def test_sends_that_are_over_hold_up_nobody(tmp_path: Path) -> None:
    found = figures(tmp_path, {0: HEALTHY, 1: HEALTHY, 2: [*HEALTHY, *SENT], 3: [*HEALTHY, *RECEIVED]})
    assert (found.stuck, found.culprits) == ([], [])


@pytest.mark.parametrize("first", [1, 41])
def test_a_stage_of_a_pipeline_that_does_not_send(first: int, tmp_path: Path) -> None:
    """Rank 2 hangs: rank 3 waits for what it sends, and ranks 0 and 1 for both, in a collective.

    `first` is the number of the oldest receive: that of 1 is whether the recorder has all of them.
    """
    waits = [*HEALTHY, call("0", 3, "started")]
    received = [peer("recv 3<-2", first), peer("recv 3<-2", first + 1, "started")]
    found = figures(tmp_path, {0: waits, 1: waits, 2: [*HEALTHY, SENT[0]], 3: [*HEALTHY, *received]})
    collective, receive = found.stuck
    assert (collective.kind, collective.missing) == ("all_reduce", [2, 3])
    assert (receive.kind, receive.sequence, receive.message_bytes) == ("receive from rank 2", first + 1, 4000)
    assert (receive.reached, receive.missing, receive.done, receive.at) == ([3], [2], [], f"train.py:{81 + first}")
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.holds_up, culprit.last_call) == (2, [0, 1, 3], "send 2->3 #1 of group 0 (default_pg)")


def test_ranks_of_a_group_and_of_a_dump_that_is_lacking(tmp_path: Path) -> None:
    """In group tp1, rank 2 is number 0 and rank 3 number 1, of which no dump was given."""
    found = figures(tmp_path, {0: HEALTHY, 1: HEALTHY, 2: [*HEALTHY, peer("send 0->1", 5, "started", "tp1")]})
    (send,) = found.stuck
    assert (send.kind, send.reached, send.without_dump) == ("send to rank 3", [2], [3])
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.dumped, culprit.holds_up) == (3, False, [2])


def test_peers_of_a_group_that_is_not_listed_are_ranks_of_the_job(tmp_path: Path) -> None:
    found = figures(tmp_path, {2: [peer("send 2->3", 1, "started", "pp")], 3: HEALTHY})
    (send,) = found.stuck
    assert (send.group, send.kind, send.reached, send.missing) == ("pp", "send to rank 3", [2], [3])


def test_both_called_or_one_is_through(tmp_path: Path) -> None:
    """What has arrived is not waited for by its receiver; where both wait, the cause is elsewhere."""
    begun = [peer("send 2->3", 3, "started")], [peer("recv 3<-2", 3, "scheduled")]
    found = figures(tmp_path, {0: HEALTHY, 1: HEALTHY, 2: [*SENT, *begun[0]], 3: [*RECEIVED, *begun[1]]})
    (stuck,) = found.stuck
    assert (stuck.kind, stuck.reached, stuck.missing, stuck.done) == ("send to rank 3", [2, 3], [], [])
    assert found.culprits == []
    (tmp_path / "done").mkdir()
    found = figures(tmp_path / "done", {2: [*SENT, *begun[0]], 3: [*RECEIVED, peer("recv 3<-2", 3)]})
    (stuck,) = found.stuck
    assert (stuck.kind, stuck.reached, stuck.missing, stuck.done) == ("send to rank 3", [2, 3], [], [3])


@pytest.mark.parametrize("state", ["completed", "started"])
def test_calls_of_a_coalesced_group_are_over_with_the_group(state: str, tmp_path: Path) -> None:
    """The recorder leaves single calls of a group as scheduled; what ends the group has its number, and a state."""
    both = [peer("send 2->3", 1, "scheduled"), peer("recv 2<-3", 1, "scheduled"), peer("coalesced", 1, state)]
    other = [peer("recv 3<-2", 1, "scheduled"), peer("send 3->2", 1, "scheduled"), peer("coalesced", 1, "completed")]
    found = figures(tmp_path, {2: both, 3: other})
    kinds = [(each.kind, each.reached, each.done) for each in found.stuck]
    waiting = [("send to rank 3", [2, 3], [3]), ("receive from rank 3", [2, 3], [3])]
    assert kinds == ([] if state == "completed" else waiting)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_real_dumps_of_gloo(form: str) -> None:
    found = flight_figures([read_dump(path) for path in sorted((DUMPS / form).iterdir())])
    (stuck,) = found.stuck
    assert (stuck.group, stuck.sequence, stuck.kind, stuck.message_bytes) == ("0", 5, "all_reduce", 20_000)
    assert (stuck.reached, stuck.missing, stuck.not_started) == ([0, 1], [2], [])
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.holds_up) == (2, [0, 1])
    assert culprit.last_call == "barrier #4 of group 0 (default_pg)"
    assert found.mismatches == []


@pytest.mark.thorough
def test_torch_itself_names_the_same_missing_ranks_and_mismatches(tmp_path: Path) -> None:
    """`torch.distributed.flight_recorder` on the same dumps."""
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    usual = [*HEALTHY, call("0", 3, "started")]
    for name, by_rank in {
        "missing": {**dict.fromkeys((0, 1, 3), usual), 2: HEALTHY},
        "kind": {**dict.fromkeys((0, 1, 3), usual), 2: [*HEALTHY, call("0", 3, "started", kind="broadcast")]},
        "sizes": {**dict.fromkeys((0, 1, 3), usual), 2: [*HEALTHY, call("0", 3, "started", input_sizes=[[7]])]},
        "none": dict.fromkeys(range(4), usual),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        ours = figures(folder, by_rank)
        documents = {rank: json.loads((folder / f"nccl_trace_rank_{rank}.json").read_text()) for rank in by_rank}
        config = {rank: document["pg_config"] for rank, document in documents.items()}
        _, groups, _, members, guids = builder.build_groups_memberships(config)
        entries = {rank: document["entries"] for rank, document in documents.items()}
        _, collectives, _ = builder.build_collectives(entries, groups, members, guids, "2.9")
        (last,) = [each for each in collectives if each.collective_seq_id == 3]
        assert sorted(last.missing_ranks or ()) == [rank for each in ours.stuck for rank in each.missing], name
        assert last.pass_check != bool(ours.mismatches), name
