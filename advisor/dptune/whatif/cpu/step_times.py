"""Times of a step that the facts record with and without the profiler, and how much the profiler slows a thread."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from dptune.measured import Missing
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window

NOT_RECORDED = "recorded by an older dptune without this data: record again"


class Stretch(NamedTuple):
    """How many times as long as without the profiler: what a thread computes in backward passes, and the rest."""

    backward: float
    rest: float


def stretched(facts: Facts) -> Stretch:
    """That of a rank's own thread in the traced window."""
    plain, traced = (facts.window(name) for name in ("untraced", "light"))
    backward, rest = (
        [computed_ns(window) for window in (plain, traced)],
        [alone_ns(window) for window in (plain, traced)],
    )
    if min(backward) <= 0 or min(rest) <= 0:
        raise Missing("a step has no work outside its backward passes, or no backward pass")
    return Stretch(backward[1] / backward[0], rest[1] / rest[0])


def untraced(facts: Facts) -> Window:
    """The window without the profiler, of several steps."""
    window = facts.window("untraced")
    if window is None or window.steps < 2:
        raise Missing("fewer than 2 steps were recorded without the profiler")
    return window


def computed_ns(window: Window | None) -> float:
    """What the thread computes in the backward passes of a step: the median over steps. Raises Missing."""
    if window is None or not window.steps or len(window.backward_cpu_ns) != window.steps:
        raise Missing(f"time in backward passes is unknown: {NOT_RECORDED}")
    return median(window.backward_cpu_ns)


def alone_ns(window: Window | None) -> float:
    """What a step takes beside its waits for batches and its backward passes: the median over steps. Raises Missing."""
    if window is None or not window.steps or len(window.backward_ns) != window.steps:
        raise Missing(f"time in backward passes is unknown: {NOT_RECORDED}")
    if len(window.loader_wait_ns) != window.steps:
        raise Missing("the time waiting for the data loader is unknown")
    parts = zip(window.durations_ns, window.loader_wait_ns, window.backward_ns, strict=True)
    return median(whole - loader - backward for whole, loader, backward in parts)


def loader_waits(facts: Facts) -> float:
    """What a step waits for its batches, the median over steps; 0 where it is not known."""
    window = facts.window("untraced")
    return median(window.loader_wait_ns) if window and window.loader_wait_ns else 0.0
