"""A short run of the fuzzer (`make fuzz` is the long one): on pieces of the smaller traces."""

import pytest

from ..conftest import ABSENT  # noqa: TID252 - tests are no installed package
from . import sets
from .bases import made
from .mutate import SEED, Source, Tally, run
from .pieces import REAL

INPUTS = range(50, 95)
SETS = (0, 1, 2, 3, 5, 7, 9, 10, 11, 13, 16, 17, 22)  # each with a mutation that those before it do not have


@pytest.fixture(scope="module")
def smallest(tmp_path_factory):
    """What inputs are made of each time."""
    if not REAL.is_dir():
        pytest.skip(ABSENT)
    return Source.cut(largest_bytes=40_000)


def fuzzed(source, numbers, path):
    """The tally of these inputs: nothing is wrong, and something was damaged, planted, refused and compared."""
    assert len(source.sound) > 15
    tally = Tally()
    for _ in run(source, numbers, SEED, path, tally):
        pass
    assert tally.wrong == []
    assert tally.decoded > 0.3 * len(numbers)
    assert tally.planted > 0.15 * len(numbers)
    assert tally.compared_cells > 150 * len(numbers)
    assert len(tally.refusals) >= 5
    assert tally.partial > 0.1 * len(numbers)


def test_no_damage_leads_to_a_wrong_figure(tmp_path, smallest):
    fuzzed(smallest, INPUTS, tmp_path / "t.json")


@pytest.mark.thorough
def test_no_damage_of_larger_pieces_leads_to_a_wrong_figure(tmp_path, real_traces):
    fuzzed(Source.cut(largest_bytes=150_000, every=2), range(100), tmp_path / "t.json")


def test_the_fuzzer_sees_a_wrong_figure(tmp_path, smallest, monkeypatch):
    """That it would: with a reader that is a nanosecond off."""
    from dptune.trace.kineto import builder

    honest = builder.all_nanoseconds
    monkeypatch.setattr(builder, "all_nanoseconds", lambda texts: None if (ns := honest(texts)) is None else ns + 1)
    tally = Tally()
    for _ in run(smallest, range(12), SEED, tmp_path / "t.json", tally):
        pass
    assert any("ts_ns" in wrong for each in tally.wrong for wrong in each["wrong"])


@pytest.mark.parametrize("number", range(3))
def test_an_input_depends_on_its_number_alone(real_traces, number):
    source = Source([b'{"traceEvents": [{"ph": "X", "ts": 5, "dur": 7}]}'], [b"[1, 2]"])
    assert source.made(SEED, number) == source.made(SEED, number)
    assert source.made(SEED, number) != source.made(SEED, number + 1)


def test_no_set_of_ranks_ends_in_an_internal_error():
    """A short run of `make fuzz-sets`, on made sets."""
    tally = sets.Tally()
    for _ in sets.run(made(), SETS, SEED, tally):
        pass
    assert tally.errors == []
    assert tally.several_ranks > 0.9 * len(SETS)
    assert len(tally.levels) >= 3
    assert len(tally.mutations) >= 15


def test_the_fuzzer_of_sets_sees_an_internal_error(monkeypatch):
    from dptune.measure.communication import clocks

    def fails(*_args):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(clocks, "_middle", fails)
    name = "made/ddp_2"
    tally = sets.Tally()
    for _ in sets.run({name: made()[name]}, range(5), SEED, tally):
        pass
    assert tally.internal_errors > 0
    assert "planted at test_fuzz.py" in tally.errors[0]["error"]
