"""What differs on a late rank: three ranks, by hand, whose steps end in an all-reduce. Times in microseconds.

Of each step of 1000 the host launches a kernel that runs from 100 to 200, and one that runs from 300 to 400; on the
late rank something keeps it from launching the second one for 300 more.
"""

import pytest

from dptune.measure.host.longer import longer
from dptune.measure.host.pieces import alike
from dptune.measure.views import view

from .handmade import (
    BACKWARD,
    NCCL,
    US,
    annotation,
    call,
    launched,
    load_events,
    measure_events,
    operator,
    python,
    step,
)

STEPS = 4
LATE = 300


def trace(late, planted, usual=()):
    """One rank: `planted` and `usual` make the events of a late and of another rank from where its step begins."""
    events = []
    for number in range(STEPS):
        at, first, more = 1000 * number, 10 * number, LATE if late else 0
        events += [step(number, at, at + 1000), operator("aten::linear", at + 5, at + 20)]
        events += launched("gemm", at + 10, at + 100, at + 200, first + 1)
        events += (planted if late else usual)(at) if (planted if late else usual) else []
        events += [operator("aten::relu", at + 290 + more, at + 296 + more)]
        events += launched("relu", at + 292 + more, at + 300 + more, at + 400 + more, first + 2)
        events += launched(NCCL, at + 298 + more, at + 400 + more, at + 740, first + 3, stream=20)
    return events


def straggler(folder, planted, usual=(), **header):
    measured = measure_events(folder, *(trace(rank == 1, planted, usual) for rank in range(3)), **header)
    assert measured.straggler.rank == 1
    return measured.straggler


def test_a_gap_in_a_range_is_named_by_the_range_and_what_comes_after(tmp_path):
    def ranged(more):
        return lambda at: [annotation("# sparse arch", at + 250, at + 299 + more)]

    (found,) = straggler(tmp_path, ranged(LATE), ranged(0)).differences
    assert (found.kind, found.name, found.rank_ns, found.others_ns) == ("range", "# sparse arch", 349 * US, 49 * US)
    assert (found.detail, found.detail_rank_ns, found.detail_others_ns) == ("before aten::relu", 340 * US, 40 * US)
    assert found.share == pytest.approx(1)
    assert found.words(1) == (
        "`# sparse arch` takes 0.35 ms on rank 1, 0.049 ms on the others: no operator runs for 0.34 ms before "
        "`aten::relu` (0.04 ms on the others)"
    )


def test_a_gap_outside_of_all_is_named_by_what_comes_after(tmp_path):
    (found,) = straggler(tmp_path, None).differences
    assert (found.kind, found.name, found.rank_ns, found.others_ns) == ("gap", "aten::relu", 570 * US, 270 * US)


def test_a_function_that_only_the_late_rank_runs_is_named_with_its_line(tmp_path):
    """It runs in an operator of autograd's thread, while the script's waits for the pass."""

    def hooked(at):
        return [
            operator(BACKWARD, at + 30, at + 30 + LATE, thread=2),
            operator("AddmmBackward0", at + 31, at + 29 + LATE, 2),
            python("train.py(15): hook", at + 32, at + 28 + LATE, 2),
            python("<built-in function sleep>", at + 33, at + 27 + LATE, 2),
        ]

    def unhooked(at):
        return [operator(BACKWARD, at + 30, at + 34, thread=2), operator("AddmmBackward0", at + 31, at + 33, 2)]

    (found,) = straggler(tmp_path, hooked, unhooked).differences
    assert (found.kind, found.name, found.at) == ("function", "hook", "train.py:15")
    assert (found.rank_ns, found.others_ns, found.detail) == (296 * US, 0, "<built-in function sleep>")
    assert found.share == pytest.approx(0.99, abs=0.02)


def test_a_function_takes_no_time_in_which_it_waits_for_the_device(tmp_path):
    """It lasts from 30 to 530, 500, and is held from 32 to 201, until the first kernel is over: 169."""

    def logged(at):
        return [
            python("train.py(61): log_loss", at + 30, at + 530),
            operator("aten::item", at + 31, at + 202),
            call("cudaStreamSynchronize", at + 32, at + 201),
        ]

    (found,) = straggler(tmp_path, logged).differences
    assert (found.name, found.rank_ns, found.others_ns) == ("log_loss", (500 - 169) * US, 0)


def test_functions_are_alike_whatever_line_they_stood_at(tmp_path):
    """A function that ran as recording began has the line at which it stood."""

    def at_line(line, more):
        return lambda at: [python(f"data/load.py({line}): decode", at + 30, at + 40 + more)]

    (found,) = straggler(tmp_path, at_line(12, LATE), at_line(19, 0)).differences
    assert (found.name, found.at, found.rank_ns, found.others_ns) == ("decode", "data/load.py:12", 310 * US, 10 * US)


def test_time_in_which_the_host_waits_for_the_device_is_no_difference(tmp_path):
    """The late rank is held in a call all that time."""

    def held(more):
        return lambda at: [call("cudaStreamSynchronize", at + 30, at + 40 + more)]

    found = straggler(tmp_path, held(LATE), held(0))
    assert found.differences == []
    assert found.explained_share == 0


def test_a_call_of_the_driver_that_takes_longer(tmp_path):
    def allocated(more):
        return lambda at: [call("cudaMalloc", at + 30, at + 32 + more)]

    (found,) = straggler(tmp_path, allocated(LATE), allocated(0)).differences
    assert (found.kind, found.name, found.rank_ns, found.others_ns) == ("call", "cudaMalloc", 302 * US, 2 * US)


