"""Tests that drop what was prepared, found in the source of iterable data sets."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
from dptune.capture.injected.observe.dropped_samples import drops


def tokenize(line):
    return [line]


class Base:
    def __init__(self):
        self.rank, self.world = 0, 2

    def lines(self):
        yield from map(str, range(8))


class ChecksLate(Base):
    def __iter__(self):
        for at, line in enumerate(self.lines()):
            ids = tokenize(line)
            if at % self.world != self.rank:
                continue
            yield ids


class YieldsInside(Base):
    def samples(self):
        for at, line in enumerate(self.lines()):
            ids = tokenize(line.strip())
            row = ids[:4]
            if at % self.world == self.rank:
                yield row

    def __iter__(self):
        return self.samples()


class ChecksFirst(Base):
    def __iter__(self):
        for at, line in enumerate(self.lines()):
            if at % self.world != self.rank:
                continue
            yield tokenize(line)


class ChecksTheSample(Base):
    def __iter__(self):
        for line in self.lines():
            ids = tokenize(line)
            short = ids[:4]
            if len(short) < 2:
                continue
            yield ids


class OnlyStrips(Base):
    def __iter__(self):
        for at, line in enumerate(self.lines()):
            text = line.strip()
            if at % 2:
                continue
            yield text


class Draws(Base):
    def __iter__(self):
        for line in self.lines():
            at = random.random()
            if len(line) > 4:
                continue
            yield line, at


class YieldsBoth(Base):
    def __iter__(self):
        for at, line in enumerate(self.lines()):
            ids = tokenize(line)
            if at % 2:
                yield ids
            yield ids


def line_of(words, after):
    """The number of the first line with these words after the one with those."""
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(after))
    return next(at + 1 for at, line in enumerate(lines) if at > first and words in line)


@pytest.mark.parametrize(
    ("made", "function", "test"),
    [(ChecksLate, "ChecksLate.__iter__", "if at %"), (YieldsInside, "YieldsInside.samples", "if at %")],
)
def test_a_test_that_could_come_first(made, function, test):
    prepared, dropped = drops(made())
    header = f"class {made.__name__}"
    assert prepared.startswith(f"{function} (")
    assert prepared.endswith(f":{line_of('ids = tokenize', header)})")
    assert dropped.endswith(f":{line_of(test, header)}")


@pytest.mark.parametrize("made", [ChecksFirst, ChecksTheSample, OnlyStrips, YieldsBoth, Draws])
def test_one_that_could_not_or_need_not(made):
    assert drops(made()) is None
