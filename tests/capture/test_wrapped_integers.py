"""Differences, sums and products of narrow integers that wrap around: real operators, in steps of plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.same_results import SameResults
from dptune.capture.injected.observe.wrapped_integers import WrappedIntegers


class Uncompiled:
    compiled = ()


FRAMES = torch.tensor([[10, 20, 30, 40], [12, 18, 30, 41]], dtype=torch.uint8)


def found(prepare, steps=4):
    """What is found in steps that train on what a function makes of numbers."""
    model, wrapped = nn.Linear(4, 4), WrappedIntegers()
    observer = SameResults(Uncompiled(), others=(wrapped,))
    observer.begin()
    for _ in range(steps):
        model(prepare().float().reshape(-1, 4)).sum().backward()
        observer.ticked()
    observer.end()
    return wrapped.facts()


def changes():
    return FRAMES[1:] - FRAMES[:-1]


def accumulated():
    total = torch.zeros(4, dtype=torch.uint8)
    for _ in range(10):
        total += FRAMES[0]
    return total


@pytest.mark.parametrize(
    ("prepare", "operator", "wrapped"),
    [
        (changes, "sub", 1),
        (lambda: FRAMES[1:].sub(FRAMES[:-1]), "sub", 1),
        (lambda: torch.diff(FRAMES, dim=0), "sub", 1),
        (lambda: FRAMES * FRAMES, "mul", 6),
        (lambda: FRAMES.to(torch.int8) * FRAMES.to(torch.int8), "mul", 7),
        (lambda: FRAMES[:1] - FRAMES, "sub", 2),
        (lambda: (FRAMES.float() * 10).byte(), "convert", 4),
        (lambda: (FRAMES.int() * 10).to(torch.uint8), "convert", 4),
        (lambda: (FRAMES.int() - 11).to(dtype=torch.uint8), "convert", 1),
    ],
)
def test_results_that_wrap(prepare, operator, wrapped):
    (facts,) = found(prepare)
    assert (facts.operator, facts.wrapped) == (operator, 3 * wrapped)
    assert facts.where.startswith("tests/capture/test_wrapped_integers.py:")
    assert 0 < facts.share < 1


def test_the_function_and_the_dtype():
    (facts,) = found(changes)
    assert (facts.function, facts.dtype, facts.values, facts.share) == ("changes", "uint8", 12, 0.25)


def test_sums_in_place():
    """The values of each addition after the first are those of the one before, as they wrapped."""
    (facts,) = found(accumulated)
    total, wrapped = [0] * 4, 0
    for _ in range(8):
        exact = [value + more for value, more in zip(total, FRAMES[0].tolist(), strict=True)]
        total = [value % 256 for value in exact]
        wrapped += sum(value > 255 for value in exact)
    assert (facts.operator, facts.values, facts.wrapped) == ("add", 8 * 4, wrapped)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: FRAMES[1:].float() - FRAMES[:-1].float(),
        lambda: FRAMES[1:].int() - FRAMES[:-1],
        lambda: 255 - FRAMES,
        lambda: FRAMES - 11,
        lambda: FRAMES - torch.tensor(11, dtype=torch.uint8),
        lambda: (FRAMES > 20).to(torch.uint8) * (FRAMES > 10).to(torch.uint8),
        lambda: (FRAMES > 20) ^ (FRAMES > 10),
        lambda: FRAMES - FRAMES,
        lambda: FRAMES.sum(0),
        lambda: (FRAMES.float() + 0.5).to(torch.uint8),
        lambda: (FRAMES * 0.5).byte(),
        lambda: (FRAMES > 20).byte(),
        lambda: (FRAMES.float() * 10).clamp(0, 255).byte(),
        lambda: (FRAMES.float() * 10).to(torch.float64),
        lambda: FRAMES.clone().copy_(FRAMES.flip(0)),
    ],
)
def test_what_does_not_wrap_or_is_meant_to(prepare):
    assert found(prepare) == []


LATER = FRAMES[1:]
EARLIER = FRAMES[:-1]


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: (LATER - EARLIER) != 0,
        lambda: torch.diff(FRAMES.flip(0), dim=0).bool(),
        lambda: torch.diff(FRAMES.flip(0), dim=0).reshape(2, 2)[0].ne(0).repeat(2),
        lambda: torch.where(LATER > EARLIER, LATER - EARLIER, EARLIER - LATER),
        lambda: FRAMES * FRAMES + FRAMES & 7 != 0,
        lambda: FRAMES * FRAMES ^ FRAMES,
        lambda: (FRAMES.int() * 1000 >> 3).to(torch.uint8),
        lambda: torch.randint(2**31, (4,)).byte(),
    ],
)
def test_wrapped_values_that_are_not_read_as_numbers(prepare):
    assert found(prepare) == []


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: LATER - EARLIER > 3,
        lambda: FRAMES * FRAMES != 0,
        lambda: FRAMES + torch.full_like(FRAMES, 240) != 0,
        lambda: torch.diff(FRAMES.flip(0), dim=0).reshape(2, 2)[0].repeat(2),
        lambda: torch.stack([LATER[0] - EARLIER[0]]).clamp(max=100),
        lambda: torch.where(LATER < EARLIER, EARLIER - LATER, EARLIER - LATER),
        lambda: torch.tensor((EARLIER - LATER)[0].tolist()),
        lambda: torch.zeros(1, 4).copy_(EARLIER - LATER),
        lambda: FRAMES.float() + (FRAMES * FRAMES),
    ],
)
def test_wrapped_values_that_are_read_later(prepare):
    assert found(prepare)


def test_values_that_wrap_in_a_part_of_a_tensor():
    def prepare():
        frames = FRAMES.clone()
        frames[0].sub_(FRAMES[1])
        return frames

    (facts,) = found(prepare)
    assert (facts.operator, facts.wrapped) == ("sub", 3 * 2)


def test_many_values():
    images = torch.arange(2**13, dtype=torch.int32).remainder(256).to(torch.uint8).expand(2**9, -1).contiguous()
    (facts,) = found(lambda: (images - images.flip(1))[:1])
    assert facts.values <= 3 * 2**20
    assert 0.3 < facts.share < 0.7
