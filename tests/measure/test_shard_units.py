"""Units of fully_shard: what each pass sends for them, what is exposed, and what compute of others could hide."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dptune.measure.shard_units.figures import _reduced_sizes
from dptune.measure.shard_units.policies import policies
from dptune.measured import Missing, ShardUnits, UnitFigures
from dptune.present.amounts import ns_as_ms
from dptune.present.sections.fsdp import fsdp
from dptune.runfile.communication import FsdpFacts
from dptune.testing import facts_of

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import US, annotation, launched, measure_events, operator, step

SAMPLES = Path(__file__).parents[2] / "sample_traces" / "gpu"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GO_BACK = "autograd::engine::evaluate_function: ReluBackward0"


def in_hook(name, unit, start, end, *events, issues="all_gather"):
    """A hook of a unit, and in it the range that issues a collective."""
    inside = annotation(f"FSDP::{issues} ({unit})", start + 0.5, end - 0.5)
    return [annotation(f"FSDP::{name} ({unit})", start, end), inside, *events]


# Forward: `a` is gathered in its own hook, `b` ahead, in the hook of `a`. Backward: `b` is still there, `a` is not.
EVENTS = [
    step(1, 0, 200),
    step(2, 200, 210),
    *launched("warm", 1, 2, 4, 1),
    *in_hook("pre_forward", "a", 5, 9, *launched(GATHER, 6, 10, 20, 2, stream=8)),
    *in_hook("forward_prefetch for", "b", 9, 12, *launched(GATHER, 10, 20, 35, 3, stream=8)),
    *launched("gemm", 12, 20, 30, 4),
    annotation("FSDP::post_forward (a)", 13, 14),
    annotation("FSDP::pre_forward (b)", 15, 16),
    *launched("gemm", 17, 35, 45, 5),
    operator(GO_BACK, 50, 150),
    annotation("FSDP::pre_backward (b)", 51, 52),
    *launched("gemm", 53, 55, 65, 6),
    *in_hook("post_backward", "b", 66, 70, *launched(REDUCE, 67, 70, 90, 7, stream=8), issues="post_backward_reduce"),
    annotation("FSDP::post_backward_reshard (b)", 70, 71),
    *in_hook("pre_backward", "a", 72, 76, *launched(GATHER, 73, 90, 100, 8, stream=8)),
    *launched("gemm", 77, 100, 112, 9),
    annotation("FSDP::post_backward_reshard (a)", 120, 121),
    annotation("Optimizer.step#AdamW.step", 160, 190),
    *launched("adam", 162, 165, 175, 10),
    *launched("warm", 201, 202, 204, 11),
]
EVENTS[10]["name"] = "FSDP::forward_prefetch for b"


def test_by_hand(tmp_path):
    found = measure_events(tmp_path, EVENTS).shard_units
    rows = {(row.direction, row.unit, row.kind): row for row in found.rows}
    assert list(rows) == [
        ("forward", "a", "all_gather"),
        ("forward", "b", "all_gather"),
        ("backward", "b", "reduce_scatter"),
        ("backward", "a", "all_gather"),
    ]
    spent = [(row.exposed_ns / US, row.hidden_ns / US, row.neighbour_compute_ns / US) for row in rows.values()]
    # [20,30) hides 10 of b's 15; a computes 10 before b; after b's reduction a computes 12; before a's, b computes 10
    assert spent == [(10, 0, 0), (5, 10, 10), (20, 0, 12), (10, 0, 10)]
    assert [row.hideable_ns / US for row in rows.values()] == [0, 5, 12, 10]
    assert [row.known("prefetched_share") for row in rows.values()] == [0, 1, None, 0]
    assert (found.forward_depth, found.backward_depth) == (1, 0)
    assert (found.forward_compute_ns, found.backward_compute_ns) == (20 * US, 22 * US)  # without the optimizer's 10
    with pytest.raises(Missing, match="or how large"):
        _ = found.held_bytes


@pytest.mark.parametrize(
    ("removed", "elsewhere", "computes"),
    [
        (
            "FSDP::pre_forward (b)",
            (-5, 206, 215),
            (20, 22),
        ),  # b's forward compute is that of a, which started before it
        ("FSDP::pre_forward (b)", (), (20, 22)),
        ("FSDP::pre_", (), (0, 0)),
    ],
)
def test_a_gather_whose_unit_never_starts_was_issued_ahead_of_none(tmp_path, removed, elsewhere, computes):
    """Neither a start in the next step nor one outside of all steps is that of the gather."""
    events = [event for event in EVENTS if not event["name"].startswith(removed)]
    events += [annotation("FSDP::pre_forward (b)", at, at + 1) for at in elsewhere]
    found = measure_events(tmp_path, events).shard_units
    (row,) = [row for row in found.rows if (row.direction, row.unit) == ("forward", "b")]
    computes_before = None if removed == "FSDP::pre_" else 0  # unknown where no unit starts
    assert (row.prefetched_share, row.known("neighbour_compute_ns"), found.forward_depth) == (0, computes_before, 0)
    assert (found.forward_compute_ns / US, found.backward_compute_ns / US) == computes


def test_waiting_is_unknown_where_other_ranks_were_not_read(tmp_path):
    """Of one rank of two, exposed communication may be waiting: it is no sum without it, and none of 0."""
    alone = copied(tmp_path, "rank-00000")
    one, both = (reading.measured(folder).shard_units.rows for folder in (alone, SAMPLES / "ranks-nccl-fsdp"))
    assert all(row.known("waiting_ns") is None for row in one)
    assert all("include waiting" in row.missing["waiting_ns"] for row in one)
    assert [row.sending_ns for row in one] == [row.exposed_ns for row in one]
    assert sum(row.waiting_ns for row in both) > 0.1 * sum(row.exposed_ns for row in both)
    assert [row.sending_ns for row in both] == [row.exposed_ns - row.waiting_ns for row in both]
    text = shown(reading.measured(alone))
    assert "waiting not measured: calls of several ranks could not be matched" in text
    assert "ms of communication, with waiting: how much stays exposed depends on how long ranks wait." in text
    assert "stay exposed, even if" not in text
    assert "Waiting: the part" not in text


def copied(folder, rank):
    """A folder with the trace of one rank of the two on a card."""
    name = f"{rank}.trace.json.gz"
    (folder / name).write_bytes((SAMPLES / "ranks-nccl-fsdp" / name).read_bytes())
    return folder


def shown(measured):
    """The section as one line of text."""
    lines = fsdp(SimpleNamespace(measured=measured), 80)
    return " ".join("".join(span.text for span in line).strip() for line in lines)


def test_without_ranges_of_units_it_says_so(tmp_path):
    events = [event for event in EVENTS if not event["name"].startswith("FSDP::all_gather")]
    events = [event for event in events if not event["name"].startswith("FSDP::post_backward_reduce")]
    with pytest.raises(Missing, match="no ranges of fully_shard"):
        _ = measure_events(tmp_path, events).shard_units


def test_a_hook_waits_and_does_not_compute_on_a_cpu(tmp_path):
    """autograd's operator [10,90) calls the hook [20,60), which gathers; copying in, [22,25), is compute."""
    events = [
        step(1, 0, 100),
        step(2, 100, 110),
        operator(GO_BACK, 10, 90),
        annotation("FSDP::pre_backward (a)", 19, 61),
        annotation("FSDP::all_gather (a)", 20, 60),
        operator("aten::copy_", 22, 25),
        operator("c10d::_allgather_base_", 26, 30),
        operator("gloo:all_gather", 28, 58, thread=5),
        annotation("Optimizer.step#AdamW.step", 91, 99),
        operator("aten::add_", 92, 98),
        operator("aten::mm", 101, 105),
    ]
    measured = measure_events(tmp_path, events)
    assert measured.account.compute_ns == (40 + 3 + 6 + 4) * US
    (gather,) = measured.shard_units.rows
    assert (gather.unit, gather.direction, gather.hidden_ns, gather.exposed_ns) == ("a", "backward", 0, 30 * US)


