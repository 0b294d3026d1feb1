"""Units of recorded runs over gloo against a plain reading of their traces: FSDP1 on two ranks, HSDP on four.

units_over_gloo/train.py says what was recorded; the last rank is late to each step.
"""

import gzip
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from dptune.present.html.sharding import shard_units as page_section
from dptune.present.sections.fsdp import fsdp

from .. import reading  # noqa: TID252 - tests are no installed package

RECORDED = Path(__file__).parent / "units_over_gloo"
KINDS = {"c10d::allgather_": "all_gather", "c10d::_allgather_base_": "all_gather", "c10d::allreduce_": "all_reduce"}
KINDS |= {"c10d::_reduce_scatter_base_": "reduce_scatter"}
# As torch issues them: a unit is gathered again in the hook of the one that runs backward before it.
ISSUED = [
    *(("forward", unit, "all_gather") for unit in ("", "0", "1", "1.inner", "2")),
    *(("backward", unit, "all_gather") for unit in ("2", "1")),
    ("backward", "2", "reduce_scatter"),
    *(("backward", unit, "all_gather") for unit in ("1.inner", "0")),
    *(("backward", unit, "reduce_scatter") for unit in ("1.inner", "1", "0", "")),
]


def collectives(folder, rank):
    """The collectives of each step: kind and duration in us, in order of time."""
    events = json.loads(gzip.decompress((folder / f"rank-{rank:05d}.trace.json.gz").read_bytes()))["traceEvents"]
    timed = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: event["ts"])
    steps = [event for event in timed if event["name"].startswith("ProfilerStep")]
    asked = [event for event in timed if event["name"] in KINDS]
    ran = [event for event in timed if event["name"].startswith("gloo:")]
    found = [[] for _ in steps]
    for operator, event in zip(asked, ran, strict=True):
        for number, step in enumerate(steps):
            if step["ts"] <= event["ts"] < step["ts"] + step["dur"]:
                found[number].append((KINDS[operator["name"]], event["dur"]))
    return found


def shown(measured):
    """The section as one line of text."""
    lines = fsdp(SimpleNamespace(measured=measured), 99)
    return " ".join("".join(span.text for span in line).strip() for line in lines)


def test_units_of_fsdp1_by_their_names():
    """What each takes is the sum over steps and ranks of the collectives at its place; no compute hides any."""
    folder = RECORDED / "flat"
    measured = reading.measured(folder)
    found = measured.shard_units
    took_us = Counter()
    for rank in (0, 1):
        for step in collectives(folder, rank):
            assert [kind for kind, _ in step] == [kind for _, _, kind in ISSUED]
            for key, (_, dur) in zip(ISSUED, step, strict=True):
                took_us[key] += dur
    rows = {(row.direction, row.unit, row.kind): row for row in found.rows}
    assert rows.keys() == set(ISSUED)
    for key, row in rows.items():
        assert row.hidden_ns == 0  # autograd's operator around a hook waits
        assert row.exposed_ns == pytest.approx(1e3 * took_us[key], rel=1e-3)
    width, classes = 64, 4
    layers = {"": width * classes + classes} | {
        unit: 2 * width * inner + inner + width for unit, inner in (("0", 32), ("1", 256), ("1.inner", 128), ("2", 64))
    }
    assert {row.unit: row.message_bytes for row in found.rows} == {unit: 4 * size for unit, size in layers.items()}
    assert found.whole_bytes == 4 * sum(layers.values())
    held = [layers[unit] for unit in ("", "1", "1.inner", "0")]  # `0` is gathered ahead as `1.inner` goes back
    assert found.held_bytes == 4 * sum(held)
    assert (found.forward_depth, found.backward_depth, found.numbered) == (0, 1, False)
    first = rows["forward", "", "all_gather"]
    assert first.waited_for == 1
    assert first.waiting_ns > 0.5 * first.exposed_ns  # for the rank that is late to each step
    text = shown(measured)
    assert "sharding_strategy=FULL_SHARD" in text
    assert "of the waiting is for rank 1." in text


def test_who_is_waited_for_in_each_group_of_hsdp():
    """In each group by the shortest call; the groups that hold the late rank wait longest."""
    folder = RECORDED / "hybrid"
    measured = reading.measured(folder)
    groups = {tuple(group.ranks): group for group in measured.shard_units.groups}
    ran = {rank: collectives(folder, rank) for rank in range(4)}
    late, waiting = {}, Counter()
    for ranks, kinds in (
        ((0, 1), ("all_gather", "reduce_scatter")),
        ((2, 3), ("all_gather", "reduce_scatter")),
        ((0, 2), ("all_reduce",)),
        ((1, 3), ("all_reduce",)),
    ):
        waited_us = Counter()
        for steps in zip(*(ran[rank] for rank in ranks), strict=True):
            for calls in zip(*steps, strict=True):
                if calls[0][0] in kinds:
                    durations = [dur for _, dur in calls]
                    waited_us[ranks[durations.index(min(durations))]] += max(durations) - min(durations)
        late[ranks], waiting[ranks] = waited_us, waited_us.total() / len(ranks) / len(ran[0])
    assert groups.keys() == waiting.keys()
    for ranks, group in groups.items():
        assert group.waiting_ns == pytest.approx(1e3 * waiting[ranks], rel=0.02, abs=20e3)
        assert group.waited_for == max(ranks, key=lambda rank, ranks=ranks: late[ranks][rank])
        assert group.waited_share == pytest.approx(late[ranks][group.waited_for] / late[ranks].total(), abs=0.01)
    assert groups[2, 3].waited_for == groups[1, 3].waited_for == 3
    assert groups[2, 3].waiting_ns > 2 * groups[0, 1].waiting_ns
    text = shown(measured)
    assert "process group" in text
    assert "waiting not measured" not in text
    (section,) = page_section(SimpleNamespace(measured=measured))
    assert "Waiting by process group" in section.body


def test_groups_are_only_known_where_the_mesh_is(tmp_path):
    """Without facts a call of gloo may be in any of the groups that the trace lists."""
    found = reading.measured_without_facts(RECORDED / "hybrid").shard_units
    assert found.groups == []
    assert all("could not be matched" in row.missing["waiting_ns"] for row in found.rows)
