"""Functions of the script in stack samples: several of one file may have one name, as methods called `forward` do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dptune.runfile.facts import Facts
from dptune.runfile.window import SampledFacts

_FRAME = re.compile(r"(?:.*\.)?(?P<name>[^.]+) \((?P<file>.+):(?P<line>\d+)\)")


class Frame(NamedTuple):
    """A function's name without its class, its file, and the line that runs."""

    name: str
    file: str
    line: str


@dataclass(frozen=True)
class Function:
    """`first`: its first line, 0 where that is not known: then it stands for all of that name in the file."""

    name: str
    file: str
    first: int = 0

    def frames(self, sample: SampledFacts) -> list[int]:
        """Where it is on the stack, from the outermost on."""
        firsts = sample.firsts if self.first and len(sample.firsts) == len(sample.path) else None
        return [
            at
            for at, each in enumerate(sample.path)
            if (frame := frame_of(each)) is not None
            and (frame.name, frame.file) == (self.name, self.file)
            and (firsts is None or firsts[at] == self.first)
        ]


@lru_cache(4096)
def frame_of(frame: str) -> Frame | None:
    """The parts of `function (file:line)`."""
    match = _FRAME.fullmatch(frame)
    return Frame(match["name"], match["file"], match["line"]) if match else None


def function(facts: Sequence[Facts], name: str, at: str) -> Function:
    """The function of that name in the file of `at` (`file` or `file:line`), by its first line if `at` has that.

    A line in the middle of a function does not distinguish it. The name may have the class before it.
    """
    name = name.rpartition(".")[2]
    file, _, line = at.rpartition(":")
    if not file or not line.isdecimal():
        return Function(name, at)
    found = Function(name, file, int(line))
    return found if any(found.frames(sample) for sample in sampled(facts) if sample.firsts) else Function(name, file)


def sampled(facts: Sequence[Facts]) -> Iterator[SampledFacts]:
    """The stack samples of the untraced steps of all ranks."""
    for rank_facts in facts:
        window = rank_facts.window("untraced")
        yield from window.sampled if window else ()