@pytest.mark.parametrize("name", ["pre_forward", "pre_backward_hook", "post_backward_hook"])
def test_a_hook_of_fsdp1_waits_on_a_cpu(tmp_path, name):
    """autograd's operator [10,90) calls the hook [20,60), which waits; copying in, [22,25), is compute."""
    events = [
        step(1, 0, 100),
        step(2, 100, 110),
        operator(GO_BACK, 10, 90),
        annotation(f"FullyShardedDataParallel._{name}", 20, 60),
        operator("aten::copy_", 22, 25),
        operator("c10d::_allgather_base_", 26, 30),
        operator("gloo:all_gather", 28, 58, thread=5),
        operator("aten::mm", 101, 105),
    ]
    assert measure_events(tmp_path, events).account.compute_ns == (40 + 3 + 4) * US


def test_of_a_recording_of_cards():
    measured = reading.measured(SAMPLES / "ranks-nccl-fsdp")
    found = measured.shard_units
    assert (found.forward_depth, found.backward_depth) == (0, 1)
    assert {row.unit for row in found.rows} == {f"layers.{number}" for number in range(4)}
    assert found.held_bytes == found.whole_bytes / 2
    gathers = [row for row in found.rows if row.kind == "all_gather" and row.direction == "forward"]
    assert sum(row.hidden_ns for row in gathers) < 0.02 * sum(row.exposed_ns for row in gathers)
    lines = ["".join(span.text for span in line) for line in fsdp(SimpleNamespace(measured=measured), 80)]
    assert any(line.startswith("  forward gather       4  48.1 MiB") for line in lines), lines
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("  4 units (TransformerEncoderLayer) at tests/gpu/scripts/ranks.py:111: mesh 2,")


