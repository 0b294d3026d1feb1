"""Units of FullyShardedDataParallel (FSDP1), whose ranges name none: made-up runs of GPUs, and a recorded one of CPUs.

The made-up model: the root has parameters, unit `a` holds unit `inner`, and unit `b` follows.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dptune.measure import measure
from dptune.measure.shard_units import flat_events
from dptune.measure.shard_units.policies import flat_names, policies
from dptune.measured import Missing, ShardUnits
from dptune.measured.shard_units import NOT_SHARDED
from dptune.present.html.sharding import shard_units as page_section
from dptune.present.sections.fsdp import fsdp
from dptune.runfile.communication import FsdpFacts
from dptune.testing import facts_of

from .handmade import US, annotation, launched, load_events, measure_events, operator, step

GO_BACK = "autograd::engine::evaluate_function: ReluBackward0"
FLAT = "FullyShardedDataParallel._"
ROOT, A, INNER, B = 1_000, 2_000, 4_000, 8_000  # floats, gathered
NAMES = ["", "a", "a.inner", "b"]
BACKWARD = 2  # autograd's thread
SENT = {1, 3, 5, 7, 11, 12, 13, 16, 19, 20, 21}  # correlations of collectives


def sent(kind, elements, called, start, end, correlation, thread=1):
    """A collective of NCCL among two ranks, of so many floats in the whole unit."""
    whole, part = (
        ("Out msg nelems", "In msg nelems") if kind == "_allgather_base" else ("In msg nelems", "Out msg nelems")
    )
    described = {"Collective name": kind, whole: elements, part: elements // 2, "dtype": "Float"}
    described |= {"Group size": 2, "Process Group Name": "0"}
    stream = 8 if kind == "_allgather_base" else 9
    call, kernel = launched("ncclDevKernel_RING_LL", called, start, end, correlation, stream, thread)
    return [call, {**kernel, "args": {**kernel["args"], **described}}]


def gather(*figures, thread=1):
    return sent("_allgather_base", *figures, thread=thread)


def reduce(*figures, thread=BACKWARD):
    return sent("_reduce_scatter_base", *figures, thread=thread)


def hook(name, start, end, *inside, ahead=None, thread=1):
    """The range of a hook, and in it that of prefetching, as units with parameters have it."""
    ranges = [annotation(FLAT + name, start, end, thread)]
    if ahead is not None:
        kind = name.removesuffix("_hook") + "_prefetch"
        ranges.append(annotation(FLAT + kind, *ahead, thread))
    return [*ranges, *inside]


FORWARD = [
    *hook("pre_forward", 10, 20, *gather(ROOT, 11, 20, 30, 1), ahead=(17, 19)),
    *launched("gemm", 21, 30, 40, 2),
    *hook("pre_forward", 22, 30, *gather(A, 23, 30, 45, 3), ahead=(27, 29)),
    *launched("gemm", 31, 45, 55, 4),
    *hook("pre_forward", 32, 40, *gather(INNER, 33, 45, 65, 5), ahead=(37, 39)),
    *launched("gemm", 41, 65, 75, 6),
    *hook("post_forward", 42, 43),
    *hook("post_forward", 44, 45),
    *hook("pre_forward", 46, 54, *gather(B, 47, 65, 95, 7), ahead=(51, 53)),
    *launched("gemm", 55, 95, 105, 8),
    *hook("post_forward", 56, 57),
    *hook("post_forward", 58, 59),
]
# `b` is gathered ahead in the root's hook, `a` in that of `b`, `inner` in that of `a`; the root is still there.
GATHERED_AGAIN = [
    *gather(B, 105, 110, 140, 11, thread=BACKWARD),
    *gather(A, 116, 140, 155, 12, thread=BACKWARD),
    *gather(INNER, 135, 160, 180, 13, thread=BACKWARD),
]
BACK = [
    *[operator(GO_BACK, start, start + 9.5, thread=BACKWARD) for start in (100.5, 111, 122, 130.5, 141, 250)],
    *hook("pre_backward_hook", 101, 109, ahead=(104, 108), thread=BACKWARD),
    *launched("gemm", 110, 120, 135, 14, thread=BACKWARD),
    *hook("pre_backward_hook", 112, 120, ahead=(115, 119), thread=BACKWARD),
    *launched("gemm", 121, 140, 160, 15, thread=BACKWARD),
    *hook("post_backward_hook", 123, 130, *reduce(B, 127, 162, 190, 16), ahead=(124, 125), thread=BACKWARD),
    *hook("pre_backward_hook", 131, 139, ahead=(134, 138), thread=BACKWARD),
    *launched("gemm", 140, 160, 170, 17, thread=BACKWARD),
    *hook("pre_backward_hook", 142, 150, ahead=(145, 147), thread=BACKWARD),
    *launched("gemm", 151, 180, 200, 18, thread=BACKWARD),
    *hook("post_backward_hook", 153, 160, *reduce(INNER, 157, 200, 220, 19), ahead=(154, 155), thread=BACKWARD),
    *hook("post_backward_hook", 161, 168, *reduce(A, 165, 220, 235, 20), ahead=(162, 163), thread=BACKWARD),
    *hook("post_backward_hook", 170, 177, *reduce(ROOT, 174, 235, 245, 21), ahead=(171, 172), thread=BACKWARD),
]
AROUND = [
    step(1, 0, 400),
    step(2, 400, 410),
    annotation("Optimizer.step#AdamW.step", 360, 390),
    *launched("adam", 362, 365, 375, 22),
    *launched("warm", 401, 402, 404, 23),
]
EVENTS = [*AROUND, *FORWARD, *BACK, *GATHERED_AGAIN]


def shown(measured):
    """The section as one line of text."""
    lines = fsdp(SimpleNamespace(measured=measured), 99)
    return " ".join("".join(span.text for span in line).strip() for line in lines)


def rows_of(units):
    return {(row.direction, row.unit, row.kind): row for row in units.rows}


def measured_with(folder, facts, events=EVENTS):
    """The figures of one rank with these facts of what is sharded."""
    return measure(replace(load_events(folder, events), facts={0: facts_of(fsdp=facts)}))


def flat_facts(**changed):
    known = {"strategy": "FULL_SHARD", "mesh": [2], "names": NAMES, "order": [0, 1, 2, 3], "where": "train.py:9"}
    known |= {"backward_prefetch": "BACKWARD_PRE"}
    sizes = [4 * size for size in (ROOT, A, INNER, B)]
    return FsdpFacts(1, **{**known, "modules": ["Block"], "gathered_bytes": sizes, **changed})


def test_by_hand(tmp_path):
    """Each unit by its place in the forward pass; the backward pass ends `inner` before `a`, which holds it."""
    found = measure_events(tmp_path, EVENTS).shard_units
    rows = rows_of(found)
    assert {key: (row.message_bytes, row.hidden_ns / US, row.exposed_ns / US) for key, row in rows.items()} == {
        ("forward", "#1", "all_gather"): (4 * ROOT, 0, 10),
        ("forward", "#2", "all_gather"): (4 * A, 10, 5),
        ("forward", "#3", "all_gather"): (4 * INNER, 10, 10),
        ("forward", "#4", "all_gather"): (4 * B, 10, 20),
        ("backward", "#4", "all_gather"): (4 * B, 15, 15),
        ("backward", "#2", "all_gather"): (4 * A, 15, 0),
        ("backward", "#4", "reduce_scatter"): (4 * B, 10, 0),  # [162,180) counts for the gather that began before
        ("backward", "#3", "all_gather"): (4 * INNER, 10, 10),
        ("backward", "#3", "reduce_scatter"): (4 * INNER, 0, 20),
        ("backward", "#2", "reduce_scatter"): (4 * A, 0, 15),
        ("backward", "#1", "reduce_scatter"): (4 * ROOT, 0, 10),
    }
    # the compute of the unit before a gather, and after a reduction: of nothing before #1, and after #3 at the end
    neighbours = [row.neighbour_compute_ns / US for row in rows.values()]
    assert neighbours == [0, 10, 10, 10, 15, 20, 10, 10, 0, 0, 0]
    assert [row.known("prefetched_share") for row in rows.values()] == [0, 0, 0, 0, 1, 1, None, 1, None, None, None]
    assert (found.forward_depth, found.backward_depth, found.numbered) == (0, 1, True)
    assert (found.forward_compute_ns, found.backward_compute_ns) == (40 * US, 65 * US)
    assert found.held_bytes == 4 * (ROOT + B + A)  # as `a` is gathered ahead of its backward pass
    assert found.whole_bytes == 4 * (ROOT + A + INNER + B)


def test_recorded_facts_name_the_units(tmp_path):
    measured = measured_with(tmp_path, [flat_facts()])
    found = measured.shard_units
    assert [row.unit for row in found.rows[:4]] == NAMES
    assert not found.numbered
    lines = shown(measured)
    assert "4 units (Block) at train.py:9, the largest 31.2 KiB: mesh 2, sharding_strategy=FULL_SHARD" in lines
    assert "a.inner" in lines
    assert "neither the trace nor the recording names units" not in lines


def test_units_without_names_are_numbered_and_said_to_be(tmp_path):
    measured = measured_with(tmp_path, [flat_facts(names=[], order=[], gathered_bytes=[])])
    lines = shown(measured)
    assert "#N: the Nth unit that forward passes run; neither the trace nor the recording names units." in lines


def test_gathers_after_a_backward_pass_are_not_ahead_of_it(tmp_path):
    """BACKWARD_POST gathers `a` once the gradients of `b` are computed, which that compute could not hide."""
    late = [
        *gather(B, 105, 110, 140, 11, thread=BACKWARD),
        *gather(A, 124.2, 140, 155, 12, thread=BACKWARD),
        *gather(INNER, 135, 160, 180, 13, thread=BACKWARD),
    ]
    rows = rows_of(measure_events(tmp_path, [*AROUND, *FORWARD, *BACK, *late]).shard_units)
    assert rows["backward", "#2", "all_gather"].prefetched_share == 0
    assert rows["backward", "#3", "all_gather"].prefetched_share == 1


def test_units_that_stay_gathered_are_held_until_gradients_are_reduced(tmp_path):
    """SHARD_GRAD_OP: what is not gathered again was not freed; with no_sync() not even after the backward pass."""
    kept = [*AROUND, *FORWARD, *BACK]
    assert measure_events(tmp_path, kept).shard_units.held_bytes == 4 * (ROOT + A + INNER + B)


def test_a_unit_ahead_in_forward_passes(tmp_path):
    """forward_prefetch: `a` is gathered in the root's hook, in its range of prefetching."""
    at_once = [event for event in FORWARD if event["args"].get("correlation") != 3]
    ahead = [*at_once, *gather(A, 17.5, 30, 45, 3)]
    found = measure_events(tmp_path, [*AROUND, *ahead, *BACK, *GATHERED_AGAIN]).shard_units
    assert rows_of(found)["forward", "#2", "all_gather"].prefetched_share == 1
    assert found.forward_depth == 1


