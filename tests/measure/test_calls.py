"""Kinds and sizes of collectives, as a trace or another window of the run tells them."""

from dataclasses import replace

import pytest

from dptune.measure.communication.calls import Call
from dptune.measure.communication.sizes import with_sizes
from dptune.measured import collective
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts

from .handmade import (
    NCCL,
    US,
    all_reduce,
    annotation,
    call,
    kernel,
    launch,
    measure_events,
    on_device,
    operator,
    step,
)

TWO_RANKS = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2}]}


def test_a_gather_is_as_large_as_its_output(tmp_path):
    told = {"Collective name": "_allgather_base", "In msg nelems": 500, "Out msg nelems": 1000, "dtype": "Float"}
    gather = on_device("kernel", "ncclDevKernel_AllGather_RING_LL(x)", 20, 30, 1, **told)
    (found,) = measure_events(tmp_path, [step(1, 0, 100), launch(1, 10, 11), gather]).collectives
    assert (found.kind, found.message_bytes) == ("all_gather", 4000)


def gloo(tmp_path, called, asks, runs):
    """An event of gloo's in [20,40), of 500 floats, and an operator that asks for it at the time `called`."""
    shapes = {"Input Dims": [[500]], "Input type": ["float"]}
    events = [
        step(1, 0, 100),
        operator("aten::mm", 1, 5),
        operator(f"c10d::{asks}", called, called + 2),
        annotation(f"gloo:{runs}", 20, 40, thread=2, **shapes),
    ]
    (found,) = measure_events(tmp_path, events, distributedInfo=TWO_RANKS).collectives
    return found


def test_a_gather_of_gloo_lists_what_goes_in(tmp_path):
    found = gloo(tmp_path, 10, "_allgather_base_", "all_gather")
    assert (found.kind, found.message_bytes) == ("all_gather", 2 * 4 * 500)


@pytest.mark.parametrize(
    ("called", "asks", "kind"),
    [
        (10, "_reduce_scatter_base_", "reduce_scatter"),
        (50, "_reduce_scatter_base_", "all_reduce"),  # after the event began
        (10, "_allgather_base_", "all_reduce"),  # which gloo never runs as an all_reduce
    ],
)
def test_an_event_is_what_the_operator_that_can_have_asked_for_it_says(tmp_path, called, asks, kind):
    assert gloo(tmp_path, called, asks, "all_reduce").kind == kind


def test_groups_that_overtake_each_other_keep_the_names_of_their_events(tmp_path):
    """One group reduces in [20,60) and gathers in [60,70); another, asked last, broadcasts in [21,26)."""
    events = [step(1, 0, 100), operator("aten::mm", 1, 2)]
    events += [operator(f"c10d::{name}", at, at + 1) for at, name in ((3, "allreduce_"), (5, "allgather_"))]
    events += [operator("c10d::broadcast_", 7, 8)]
    times = {"all_reduce": (20, 60), "all_gather": (60, 70), "broadcast": (21, 26)}
    events += [annotation(f"gloo:{kind}", *time, thread=len(kind)) for kind, time in times.items()]
    rows = measure_events(tmp_path, events, distributedInfo=TWO_RANKS).collectives
    assert {row.kind: row.total_ns for row in rows} == {
        kind: (end - start) * US for kind, (start, end) in times.items()
    }


@pytest.mark.parametrize(("elements", "message_bytes"), [(2**38, 2**40), (2**38 + 1, None), (2**61, None)])
def test_a_size_that_no_tensor_can_have_is_none(tmp_path, elements, message_bytes):
    events = [step(1, 0, 100), launch(1, 10, 11), all_reduce(20, 30, 1, elements, "0", 2)]
    (found,) = measure_events(tmp_path, events, events).collectives
    assert found.known("message_bytes") == message_bytes


@pytest.mark.parametrize("elements", [-5, 2**38 + 1, 10**40, "x"])
def test_an_impossible_size_is_not_said_to_be_unrecorded(tmp_path, elements):
    events = [step(1, 0, 100), launch(1, 10, 11), all_reduce(20, 30, 1, elements, "0", 2)]
    (found,) = measure_events(tmp_path, events, events).collectives
    assert found.missing["message_bytes"] == "message sizes in the trace are invalid or unreadable"


@pytest.mark.parametrize("dtype", [None, "", "Float3"])
def test_a_size_without_a_type_is_not_said_to_be_unrecorded(tmp_path, dtype):
    call = all_reduce(20, 30, 1, 8, "0", 2)
    call["args"]["dtype"] = dtype
    events = [step(1, 0, 100), launch(1, 10, 11), call]
    (found,) = measure_events(tmp_path, events, events).collectives
    assert found.missing["message_bytes"].startswith("the element type is missing or unknown")


def test_a_kernel_that_names_its_collective_communicates_whatever_its_name(tmp_path):
    events = [step(1, 0, 100), launch(1, 10, 11), {**all_reduce(20, 30, 1, 8, "0", 2), "name": "fused_77"}]
    (found,) = measure_events(tmp_path, events, events).collectives
    assert (found.kind, found.message_bytes, found.total_ns) == ("all_reduce", 32, 2 * 10 * US)


