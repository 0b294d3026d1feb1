"""The function of the script that prepares batches, and its line, where the training thread was found most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from dptune.runfile.facts import Facts
from dptune.runfile.window import SampledFacts

_LEAST_LOOKS = 3  # fewer may be chance
_Z = 1.645  # of a normal distribution: 5 % lie beyond on either side
_FRAME = re.compile(r"(?P<name>.+) \((?P<file>.+):(?P<line>\d+)\)")
_WITHIN = re.compile(r"\.<(?:listcomp|setcomp|dictcomp|genexpr|lambda)>")  # of the function around it


@dataclass(frozen=True)
class HotFunction:
    """A function of the script, the `file:line` where it was found most, and its share of the time in its phase.

    `least` is the lower end of the share by the number of samples, None of a share that was timed.
    """

    name: str
    where: str
    share: float
    least: float | None = None


def hottest_in_loader(facts: Sequence[Facts]) -> HotFunction | None:
    """The function in which the training thread prepares batches most of the time; None where it was found too rarely.

    With workers it only waits. A function that also runs outside of the loader is the training loop, which draws the
    batch from a library.
    """
    elsewhere = {
        _function(frame)
        for stack_sample in _sampled(facts)
        if stack_sample.phase != "loader"
        for frame in stack_sample.path
    }
    spent: Counter[tuple[str, str]] = Counter()
    of_line: Counter[tuple[str, str, str]] = Counter()
    looks: Counter[tuple[str, str, str]] = Counter()
    total_ns = of_phase = 0
    for sample in _sampled(facts):
        if sample.phase != "loader" or not sample.path:
            continue
        spent_ns = sum(sample.spent_ns)
        total_ns += spent_ns
        of_phase += sample.looks
        function, frame = _function(sample.path[-1]), _FRAME.fullmatch(sample.path[-1])
        if function is None or frame is None or function in elsewhere:
            continue
        spent[function] += spent_ns
        of_line[*function, frame["line"]] += spent_ns
        looks[*function, frame["line"]] += sample.looks
    for (name, file), spent_ns in spent.most_common(1):
        for at, _ in of_line.most_common():
            if at[:2] == (name, file) and looks[at] >= _LEAST_LOOKS:
                share = spent_ns / total_ns
                return HotFunction(name, f"{file}:{at[2]}", share, _least(share, of_phase))
    return None


def _least(share: float, looks: int) -> float:
    """The lower end of Wilson's interval: the true share is below it in 5 % of recordings."""
    spread = _Z * sqrt(share * (1 - share) / looks + (_Z / (2 * looks)) ** 2)
    return max(0.0, (share + _Z**2 / (2 * looks) - spread) / (1 + _Z**2 / looks))


def _sampled(facts: Sequence[Facts]) -> Iterator[SampledFacts]:
    for rank_facts in facts:
        window = rank_facts.window("untraced")
        yield from window.sampled if window else ()


def _function(frame: str) -> tuple[str, str] | None:
    """Name and file of a place of the script; of a comprehension those of the function around it."""
    place = _FRAME.fullmatch(frame)
    return (_WITHIN.sub("", place["name"]), place["file"]) if place else None


def least_wait_share(facts: Sequence[Facts]) -> float:
    """The smallest share of any window that a rank waits for its loaders; 0 without windows or if one has workers."""
    if any(loader.num_workers for rank_facts in facts for loader in rank_facts.loaders):
        return 0.0
    windows = [
        window for rank_facts in facts for window in rank_facts.windows if window.steps and window.name != "noise"
    ]
    shares = [
        sum(timed_window.loader_wait_ns) / sum(timed_window.durations_ns)
        for timed_window in windows
        if sum(timed_window.durations_ns)
    ]
    return min(shares, default=0.0)