def without(events, *names):
    return [event for event in events if not event["name"].endswith(names)]


TWICE = [
    *hook("pre_forward", 60, 68, *gather(B, 61, 105, 109, 30), ahead=(65, 67)),
    *hook("post_forward", 70, 71),
]


def replaced(correlation, *events):
    return [*(event for event in EVENTS if event["args"].get("correlation") != correlation), *events]


def test_hooks_of_modules_without_parameters_run_no_units(tmp_path):
    """Also where a backward pass runs such a module again."""
    inside = [*hook("pre_forward", 56.1, 56.3), *hook("post_forward", 56.4, 56.6)]
    again = [*hook("pre_forward", 251, 255, thread=BACKWARD), *hook("post_forward", 256, 257, thread=BACKWARD)]
    plain, more = tmp_path / "plain", tmp_path / "more"
    plain.mkdir()
    more.mkdir()
    expected = measure_events(plain, EVENTS).shard_units
    assert measure_events(more, [*EVENTS, *inside, *again]).shard_units == expected


def test_collectives_outside_of_all_hooks_are_of_no_unit(tmp_path):
    """Whatever the hooks show of units."""
    ranges = [event for event in EVENTS if event["args"].get("correlation") not in SENT]
    after = gather(ROOT, 300, 302, 310, 40)
    with pytest.raises(Missing, match=NOT_SHARDED):
        _ = measure_events(tmp_path, [*without(ranges, "post_backward_hook"), *after]).shard_units


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (without(EVENTS, "_prefetch"), flat_events.NO_HANDLES),
        ([event for event in EVENTS if event["name"] != GO_BACK or event["ts"] > 200], flat_events.NO_TASKS),
        (
            [
                *EVENTS,
                *hook("pre_forward", 55.2, 55.8, *gather(B, 55.3, 105, 109, 30)),
                *hook("post_forward", 55.85, 55.9),
            ],
            flat_events.CUT,
        ),
        ([*EVENTS, *gather(B, 52, 105, 109, 30)], flat_events.UNEVEN),  # ahead for a unit after the last
        (replaced(16, *reduce(3 * B, 127, 162, 190, 16)), flat_events.OTHER_ORDER),
        ([*EVENTS, *TWICE], flat_events.UNEVEN),  # a second model, of one unit
        (without(EVENTS, "post_backward_hook"), flat_events.NOT_ALL),
        (
            [*EVENTS, *hook("pre_forward", 251, 259, ahead=(255, 258), thread=BACKWARD)],
            flat_events.RECOMPUTED,
        ),
        ([*AROUND, *BACK, *GATHERED_AGAIN], flat_events.CUT),
        (
            [event for event in EVENTS if event["args"].get("correlation") != 11]
            + gather(A, 105, 110, 140, 11, thread=BACKWARD),
            flat_events.OTHER_ORDER,
        ),
    ],
)
def test_units_that_cannot_be_identified(tmp_path, events, why):
    measured = measure_events(tmp_path, events)
    with pytest.raises(Missing) as missing:
        _ = measured.shard_units
    assert missing.value.reason == why

    text = shown(measured)
    assert f"No table by unit: {why}." in text
    (section,) = page_section(SimpleNamespace(measured=measured))
    assert why in section.body


