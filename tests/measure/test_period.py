"""What repeats in a sequence of names, and how alike the repetitions are."""

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure.steps.period import LEAST_ALIKE, period, similarity

# 4 layers forward, 4 backward, 3 of an optimizer: names 0 to 20, of which layers repeat some.
FORWARD = [1, 2, 3, 4, 5, 6] * 4
BACKWARD = [11, 12, 13, 3, 14, 15, 16] * 4
STEP = [0, *FORWARD, 10, *BACKWARD, 17, 18, 18, 19]


def plain_similarity(codes, cuts):
    """By counters and sorted lists."""
    held = [Counter(codes[start:end]) for start, end in pairwise(cuts)]
    shared = either = 0
    for name in set(codes):
        often = sorted(one[name] for one in held)
        middle = (often[(len(often) - 1) // 2] + often[len(often) // 2]) / 2
        shared += sum(min(count, middle) for count in often)
        either += sum(max(count, middle) for count in often)
    return shared / either


def test_similarity_by_hand():
    """Three segments: 0 0 1, 0 0 1, 0 2. Typical: 0 twice, 1 once. Shared 3 + 3 + 1, of 3 + 3 + (2 + 1 + 1)."""
    assert similarity(np.array([0, 0, 1, 0, 0, 1, 0, 2]), np.array([0, 3, 6, 8])) == pytest.approx(7 / 10)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=2, max_size=6))
def test_similarity_equals_a_plain_count(lists):
    codes = [name for one in lists for name in one]
    cuts = np.cumsum([0, *map(len, lists)])
    assert similarity(np.array(codes), cuts) == pytest.approx(plain_similarity(codes, cuts.tolist()))


@given(st.integers(4, 12), st.integers(0, len(STEP) - 1), st.integers(0, len(STEP) - 1), st.data())
def test_a_sequence_that_repeats_is_found_though_names_are_slipped_in(steps, missing, over, data):
    """Begun and ended anywhere in a step, up to one name in twenty strange or doubled: every period is one step."""
    codes = (STEP * (steps + 2))[missing : len(STEP) * (steps + 1) + over]
    many = len(codes) // 20
    for at, name in data.draw(
        st.lists(st.tuples(st.integers(0, len(codes)), st.integers(0, 30)), max_size=many), label="slipped in"
    ):
        codes.insert(at, name)
    found = period(np.array(codes))
    if found is None:  # never wrong; silent where the strange names make the steps less alike, in names or in order
        cuts = np.array([place for place, name in enumerate(codes) if name == 10])
        runs = [tuple(codes[max(at - 3, 0) : at + 1]) for at in range(len(codes))]
        order = np.array([sorted(set(runs)).index(run) for run in runs])
        assert similarity(np.array(codes), cuts) < LEAST_ALIKE + 0.05 or similarity(order, cuts) < 0.8
        return
    assert (np.abs(np.diff(found) - len(STEP)) <= many).all()
    assert len(found) >= steps - 1


@pytest.mark.parametrize("slipped", [0, 2, 5])
def test_a_few_strange_names_do_not_silence_it(slipped):
    codes = STEP * 8
    for turn in range(slipped):
        codes.insert(61 * (turn + 1), 25)
    found = period(np.array(codes))
    assert len(found) == 8
    assert set(np.diff(found).tolist()) <= {len(STEP), len(STEP) + 1}


@pytest.mark.long
@given(st.integers(0, 2**32))
def test_a_shuffled_sequence_has_no_period(seed):
    codes = STEP * 6
    random.Random(seed).shuffle(codes)
    assert period(np.array(codes)) is None


def test_a_long_random_sequence_has_none_although_its_pieces_hold_the_same_names():
    codes = np.random.default_rng(3).integers(0, 40, 60_000)
    codes[[10_000, 30_000, 50_000]] = 40
    assert similarity(codes, np.array([10_000, 30_000, 50_000])) > LEAST_ALIKE
    assert period(codes) is None


def test_one_step_has_no_period_although_its_layers_repeat():
    """By hand: backward layers are 28 of 58 names, and what lies before them is more than one of them."""
    assert period(np.array(STEP)) is None
    assert period(np.array(STEP * 2)) is None


def test_layers_that_make_up_the_whole_are_a_period():
    """Which is why a period alone is no step: see the backward pass that a step is asked for."""
    found = period(np.array([0, *FORWARD, 7]))
    assert np.diff(found).tolist() == [6, 6, 6]


def test_two_steps_repeat_as_well_as_one():
    """A name of every second step marks 2-step periods just as even."""
    codes = [*STEP, 21, *STEP] * 4
    assert set(np.diff(period(np.array(codes))).tolist()) == {len(STEP), len(STEP) + 1}


@pytest.mark.parametrize("codes", [[], [0], [0] * 2, [0, 1, 2, 3]])
def test_too_short(codes):
    assert period(np.array(codes, dtype=np.int64)) is None