def optimizer_at(number):
    return annotation("Optimizer.step#SGD.step", 1000 * number + 990, 1000 * number + 999)


def host_views(folder, *made, mark=optimizer_at):
    """Ranks of steps of 1000 with these events, which an optimizer's range at the end of each marks."""
    views = {}
    for rank, events in enumerate(made):
        (folder / str(rank)).mkdir()
        every = [each for n in range(STEPS) for each in (mark(n), *events(1000 * n))]
        views[rank] = view(rank, load_events(folder / str(rank), every).ranks[0].light)
    return views


def test_time_outside_of_all_events_is_named_by_what_comes_after(tmp_path):
    """On the script's thread no range is around it, on another one is. Before the operator pass 1 and 301."""
    first, late = host_views(
        tmp_path,
        lambda at: [operator("aten::mm", at, at + 300)],
        lambda at: [
            operator("aten::mm", at + 300, at + 600),
            annotation("# read ahead", at + 990, at + 1980, thread=2),
        ],
    ).values()
    numbers = [each.number for each in first.steps if each.number in {other.number for other in late.steps}]
    (found,) = longer({0: first, 1: late}, 1, dict.fromkeys(numbers, 300.0 * US))
    assert (found.kind, found.name, found.known("within")) == ("gap", "aten::mm", None)
    assert (found.rank_ns, found.others_ns) == (301 * US, 1 * US)


def test_an_operator_that_no_other_rank_runs(tmp_path):
    views = host_views(
        tmp_path,
        lambda at: [operator("aten::mm", at, at + 300)],
        lambda at: [operator("aten::sort", at, at + 600)],
        mark=lambda number: step(number, 1000 * number, 1000 * number + 1000),
    )
    lags = dict.fromkeys([each.number for each in views[1].steps], 300.0 * US)
    (found,) = longer(views, 1, lags)
    assert (found.kind, found.name, found.rank_ns, found.others_ns) == ("operator", "aten::sort", 600 * US, 0)
    assert longer({1: views[1]}, 1, lags) == []
    assert longer(views, 1, dict.fromkeys(lags, 0.0)) == []


def test_many_operators_that_take_longer_are_one_difference(tmp_path):
    """15 operators of 22 us, 2 on the others: each is 7 % of the lag."""

    def many(took):
        def operators(at):
            starts = [at + 22 + number * (took + 6) for number in range(15)]
            return [operator(f"aten::op{number}", start, start + took) for number, start in enumerate(starts)]

        return operators

    (slow,) = straggler(tmp_path, many(22), many(2)).differences
    assert (slow.kind, slow.rank_ns - slow.others_ns) == ("host", 15 * 20 * US)
    assert slow.words(1).startswith("CPU operators in general take")


@pytest.mark.parametrize(("took_on_rank_3", "named"), [(2, "aten::op0"), (26, "")])
def test_the_operator_of_most_of_the_difference_is_named_unless_a_punctual_rank_is_as_slow(
    tmp_path, took_on_rank_3, named
):
    """Of 36 us more, 24 are in one operator, 8 % of the lag: 26 instead of 2. Six others take 4 instead of 2."""

    def operators(first, rest):
        def planted(at):
            starts = [at + 22 + 30 * number for number in range(7)]
            return [operator(f"aten::op{n}", start, start + (rest if n else first)) for n, start in enumerate(starts)]

        return planted

    ranks = [operators(2, 2), operators(26, 4), operators(2, 2), operators(took_on_rank_3, 2)]
    events = [trace(rank == 1, planted, planted) for rank, planted in enumerate(ranks)]
    (found,) = [one for one in measure_events(tmp_path, *events).straggler.differences if one.kind == "host"]
    assert (found.name, found.rank_ns, found.others_ns) == (named, 72 * US, 36 * US)  # 22 in linear and relu
    assert found.subject == (f"`{named}`" if named else "CPU operators in general")


def test_kernels_that_take_longer_are_named_and_kernels_that_do_not_are_no_cause(tmp_path):
    def kernels(late, slow):
        events = []
        for number in range(STEPS):
            at, first = 1000 * number, 10 * number
            events += [step(number, at, at + 1000)]
            events += launched("gemm", at + 10, at + 100, at + 200 + (LATE if slow else 0), first + 1)
            events += launched(NCCL, at + 20, at + 200 + (LATE if late else 0), at + 540, first + 3, stream=20)
        return events

    slow = measure_events(tmp_path, *(kernels(rank == 1, rank == 1) for rank in range(3)))
    (found,) = slow.straggler.differences
    assert (found.kind, found.name, found.rank_ns, found.others_ns) == ("kernels", "gemm", 400 * US, 100 * US)
    assert slow.ranks[1].arrival.cause == "slower compute"


def test_what_takes_long_once_is_no_difference(tmp_path):
    """In one step of four an operator takes all of the lag; in the others nothing but the gap grows."""

    def once(at):
        took = 290 if at == 1000 else 2
        return [operator("aten::cat", at + 22, at + 22 + took)]

    names = [
        one.name for one in straggler(tmp_path, once, lambda at: [operator("aten::cat", at + 22, at + 24)]).differences
    ]
    assert names == ["aten::relu"]


def test_methods_of_built_in_objects_are_alike_wherever_the_object_lies():
    first, second = (
        f"<built-in method run_backward of torch._C._EngineBase object at {at}>" for at in ("0x7f1", "0x8e")
    )
    assert alike(first) == alike(second) != alike("<built-in method run of torch._C._EngineBase object at 0x7f1>")
