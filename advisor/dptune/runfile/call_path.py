"""How the training loop calls a function of the script, and the lines of it that take most time, from stack samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dptune.runfile.facts import Facts
from dptune.runfile.window import SampledFacts

_LEAST_LOOKS = 3  # fewer may be chance
_LEAST_SHARE = 0.1  # of the function's time, for a line
_MOST_CALLERS, _MOST_LINES = 4, 5
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)")
_WITHIN = re.compile(r"\.?<(?:listcomp|setcomp|dictcomp|genexpr|lambda)>")  # of the function around it
_MODULE = "<module>"


@dataclass(frozen=True)
class CallPath:
    """Lines of the script, as `file:line`.

    `called_at`: those that lead to the function, outermost first, on the way on which it was found most; the last ones
    where there are many. `lines`: those within the function that take most time, with their share of its time; where
    one of them takes nearly all and calls another function of the script, those within that one, and so on. Empty where
    one line of the function itself takes nearly all of it, or samples are too few. `loops`: the loops around these
    lines, with the share of the function's time in each.
    """

    called_at: tuple[str, ...] = ()
    lines: tuple[tuple[str, float], ...] = ()
    loops: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class _Frame:
    function: str
    file: str
    line: str
    loop: int = 0
    first: int = 0

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
    within: list[_Spent] = []
    for sample in _sampled(facts):
        frames = list(_frames(sample))
        inside = [number for number, frame in enumerate(frames) if frame.is_of(name, file)]
        inside = inside or [number for number, frame in enumerate(frames) if number and frames[number - 1].place == at]
        if not inside:
            continue
        within.append(_Spent(frames[inside[-1] :], sum(sample.spent_ns), sample.looks))
        ways[_callers(frames[: inside[0]])] += within[-1].ns
    if not sum(spent.ns for spent in within) or sum(spent.looks for spent in within) < _LEAST_LOOKS:
        return CallPath()
    (way, _), *_ = ways.most_common(1)
    return CallPath(way[-_MOST_CALLERS:], *_divided(within))


@dataclass(frozen=True)
class _Spent:
    """The frames of a sample from a function inwards, and its time."""

    frames: Sequence[_Frame]
    ns: int
    looks: int


def _divided(within: Sequence[_Spent]) -> tuple[tuple[tuple[str, float], ...], tuple[tuple[str, float], ...]]:
    """The lines that take most of the time, in the function or what it calls, and the loops around them."""
    total_ns = sum(spent.ns for spent in within)
    its_lines = {spent.frames[0].place for spent in within}
    while (nearly_all := _inside_one_line(within, total_ns)) is not None:
        within = nearly_all
    lines = _most(((spent.frames[0].place, spent) for spent in within), total_ns)
    loops = _most(((_loop(spent.frames[0]), spent) for spent in within if spent.frames[0].loop), total_ns)
    return (() if len(lines) == 1 and lines[0][0] in its_lines else lines), loops


def _inside_one_line(within: Sequence[_Spent], total_ns: int) -> list[_Spent] | None:
    """What the one line that takes nearly all of the time calls; None where there is none, or it calls little."""
    by_line: Counter[str] = Counter()
    for spent in within:
        if len(spent.frames) > 1:
            by_line[spent.frames[0].place] += spent.ns
    for line, ns in by_line.most_common(1):
        if ns > (1 - _LEAST_SHARE) * total_ns:
            inner = [spent for spent in within if len(spent.frames) > 1 and spent.frames[0].place == line]
            return [_Spent(spent.frames[1:], spent.ns, spent.looks) for spent in inner]
    return None


def _loop(frame: _Frame) -> str:
    return f"{frame.file}:{frame.loop}"


def _most(places: Iterable[tuple[str, _Spent]], total_ns: int) -> tuple[tuple[str, float], ...]:
    """Those with a considerable share of the time, most first."""
    ns: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    for place, spent in places:
        ns[place] += spent.ns
        looks[place] += spent.looks
    return tuple(
        (place, spent_ns / total_ns)
        for place, spent_ns in ns.most_common(_MOST_LINES)
        if spent_ns >= _LEAST_SHARE * total_ns and looks[place] >= _LEAST_LOOKS
    )


def _with_class(facts: Sequence[Facts], name: str, at: str) -> str:
    """The name with its class, by its first line, else by the first line at or after `at` at which one was found."""
    file, _, line = at.rpartition(":")
    frames = {frame for sample in _sampled(facts) for frame in _frames(sample) if frame.is_of(name, file)}
    begins = [frame for frame in frames if line == str(frame.first)]
    after = begins or [frame for frame in frames if line.isdecimal() and int(frame.line) >= int(line)]
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
    loops = sample.loops if len(sample.loops) == len(sample.path) else [0] * len(sample.path)
    firsts = sample.firsts if len(sample.firsts) == len(sample.path) else [0] * len(sample.path)
    for frame, loop, first in zip(sample.path, loops, firsts, strict=True):
        if match := _FRAME.fullmatch(frame):
            yield _Frame(_WITHIN.sub("", match["function"]) or _MODULE, match["file"], match["line"], loop, first)
