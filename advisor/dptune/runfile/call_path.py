"""How the training loop calls a function of the script, and the lines of it that take most time, from stack samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dptune.runfile.facts import Facts
from dptune.runfile.window import SampledFacts

_LEAST_LOOKS = 3  # fewer may be chance
_LEAST_SHARE = 0.15  # of the function's time, for a line
_MOST_CALLERS, _MOST_LINES = 4, 3
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)")
_WITHIN = re.compile(r"\.?<(?:listcomp|setcomp|dictcomp|genexpr|lambda)>")  # of the function around it
_MODULE = "<module>"


@dataclass(frozen=True)
class CallPath:
    """Lines of the script, as `file:line`.

    `called_at`: those that lead to the function, outermost first, on the way on which it was found most; the last ones
    where there are many. `lines`: those within the function, or that it was in while others ran, with the share of
    the function's time; empty where one line takes nearly all of it, or samples are too few.
    """

    called_at: tuple[str, ...] = ()
    lines: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class _Frame:
    function: str
    file: str
    line: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def is_of(self, name: str, file: str) -> bool:
        return self.file == file and name in (self.function, self.function.rpartition(".")[2])


def call_path(facts: Sequence[Facts], name: str, at: str) -> CallPath:
    """Of the function of that name in the file of `at` (`file:line`), or that this line calls, over all ranks.

    Of several methods of one name without its class it is the one that begins at `at`, or holds that line. Only
    untraced steps are sampled.
    """
    file = at.rpartition(":")[0] or at
    name = _with_class(facts, name, at)
    ways: Counter[tuple[str, ...]] = Counter()
    spent: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    for sample in _sampled(facts):
        frames = list(_frames(sample))
        own = [number for number, frame in enumerate(frames) if frame.is_of(name, file)]
        own = own or [number for number, frame in enumerate(frames) if number and frames[number - 1].place == at]
        if not own:
            continue
        spent_ns, line = sum(sample.spent_ns), frames[own[-1]].place
        spent[line] += spent_ns
        looks[line] += sample.looks
        ways[_callers(frames[: own[0]])] += spent_ns
    total_ns = sum(spent.values())
    if not total_ns or sum(looks.values()) < _LEAST_LOOKS:
        return CallPath()
    lines = [
        (line, ns / total_ns)
        for line, ns in spent.most_common(_MOST_LINES)
        if ns >= _LEAST_SHARE * total_ns and looks[line] >= _LEAST_LOOKS
    ]
    (way, _), *_ = ways.most_common(1)
    return CallPath(way[-_MOST_CALLERS:], tuple(lines) if len(lines) > 1 else ())


def _with_class(facts: Sequence[Facts], name: str, at: str) -> str:
    """The name with its class, by the first line at or after `at` at which such a function was found."""
    file, _, line = at.rpartition(":")
    frames = {frame for sample in _sampled(facts) for frame in _frames(sample) if frame.is_of(name, file)}
    after = [frame for frame in frames if line.isdecimal() and int(frame.line) >= int(line)]
    return min(after, key=lambda frame: int(frame.line)).function if after else name


def _callers(frames: Sequence[_Frame]) -> tuple[str, ...]:
    """Their lines, each once; the module's own line only where the function is called there."""
    called = [frame for frame in frames if frame.function != _MODULE] or list(frames)
    return tuple(dict.fromkeys(frame.place for frame in called))


def _sampled(facts: Sequence[Facts]) -> Iterator[SampledFacts]:
    for rank_facts in facts:
        window = rank_facts.window("untraced")
        yield from window.sampled if window else ()


def _frames(sample: SampledFacts) -> Iterator[_Frame]:
    """The frames of a sample; a comprehension is part of the function around it."""
    for frame in sample.path:
        if match := _FRAME.fullmatch(frame):
            yield _Frame(_WITHIN.sub("", match["function"]) or _MODULE, match["file"], match["line"])