def test_facts_that_do_not_fit_the_trace(tmp_path):
    (tmp_path / "fewer").mkdir()
    with pytest.raises(Missing, match="run different units"):
        _ = measured_with(tmp_path / "fewer", [flat_facts(names=NAMES[:3], order=[0, 1, 2])]).shard_units
    with pytest.raises(Missing, match="several models"):
        _ = measured_with(tmp_path, [flat_facts(order=[0, 1, 0, 1])]).shard_units
    assert flat_names({1: facts_of(fsdp=[flat_facts(order=[3, 2, 1, 0])])}) == NAMES[::-1]
    assert flat_names({}) == []


def test_arguments_that_are_not_torchs_default_are_shown():
    set_otherwise = flat_facts(
        strategy="SHARD_GRAD_OP",
        forward_prefetch=True,
        backward_prefetch="BACKWARD_POST",
        limit_all_gathers=False,
        parameter_dtype="bfloat16",
        offload="CPUOffload",
    )
    bare = flat_facts(names=[], order=[], gathered_bytes=[])  # a root without parameters
    (policy,) = policies({0: facts_of(fsdp=[set_otherwise, bare])})
    units = ShardUnits.only("none", rows=[], policies=[policy], forward_depth=0, backward_depth=0)
    measured = SimpleNamespace(known={"shard_units": units}.get, ranks=[])
    text = shown(measured)
    assert (
        "mesh 2, sharding_strategy=SHARD_GRAD_OP, param_dtype=bfloat16, cpu_offload=CPUOffload, forward_prefetch=True, "
        "backward_prefetch=BACKWARD_POST, limit_all_gathers=False."
    ) in text
