"""Ranges of units that a trace lacks are reported, and no verdict rests on what is left."""

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from dptune.measure.communication.calls import Call
from dptune.measure.shard_units.events import UnitCall, UnitEvents
from dptune.measure.shard_units.unseen import _ranks_apart
from dptune.measured.shard_units import NOT_SHARDED, SHARDED
from dptune.present.sections.fsdp import _waited_for, fsdp, no_table

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "gpu" / "ranks-nccl-fsdp"
UNKNOWN = "no ranges mark where {} {} passes, so it is unknown how much compute could hide collectives"
VERDICTS = ("enough compute", "stay exposed")


def changed(folder, change=str, *, ranks=(0, 1), facts=True, recorded=None, read=(0, 1), twice=False):
    """The recording of two ranks on a card, with the names of FSDP's ranges changed; None leaves a range out.

    `recorded`: other facts of units, by rank; `read`: the ranks that have a trace; `twice`: each range is there twice.
    """
    for path in filter(Path.is_file, SAMPLE.iterdir()):
        if (rank := re.match(r"rank-0000(\d)\.trace", path.name)) is None:
            if facts:
                (folder / path.name).write_bytes(other_facts(path, recorded or {}))
            continue
        if int(rank[1]) not in read:
            continue
        trace = json.loads(gzip.decompress(path.read_bytes()))
        if twice:
            trace["traceEvents"] += [each for each in trace["traceEvents"] if is_range(each)]
        if int(rank[1]) in ranks:
            trace["traceEvents"] = [event for event in map(renamed(change), trace["traceEvents"]) if event is not None]
        (folder / path.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return reading.measured(folder)


def other_facts(path, recorded):
    rank = re.match(r"rank-0000(\d)\.facts", path.name)
    if rank is None or int(rank[1]) not in recorded:
        return path.read_bytes()
    facts = json.loads(path.read_text())
    for units in facts["fsdp"]:
        units.update(recorded[int(rank[1])] if units["mesh"] else {})
    return json.dumps(facts).encode()


def is_range(event):
    return str(event.get("name", "")).startswith("FSDP::")


def renamed(change):
    def new(event):
        if not is_range(event):
            return event
        name = change(event["name"])
        return None if name is None else event | {"name": name}

    return new


def without(*words):
    return lambda name: None if any(word in name for word in words) else name


def swapped(name):
    other = {"layers.1": "layers.2", "layers.2": "layers.1"}
    return re.sub(r"layers\.[12]", lambda found: other[found[0]], name)


def shown(measured):
    """The section as one line of text."""
    lines = fsdp(SimpleNamespace(measured=measured), 80)
    return " ".join("".join(span.text for span in line).strip() for line in lines)


CASES = {
    "a rank without ranges": (
        {"change": without("FSDP"), "ranks": (1,)},
        ["rank 1 has no ranges of units"],
    ),
    "ranks with other names": (
        {"change": lambda name: name.replace("(layers.", "(blocks."), "ranks": (1,)},
        ["units or collectives of rank 1 differ from those of rank 0"],
    ),
    "names of two units swapped on a rank": (
        {"change": swapped, "ranks": (1,)},
        ["units or collectives of rank 1 differ from those of rank 0"],
    ),
    "one name for all units": (
        {"change": lambda name: re.sub(r"layers\.\d", "layers.0", name)},
        ["4 units were recorded, but ranges name 1"],
    ),
    "a unit that never starts its backward passes": (
        {"change": without("pre_backward (layers.2)")},
        [UNKNOWN.format("layers.2 starts its", "backward")],
    ),
    "no names": (
        {"change": lambda name: re.sub(r" \(.*\)", "", name)},
        [
            "4 units were recorded, but ranges name 1",
            "ranges of several units are unnamed; these units are listed as (root)",
        ],
    ),
    "no backward passes": (
        {"change": without("backward")},
        [
            UNKNOWN.format("units start their", "backward"),
            # 6 steps of 2 ranks and 4 units, each gathered twice
            "48 of 96 all-gathers listed under forward passes lie outside the range of any pass; some may "
            "belong to backward passes",
        ],
    ),
    "no forward passes": (
        {"change": without("pre_forward")},
        [UNKNOWN.format("units start their", "forward")],
    ),
    "a unit without ranges": (
        {"change": without("layers.2")},
        [
            "4 units were recorded, but ranges name 3",
            "all-gathers as large as a unit's lie outside all ranges of units and are not listed (2 per rank and step)",
            "reduce-scatters as large as a unit's lie outside all ranges of units and are not listed (1 per rank and "
            "step)",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_shown_is_reported(tmp_path, case):
    arguments, gaps = CASES[case]
    measured = changed(tmp_path, **arguments)
    assert measured.shard_units.unseen == gaps
    text = shown(measured)
    assert all(f"Partial data: {gap}." in text for gap in gaps)
    assert not any(verdict in text for verdict in VERDICTS)


def test_the_whole_recording_lacks_nothing():
    measured = reading.measured(SAMPLE)
    assert measured.shard_units.unseen == []
    assert any(verdict in shown(measured) for verdict in VERDICTS)


def test_figures_are_per_step_of_the_ranks_that_show_units(tmp_path):
    """Of a rank without ranges, no step counts: each unit of the other is still gathered once in a pass."""
    measured = changed(tmp_path, without("FSDP"), ranks=(1,))
    found, steps = measured.shard_units, [len(rank.devices[0].steps) for rank in measured.ranks]
    assert (found.rank_steps, steps) == (6, [6, 6])
    assert {row.calls_per_step for row in found.rows} == {1.0}


def test_compute_is_unknown_where_no_unit_starts(tmp_path):
    rows = changed(tmp_path, without("pre_forward")).shard_units.rows
    known = {row.direction: row.known("neighbour_compute_ns") is not None for row in rows}
    assert known == {"forward": False, "backward": True}
    assert {row.missing.get("neighbour_compute_ns") for row in rows} == {
        None,
        "no ranges mark where units start this pass",
    }


def test_a_recording_of_fully_shard_without_ranges_says_so(tmp_path):
    measured = changed(tmp_path, without("FSDP"))
    assert measured.missing["shard_units"] == f"{SHARDED} {NOT_SHARDED}"
    assert f"No table by unit: {SHARDED} {NOT_SHARDED}. The section Collectives lists" in shown(measured)


def test_a_trace_without_facts_and_ranges_has_no_section(tmp_path):
    measured = changed(tmp_path, without("FSDP"), facts=False)
    assert measured.missing["shard_units"] == NOT_SHARDED
    assert no_table(SimpleNamespace(measured=measured)) == ""
    assert shown(measured) == ""


def test_how_often_units_are_gathered_is_reported_where_it_is_not_once():
    often = reading.measured(Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "sharded-micro-batches")
    once = reading.measured(SAMPLE)
    words = "All-gathers of each unit per step: 4 in forward passes (forward passes include evaluation)."
    assert words in shown(often)
    assert "All-gathers of each unit" not in shown(once)


@pytest.mark.parametrize(
    ("recorded", "gap"),
    [
        (
            {0: {"reshard_after_forward": False}, 1: {"reshard_after_forward": False}},
            "reshard_after_forward=False was recorded, but backward passes gather units again",
        ),
        ({0: {"mesh": [4]}, 1: {"mesh": [4]}}, "a mesh of 4 ranks was recorded, but units communicate among 2"),
        ({0: {"units": 9}, 1: {"units": 9}}, "9 units were recorded, but ranges name 4"),
        ({1: {"mesh": [1, 2]}}, "ranks recorded different settings of FSDP; those of the lowest rank are shown"),
    ],
)
def test_settings_that_the_trace_contradicts(tmp_path, recorded, gap):
    assert changed(tmp_path, recorded=recorded).shard_units.unseen == [gap]


def test_what_the_script_gathers_itself_is_no_missing_unit(tmp_path):
    """All recorded units have ranges: other gathers of that size are not theirs."""
    units = {"units": 3, "names": ["layers.0", "layers.1", "layers.3"], "gathered_bytes": [1, 1, 1]}
    measured = changed(tmp_path, without("layers.2"), recorded={0: units, 1: units})
    assert measured.shard_units.unseen == []


@pytest.mark.parametrize(("members", "apart"), [(("[0, 1]", "[0, 1]"), [1]), (("[0, 1]", "[2, 3]"), [])])
def test_other_process_groups_may_hold_other_units(members, apart):
    """As the stages of a pipeline do, each sharded among its ranks."""
    spent, found = [], []
    for rank, (of_rank, unit) in enumerate(zip(members, ("first", "second"), strict=True)):
        view = SimpleNamespace(rank=rank, steps=[SimpleNamespace(number=7)])
        call = Call(0, "all_gather", 10, 5, members=of_rank)
        spent.append((view, None, None))
        found.append(UnitEvents([], [], [UnitCall(0, call, 10, 0, "forward", unit)]))
    differ = [f"units or collectives of rank {rank} differ from those of rank 0" for rank in apart]
    assert list(_ranks_apart(spent, found)) == differ


def test_a_range_that_is_there_twice_counts_once(tmp_path):
    found, whole = changed(tmp_path, twice=True).shard_units, reading.measured(SAMPLE).shard_units
    assert found.unseen == []
    assert [row.hideable_ns for row in found.rows] == [row.hideable_ns for row in whole.rows]


def test_nobody_is_waited_for_where_waiting_is_unknown():
    found = reading.measured(SAMPLE).shard_units
    row = found.rows[0]
    unknown = row.model_copy(update={"waiting_ns": None, "missing": {**row.missing, "waiting_ns": "not matched"}})
    assert _waited_for(found) == "71.0 % of the waiting is for rank 1."
    assert _waited_for(found.model_copy(update={"rows": [unknown, *found.rows[1:]]})) == ""


def test_ranks_that_were_not_read_are_named(tmp_path):
    measured = changed(tmp_path, read=(0,))
    assert measured.shard_units.ranks == [0]
    text = shown(measured)
    assert "Partial data: figures are from rank 0 only; the run has 2 ranks." in text
    assert "of the waiting is for" not in text  # how long ranks wait is not known
    assert "Partial data" not in shown(reading.measured(SAMPLE))


def test_a_unit_is_not_hidden_by_its_own_forward_pass():
    """The first unit of a backward pass was the last of the forward pass, and is freed after it."""
    rows = reading.measured(SAMPLE).shard_units.rows
    (first,) = [row for row in rows if (row.unit, row.direction, row.kind) == ("layers.3", "backward", "all_gather")]
    assert (first.neighbour_compute_ns, first.hideable_ns) == (0, 0)
    assert first.exposed_ns > 0
