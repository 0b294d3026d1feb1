"""Sorts of long rows and what is read of them, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.full_sorts import full_sorts
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3


def called(name, start, end, *shapes, values=()):
    return operator(name, start, end, **{"Input Dims": list(shapes), "Concrete Inputs": list(values)})


def argsort(at, shape=(64, 5000), dim="1"):
    """A sort of 100 inside an argsort of 110."""
    return [
        called("aten::argsort", at, at + 110, list(shape), [], [], values=["", dim, "True"]),
        called("aten::sort", at + 5, at + 105, list(shape), [], [], [], values=["", "False", dim, "True"]),
    ]


def cut(at, start="0", end="20", dim="1", shape=(64, 5000), every="1"):
    return called("aten::slice", at, at + 3, list(shape), [], [], [], [], values=["", dim, start, end, every])


def value(at, place, shape=(64, 5000)):
    return called("aten::select", at, at + 1, list(shape), [], [], values=["", "1", place])


def found_in(folder, make):
    events = []
    for n in range(STEPS):
        at = 1000 * n
        events += [step(n, at, at + 1000), python("songs.py(38): update", at + 1, at + 499), *make(at + 10)]
    loop = python("songs.py(90): main", 0, 1000 * STEPS)
    return full_sorts([view(0, load_events(folder, [loop, *events]).ranks[0].light)], {})


def test_the_function_the_rows_and_what_is_read(tmp_path):
    (found,) = found_in(tmp_path, lambda at: [*argsort(at), cut(at + 120)])
    assert (found.name, found.at, found.length, found.rows, found.read) == ("update", "songs.py:38", 5000, 64, 20)
    assert (found.calls, found.cost_ns, found.backward_ns) == (1, 110 * US, 0)
    assert found.share == pytest.approx(0.11)


@pytest.mark.parametrize(
    ("after", "read"),
    [
        ([], None),
        ([cut(120, dim="0", end="9223372036854775807"), cut(125)], 20),  # all rows, and 20 of each
        ([cut(120, start="-5", end="9223372036854775807")], 5),
        ([cut(120, dim="-1", start="2", end="12")], 10),
        ([cut(120, end="9223372036854775807")], None),
        ([cut(120, dim="0", end="8")], None),  # of eight rows all
        ([called("aten::select", 120, 121, [64, 5000], [], [], values=["", "1", "0"])], 1),
        ([called("aten::cumsum", 120, 140, [64, 5000], [], []), cut(150)], 5000),  # as nucleus sampling does
        ([called("aten::gather", 120, 140, [64, 5000], [], [64, 5000]), cut(150)], 5000),
        ([called("aten::add", 120, 140, [64], [64]), cut(150)], 20),
        ([called("aten::argsort", 120, 140, [64, 5000], [], []), cut(150)], 5000),  # of the order itself: ranks
        ([cut(120, shape=(64, 500))], None),
    ],
)
def test_what_is_read(tmp_path, after, read):
    def make(at):
        return [*argsort(at), *(event | {"ts": event["ts"] + at} for event in after)]

    (found,) = found_in(tmp_path, make)
    assert found.read == read


@pytest.mark.parametrize(
    ("shape", "dim", "length"),
    [
        ((5000,), "0", 5000),
        ((300, 40), "0", 300),
        ((300, 40), "1", None),
        ((64, 255), "-1", None),
        ((2, 256), "-1", 256),
        ((300, 300), "2", None),  # it has no such dimension
    ],
)
def test_long_rows_of_the_dimension_that_is_sorted(tmp_path, shape, dim, length):
    found = found_in(tmp_path, lambda at: argsort(at, shape, dim))
    assert [one.length for one in found] == ([] if length is None else [length])


@pytest.mark.parametrize(
    ("after", "read", "inner"),
    [
        ([cut(120)], 20, False),
        ([cut(120, start="-5", end="9223372036854775807")], 5, False),
        ([cut(120, end="9223372036854775807", every="600")], 9, True),  # 0, 600 .. 4800
        ([cut(120, start="4500", end="4510")], 10, True),
        ([value(120, "0")], 1, False),
        ([value(120, "-1")], 1, False),
        ([value(120, "2500")], 1, True),
        ([value(120, "4500"), value(125, "4750"), value(130, "-250")], 2, True),  # -250 is 4750
        ([value(120, "4999"), value(125, "4998")], 2, False),
    ],
)
def test_whether_others_than_the_first_or_last_values_are_read(tmp_path, after, read, inner):
    def make(at):
        return [*argsort(at), *(event | {"ts": event["ts"] + at} for event in after)]

    (found,) = found_in(tmp_path, make)
    assert (found.read, found.inner, found.quantile) == (read, inner, False)


@pytest.mark.parametrize(
    ("shapes", "values", "length", "read"),
    [
        (([64, 5000], [], [], [], []), ["", "0.9", "", "False", ""], 320_000, 2),  # one quantile of all
        (([64, 5000], [3], [], [], []), ["", "", "1", "False", ""], 5000, 6),
        (([64, 5000], [], [], [], []), ["", "1", "1", "False", ""], 5000, 2),
    ],
)
def test_a_quantile_sorts_its_input(tmp_path, shapes, values, length, read):
    """Its own sort of 100 is in it."""

    def make(at):
        return [called("aten::quantile", at - 1, at + 120, *shapes, values=values), *argsort(at)]

    (found,) = found_in(tmp_path, make)
    assert (found.quantile, found.length, found.read, found.inner) == (True, length, read, True)
    assert (found.rows, found.cost_ns, found.calls) == (320_000 // length, 121 * US, 1)


def test_sorts_that_another_operator_needs_are_none(tmp_path):
    def make(at):
        return [called("aten::unique", at - 1, at + 120, [64, 5000], []), *argsort(at)]

    assert found_in(tmp_path, make) == []


def test_without_sizes_nothing_is_known(tmp_path):
    assert found_in(tmp_path, lambda at: [operator("aten::sort", at, at + 100)]) == []


def test_over_ranks_the_most_and_the_least(tmp_path):
    """A third rank sorts nothing."""
    views = []
    for rank, make in enumerate((argsort, lambda at: [*argsort(at), *argsort(at + 200)], lambda _: [])):
        events = [python("songs.py(90): main", 0, 1000 * STEPS)]
        for n in range(STEPS):
            at = 1000 * n
            events += [step(n, at, at + 1000), python("songs.py(38): update", at + 1, at + 499), *make(at + 10)]
        (tmp_path / str(rank)).mkdir()
        views.append(view(rank, load_events(tmp_path / str(rank), events).ranks[0].light))
    (found,) = full_sorts(views[:2], {})
    assert (found.rank, found.share, found.least_share) == (1, pytest.approx(0.22), pytest.approx(0.11))
    (found,) = full_sorts(views, {})
    assert (found.rank, found.share, found.least_share) == (1, pytest.approx(0.22), 0.0)
