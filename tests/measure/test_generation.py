"""Generation without a cache, by hand: times in microseconds, steps of 2000."""

import pytest

from dptune.measure.host.generation import uncached_generations
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3
LENGTH = 2000


def generating(at, lengths, *, gradient=False, shapes=lambda length: [[400, 64], [4, length], []]):
    """A call of 100 each 110, whose embedding shows the length of its input."""
    name = "aten::embedding" if len(shapes(1)[0]) == 2 else "aten::linear"
    for n, length in enumerate(lengths):
        begin = at + 20 + 110 * n
        args = {"Input Dims": shapes(length), **({"Sequence number": n} if gradient else {})}
        yield python("nn.Module: GPT2LMHeadModel_0", begin, begin + 100)
        yield python("nn.Module: GPT2Model_0", begin + 1, begin + 99)
        yield operator(name, begin + 5, begin + 90, **args)


def found_in(folder, lengths, *, library=True, **more):
    events = [python("tell.py(90): main", 0, LENGTH * STEPS)]
    for n in range(STEPS):
        at = LENGTH * n
        events += [step(n, at, at + LENGTH), python("tell.py(47): tell", at + 1, at + 1950)]
        if library:
            events.append(python("transformers/generation/utils.py(2200): generate", at + 2, at + 1940))
        events += [*generating(at, lengths, **more), operator("aten::mm", at + 1960, at + 1990)]
    return uncached_generations([view(0, load_events(folder, events).ranks[0].light)])


def test_inputs_that_grow_by_one(tmp_path):
    """Ten calls of 100 on 6 to 15 positions: 105 in all, and 6 + 9 with a cache."""
    (found,) = found_in(tmp_path, range(6, 16))
    assert (found.module, found.calls, found.shortest, found.longest) == ("GPT2LMHeadModel", 10, 6, 15)
    assert (found.name, found.at, found.library, found.through) == ("tell", "tell.py:47", "transformers", "generate")
    assert found.cost_ns == 1000 * US
    assert (found.share, found.saved_share) == (pytest.approx(0.5), pytest.approx(0.5 * (1 - 15 / 105)))


def test_a_loop_of_the_script_over_features(tmp_path):
    (found,) = found_in(tmp_path, range(6, 16), library=False, shapes=lambda n: [[4, n, 64], [64, 64], [64]])
    assert (found.name, found.library, found.through, found.shortest) == ("tell", "", "", 6)


def test_two_sequences_in_a_step(tmp_path):
    (found,) = found_in(tmp_path, [*range(6, 14), *range(6, 14)])
    assert found.calls == 16
    assert found.saved_share == pytest.approx(found.share * (1 - 13 / 76))


@pytest.mark.parametrize(
    "lengths",
    [
        [6, *[1] * 12],  # with a cache
        range(6, 13),  # seven
        [6] * 12,
        range(6, 30, 2),
        range(20, 6, -1),
    ],
)
def test_other_inputs(tmp_path, lengths):
    assert found_in(tmp_path, lengths) == []


@pytest.mark.parametrize("indices", [[], "odd", ["6"]])
def test_inputs_of_unknown_length(tmp_path, indices):
    assert found_in(tmp_path, range(6, 16), shapes=lambda length: [[400, 64], indices, []]) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_rank_on_which_it_takes_most(tmp_path, order):
    """Rank 1 generates ten tokens in each step, rank 0 nine."""
    views = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        events = [python("tell.py(90): main", 0, LENGTH * STEPS)]
        for at in range(0, LENGTH * STEPS, LENGTH):
            events += [step(at // LENGTH, at, at + LENGTH), *generating(at, range(6, 15 + rank))]
        views.append(view(rank, load_events(tmp_path / str(rank), events).ranks[0].light))
    (found,) = uncached_generations([views[rank] for rank in order])
    assert (found.rank, found.calls, found.cost_ns) == (1, 10, 1000 * US)


def test_with_gradients_it_is_training(tmp_path):
    assert found_in(tmp_path, range(6, 16), gradient=True) == []


def test_without_stacks_it_is_not_known(tmp_path):
    events = [
        event for n in range(STEPS) for event in (step(n, 9 * n, 9 * n + 9), operator("aten::mm", 9 * n, 9 * n + 5))
    ]
    assert uncached_generations([view(0, load_events(tmp_path, events).ranks[0].light)]) is None
