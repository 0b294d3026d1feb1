"""Where batches are prepared, by hand-made places of the training thread."""

import pytest

from dptune.runfile.facts import Facts
from dptune.runfile.loader_lines import HotFunction, hottest_in_loader
from dptune.runfile.window import SampledFacts, Window

LOOP = "main (train.py:30)"


def place(*path, ms=2, phase="loader", looks=10):
    return SampledFacts([LOOP, *path], phase, "", "", looks, list(range(looks)), [ms * 1_000_000] * looks)


def rank_of(*places):
    window = Window("untraced", 3, [10_000_000] * 10)
    window.sampled = [*places, place(ms=5, phase="backward")]
    return Facts(rank=0, windows=[window])


ENCODES = "Tokenizer.encode (text.py:36)"
LISTED = "Tokenizer.encode.<listcomp> (text.py:37)"
COLLATES = "main.collate (train.py:12)"


def test_the_function_and_its_line_over_ranks_with_its_share():
    """6 + 2 of 10 ms in `encode`, most of it on line 37; 1 in `collate` itself; 1 in a library that the loop calls."""
    first = rank_of(place(COLLATES, ENCODES, LISTED, ms=6), place(COLLATES, ms=1))
    second = rank_of(place(COLLATES, ENCODES, ms=2), place(ms=1))
    assert hottest_in_loader([first, second]) == HotFunction(
        "Tokenizer.encode", "text.py:37", pytest.approx(0.8), pytest.approx(0.6785, abs=1e-4)
    )  # of 40 samples: Wilson's interval at 90 %


@pytest.mark.parametrize(
    "places",
    [
        [],
        [place()],  # the training loop waits for workers, or for a library
        [place(ENCODES, looks=2)],
        [place(ENCODES, phase="forward")],
        [place(ENCODES), place(ENCODES, phase="optimizer")],  # it runs elsewhere too
    ],
)
def test_no_function_prepares_batches_for_sure(places):
    assert hottest_in_loader([rank_of(*places)]) is None