@pytest.mark.parametrize("length", [-5, "x", 1.5])
def test_an_impossible_shape_is_no_size(tmp_path, length):
    events = [step(1, 0, 100), operator("aten::mm", 1, 2)]
    gloo = annotation("gloo:all_reduce", 20, 60, thread=2)
    gloo["args"] = gloo.get("args", {}) | {"Input Dims": [[length, 3]], "Input type": ["float"]}
    (found,) = measure_events(tmp_path, [*events, gloo]).collectives
    assert found.missing["message_bytes"] == "message sizes in the trace are invalid or unreadable"


@pytest.mark.parametrize(
    "shapes",
    [
        {"Input Dims": [[500]]},
        {"Input type": ["float"]},
        {"Input Dims": [[500]], "Input type": ["Float3"]},
        {"Input Dims": {"0": [500]}, "Input type": ["float"]},
    ],
)
def test_shapes_or_types_alone_are_no_size(tmp_path, shapes):
    events = [step(1, 0, 100), operator("aten::mm", 1, 2), annotation("gloo:all_reduce", 20, 60, thread=2, **shapes)]
    (found,) = measure_events(tmp_path, events).collectives
    assert (found.known("message_bytes"), found.known("dtype"), found.total_ns) == (None, None, 40 * US)


def test_what_one_graph_launches_is_ordered_by_its_beginning(tmp_path):
    """[20,40) and [50,80) on both ranks, written the other way round by one."""
    begins = [step(1, 0, 100), call("cudaGraphLaunch", 10, 11, 1)]
    kernels = [kernel(NCCL, 20, 40, 1), kernel(NCCL, 50, 80, 1)]
    (found,) = measure_events(tmp_path, begins + kernels, begins + kernels[::-1]).collectives
    assert (found.calls, found.waiting_ns, found.transfer_ns) == (4, 0, 25 * US)


def reduces(*sizes, step=0):
    return [Call(step, "all_reduce", 100 * at, 50, message_bytes=size) for at, size in enumerate(sizes)]


def bytes_of(calls):
    return [call.message_bytes for call in calls]


BUCKETS = Facts(0, ddp=[DdpFacts("Net", rebuilt_bucket_sizes=[100, 200], gradient_dtypes=["float32"])])


def test_buckets_are_reduced_once_per_backward_pass():
    assert bytes_of(with_sizes(reduces(None, None, None, None), [], BUCKETS)) == [100, 200, 100, 200]
    assert bytes_of(with_sizes(reduces(None, None, None), [], BUCKETS)) == [None, None, None]


def test_sizes_that_the_light_window_has_stay():
    """The detailed window may be of a step whose sizes differ."""
    assert bytes_of(with_sizes(reduces(5, 6), reduces(7, 8), BUCKETS)) == [5, 6]
    assert bytes_of(with_sizes(reduces(5, None), reduces(7, 8), BUCKETS)) == [5, 8]


def test_steps_of_the_detailed_window_that_differ():
    """Threads of gloo may start calls in another order; the order of the buckets is known."""
    alike = [*reduces(7, 8), *reduces(7, 8, step=1)]
    assert bytes_of(with_sizes(reduces(None, None), alike, BUCKETS)) == [7, 8]
    other = [*reduces(8, 7), *reduces(7, 8, step=1), *reduces(7, 8, step=2)]
    assert bytes_of(with_sizes(reduces(None, None), other, BUCKETS)) == [100, 200]
    assert bytes_of(with_sizes(reduces(None, None), other, None)) == [7, 8]
    assert bytes_of(with_sizes(reduces(None, None), [*other, *reduces(7, 9, step=3)], None)) == [None, None]


@pytest.mark.parametrize(("static", "sizes"), [(False, [400, 48]), (True, [400, 400])])
def test_a_search_for_unused_parameters_reduces_flags_beside_the_buckets(static, sizes):
    ddp = DdpFacts("Net", bucket_sizes=[400], find_unused_parameters=True, static_graph=static)
    facts = Facts(0, ddp=[ddp])
    detailed = [*reduces(400, 48), *reduces(48, 400, step=1), *reduces(400, 48, step=2)]
    assert bytes_of(with_sizes(reduces(None, None), detailed, facts)) == sizes


def test_buckets_of_gradients_of_one_type_have_that():
    """So that a rank whose detailed steps differ has the same collectives as one whose steps are alike."""
    assert {call.dtype for call in with_sizes(reduces(None, None), [], BUCKETS)} == {"float32"}
    (own,) = BUCKETS.ddp
    mixed = replace(BUCKETS, ddp=[replace(own, gradient_dtypes=["bfloat16", "float32"])])
    assert {call.dtype for call in with_sizes(reduces(None, None), [], mixed)} == {None}


@pytest.mark.parametrize(("group", "ambiguous"), [("tp", False), (None, True)])
def test_the_detailed_window_tells_the_group_too(group, ambiguous):
    (light,), (detailed,) = reduces(None), reduces(7)
    (found,) = with_sizes([replace(light, ambiguous=True)], [replace(detailed, group=group)], None)
    assert (found.group, found.ambiguous, found.message_bytes) == (group, ambiguous, 7)


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 8, 14 / 8),
        ("all_gather", 8, 7 / 8),
        ("reduce_scatter", 8, 7 / 8),
        ("all_to_all", 8, 7 / 8),
        ("broadcast", 8, 1),
        ("reduce", 8, 1),
        ("p2p", 2, 1),
        ("barrier", 8, None),
        ("all_reduce", 1, None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(kind, ranks, factor):
    assert collective(kind).bus_factor(ranks) == factor
