"""Which dimensions a view moves, from shapes; the calls that move the values as well are run."""

from __future__ import annotations

import pytest
import torch

from dptune.capture.injected.observe.moved_dimensions import moved


def run(calls, tensor):
    return eval(f"x{calls}", {"x": tensor})


@pytest.mark.parametrize(
    ("given", "made", "calls", "nested"),
    [
        ((8, 96, 7), (8, 7, 96), ".transpose(1, 2)", False),
        ((8, 96, 32), (8, 32, 96), ".transpose(1, 2)", True),
        ((8, 30, 7, 7), (8, 7, 7, 30), ".permute(0, 2, 3, 1)", False),
        ((35, 20, 16), (20, 35, 16), ".transpose(0, 1)", False),
        ((8, 1, 96, 7), (8, 1, 7, 96), ".transpose(2, 3)", False),
        ((8, 30, 64), (8, 4, 30, 16), ".reshape(8, 30, 4, 16).transpose(1, 2)", False),
        ((8, 60, 64), (8, 4, 60, 16), ".reshape(8, 60, 4, 16).transpose(1, 2)", True),
        ((8, 30, 64), (8, 4, 16, 30), ".reshape(8, 30, 4, 16).permute(0, 2, 3, 1)", False),
        ((8, 4, 30, 16), (8, 30, 64), ".transpose(1, 2).reshape(8, 30, 64)", False),
        ((8, 4, 60, 16), (8, 60, 64), ".transpose(1, 2).reshape(8, 60, 64)", True),
        ((8, 96, 7, 7), (8, 49, 96), ".permute(0, 2, 3, 1).reshape(8, 49, 96)", False),
        ((8, 49, 96), (8, 96, 7, 7), ".reshape(8, 7, 7, 96).permute(0, 3, 1, 2)", False),
        ((2, 9, 16), (9, 32), ".transpose(0, 1).reshape(9, 32)", False),
        ((6, 10, 15), (15, 10, 6), ".transpose(0, 2)", False),
    ],
)
def test_what_is_moved(given, made, calls, nested):
    found = moved(given, made)
    assert found is not None
    assert (found.instead, found.nested) == (calls, nested)
    tensor = torch.arange(torch.Size(given).numel()).reshape(given)
    assert tuple(run(found.instead, tensor).shape) == made


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((8, 96, 7), (8, 96, 7)),
        ((8, 32, 32), (8, 32, 32)),
        ((8, 1, 96), (8, 96, 1)),
        ((8, 96, 64), (8, 96, 4, 16)),
        ((8, 96, 4, 16), (8, 96, 64)),
        ((8, 96, 7), (768, 7)),
        ((8, 12, 6, 6), (8, 3, 2, 2, 6, 6)),  # before a pixel shuffle
        ((8, 3, 2, 6, 2, 6), (8, 3, 12, 12)),  # what a pixel shuffle merges
        ((8, 160, 40), (8, 80, 80)),  # two frames in one
        ((8, 64, 8, 8), (8, 8, 512)),  # 8 groups of channels
        ((8, 512, 4, 4), (8, 16, 512)),  # 16 groups of channels
        ((4, 32, 16), (8, 256)),  # rows of 16 words
        ((16, 8, 5), (4, 32, 5)),  # other mini-batches
        ((8, 6), (4, 4, 3)),
        ((0, 3), (3, 0)),
    ],
)
def test_what_only_splits_and_merges_neighbours(given, made):
    assert moved(given, made) is None


def test_which_dimensions_and_whether_the_first_is_among_them():
    inner, outer = moved((8, 96, 7), (8, 7, 96)), moved((1, 35, 20, 16), (1, 20, 35, 16))
    assert inner is not None
    assert outer is not None
    assert (inner.dimensions, inner.given, inner.made, inner.leads) == ((1, 2), (96, 7), (7, 96), False)
    assert (outer.dimensions, outer.leads) == ((1, 2), True)