@pytest.mark.parametrize(
    ("exposed", "hidden", "ahead", "compute", "adjacent", "why"),
    [
        (6, 4, 0.25, 12, 0, "enough compute in total, but only 25.0 % of gathers are issued ahead."),
        (6, 4, 0.0, 12, 0, "enough compute in total, but no gather is issued ahead."),
        (6, 4, 0.5, 12, 2, "enough compute in total, but that of adjacent units is too short to hide collectives."),
        (
            6,
            4,
            0.5,
            12,
            3,
            "5.00 ms are exposed although most gathers are issued ahead; compute of adjacent units could hide 3.00.",
        ),
        (6, 4, 0.0, 8, 0, "at least 1.00 ms stay exposed, even if every unit is prefetched."),
        (2, 8, 1.0, 50, 0, "of which 1.00 ms are exposed."),
    ],
)
def test_why_a_pass_exposes_communication(exposed, hidden, ahead, compute, adjacent, why):
    """A gather of which 1 ms waits for a late rank: that is no communication that compute would have to overlap."""
    gather = UnitFigures.of(
        {"message_bytes": (2**20, ""), "prefetched_share": (ahead, ""), "waited_for": (1, "")},
        unit="a",
        direction="forward",
        kind="all_gather",
        calls_per_step=1.0,
        median_ns=10**7,
        shortest_ns=9 * 10**6,
        hidden_ns=hidden * 10**6,
        exposed_ns=exposed * 10**6,
        waiting_ns=10**6,
        neighbour_compute_ns=adjacent * 10**6,
    )
    units = ShardUnits.only(
        "none", rows=[gather], forward_depth=0, backward_depth=0, forward_compute_ns=compute * 10**6
    )
    for kind, also in (("cuda", True), ("cpu", False)):
        measured = SimpleNamespace(known={"shard_units": units, "device_kind": kind}.get, ranks=[])
        text = " ".join(
            "".join(span.text for span in line).strip() for line in fsdp(SimpleNamespace(measured=measured), 80)
        )
        amounts = f"{ns_as_ms(compute * 10**6)} ms of compute, 9.00 ms of communication without waiting"
        assert (f"Forward passes: {amounts}" in text) == also
        assert (why in text) == also
        assert ("hideable" in text) == also
        assert ("no compute hides them" in text) != also


def test_gradients_are_as_large_as_their_unit_where_both_have_one_dtype():
    def unit(name, **dtypes):
        return FsdpFacts(2, names=[name], gathered_bytes=[64], mesh=[2], **dtypes)

    shards = [unit("a"), unit("b", parameter_dtype="bfloat16"), unit("c", reduce_dtype="bfloat16")]
    assert _reduced_sizes({0: facts_of(fsdp=shards)}) == {"a": 64, "b": 64}
    alike = unit("d", parameter_dtype="bfloat16", reduce_dtype="bfloat16")
    assert _reduced_sizes({0: facts_of(fsdp=[alike])}) == {"d": 64}
    assert _reduced_sizes({}) == {}


def test_how_units_are_sharded_is_said_in_the_names_of_torch():
    """A root without parameters of its own has no mesh, and is left out; so is what is torch's default."""
    root = FsdpFacts(2, units=1, where="train.py:8", modules=["FSDPNet"])
    blocks = FsdpFacts(
        2,
        where="train.py:7",
        modules=["FSDPBlock"],
        mesh=[2, 4],
        names=["a", "b"],
        gathered_bytes=[2**20, 3 * 2**20],
        reshard_after_forward=4,
        parameter_dtype="bfloat16",
        offload="CPUOffloadPolicy",
        forward_prefetch_depth=2,
    )
    (policy,) = policies({1: facts_of(fsdp=[]), 0: facts_of(fsdp=[root, blocks])})
    units = ShardUnits.only("none", rows=[], policies=[policy], forward_depth=0, backward_depth=0)
    measured = SimpleNamespace(known={"shard_units": units}.get, ranks=[])
    lines = ["".join(span.text for span in line).strip() for line in fsdp(SimpleNamespace(measured=measured), 80)]
    assert " ".join(lines[2:5]) == (
        "2 units (Block) at train.py:7, the largest 3.00 MiB: mesh 2x4, reshard_after_forward=4, param_dtype=bfloat16, "
        "offload_policy=CPUOffloadPolicy, forward prefetch=2."
    )
    assert policies({}) == []


def test_of_a_made_trace_without_prefetch(findings):
    """Gathers of 1.5 ms, each followed by 1.5 ms of compute that could hide the next one's."""
    measured = reading.measured(findings / "traces" / "made_fsdp2_without_prefetch")
    rows = measured.shard_units.rows
    gathers = [row for row in rows if row.direction == "forward"]
    assert [row.prefetched_share for row in gathers] == [0] * 8
    assert {(row.direction, row.kind) for row in rows if row not in gathers} == {
        ("backward", "all_gather"),
        ("backward", "reduce_scatter"),
    }
    assert sum(row.exposed_ns for row in rows) == measured.account.exposed_communication_ns
    steps = sum(len(device.steps) for rank in measured.ranks for device in rank.devices)
    assert sum(row.hideable_ns for row in gathers) / steps == pytest.approx(10.5e6, rel=0.01)
