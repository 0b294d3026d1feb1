"""Kinds and sizes of collectives, as a trace or another window of the run tells them."""

import pytest

from dptune.measure.exchange.bandwidth import bus_factor
from dptune.measure.exchange.calls import Call
from dptune.measure.exchange.sizes import with_sizes
from dptune.runfile.facts import DdpFacts, Facts

from .handmade import annotation, launch, measure_events, on_device, operator, step

TWO_RANKS = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2}]}


def test_a_gather_is_as_large_as_its_output(tmp_path):
    told = {"Collective name": "_allgather_base", "In msg nelems": 500, "Out msg nelems": 1000, "dtype": "Float"}
    gather = on_device("kernel", "ncclDevKernel_AllGather_RING_LL(x)", 20, 30, 1, **told)
    (found,) = measure_events(tmp_path, [step(1, 0, 100), launch(1, 10, 11), gather]).collectives
    assert (found.kind, found.message_bytes) == ("all_gather", 4000)


def gloo(tmp_path, called):
    """An event of gloo's in [20,40), of 500 floats, and an operator that asks for a gather at the time `called`."""
    shapes = {"Input Dims": [[500]], "Input type": ["float"]}
    events = [
        step(1, 0, 100),
        operator("aten::mm", 1, 5),
        operator("c10d::_allgather_base_", called, called + 2),
        annotation("gloo:all_reduce", 20, 40, thread=2, **shapes),
    ]
    (found,) = measure_events(tmp_path, events, distributedInfo=TWO_RANKS).collectives
    return found


def test_a_gather_of_gloo_lists_what_goes_in(tmp_path):
    found = gloo(tmp_path, called=10)
    assert (found.kind, found.message_bytes) == ("all_gather", 2 * 4 * 500)


def test_an_operator_that_comes_after_the_event_did_not_ask_for_it(tmp_path):
    found = gloo(tmp_path, called=50)
    assert (found.kind, found.message_bytes) == ("all_reduce", 4 * 500)


def reduces(*sizes, step=0):
    return [Call(step, "all_reduce", 100 * at, 50, message_bytes=size) for at, size in enumerate(sizes)]


def bytes_of(calls):
    return [call.message_bytes for call in calls]


BUCKETS = Facts(0, ddp=[DdpFacts("Net", rebuilt_bucket_sizes=[100, 200])])


def test_buckets_are_reduced_once_per_backward_pass():
    assert bytes_of(with_sizes(reduces(None, None, None, None), [], BUCKETS)) == [100, 200, 100, 200]
    assert bytes_of(with_sizes(reduces(None, None, None), [], BUCKETS)) == [None, None, None]


def test_steps_of_the_rich_window_that_differ_tell_no_sizes():
    alike = [*reduces(7, 8), *reduces(7, 8, step=1)]
    assert bytes_of(with_sizes(reduces(None, None), alike, BUCKETS)) == [7, 8]
    other = [*reduces(7, 8), *reduces(8, 7, step=1)]
    assert bytes_of(with_sizes(reduces(None, None), other, BUCKETS)) == [100, 200]


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
    assert bus_factor(kind, ranks) == factor
