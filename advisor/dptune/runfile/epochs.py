"""Steps that begin an epoch of a loader whose workers are started anew for each, as far as they were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from statistics import median, median_low

from dptune.runfile.facts import Facts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import Window

_ROUNDING = 1e-9
_MOST_OFF = 1  # steps: a batch drawn before the loop moves where epochs begin


@dataclass(frozen=True)
class EpochStarts:
    """`seen` recorded steps that start an epoch of `steps` steps.

    `length_ns` and `wait_ns` are the median of theirs, in all and in the loader's `__next__`; the `usual` ones those
    of the other steps in the same windows.
    """

    steps: float
    seen: int
    length_ns: float
    wait_ns: float
    usual_length_ns: float
    usual_wait_ns: float

    @property
    def extra_ns(self) -> float:
        """How much longer such a step takes."""
        return max(0.0, self.length_ns - self.usual_length_ns)

    @property
    def lost_share(self) -> float:
        """That, of the time of an epoch."""
        return self.extra_ns / (self.extra_ns + self.steps * self.usual_length_ns) if self.extra_ns else 0.0

    @property
    def hold_the_wait(self) -> bool:
        """Whether such a step waits longer for its batch than all other steps of the epoch together."""
        return self.wait_ns > max(0.0, self.steps - 1) * self.usual_wait_ns


def restarted(facts: Facts) -> LoaderFacts | None:
    """The one loader that batches are drawn from, where its workers are started anew for each epoch."""
    drawn = [loader for loader in facts.loaders if loader.batches_drawn]
    return drawn[0] if len(drawn) == 1 and drawn[0].num_workers and drawn[0].persistent_workers is False else None


def epoch_steps(facts: Facts, ranks: int) -> float | None:
    """How many steps an epoch of that loader has; None where that is not known."""
    loader, window = restarted(facts), facts.window("untraced")
    batches = loader.epoch_batches(ranks) if loader else None
    if batches is None or window is None or not window.loader_batches:
        return None
    return batches / max(1, median_low(window.loader_batches))


def epoch_starts(facts: Facts, ranks: int) -> EpochStarts | None:
    """Those of all windows; None where the loader is no such one, or no recorded step begins an epoch."""
    steps = epoch_steps(facts, ranks)
    if steps is None:
        return None
    found = [_starts(facts, steps, off) for off in range(-_MOST_OFF, _MOST_OFF + 1)]
    starts = max(
        found, key=lambda candidate_starts: median([wait for _, wait in candidate_starts] or [0])
    )  # where they wait longest
    if not starts:
        return None
    places = {(window.name, at) for window, at in (place for place, _ in starts)}
    others = [(w, at) for w in _windows(facts) for at in range(w.steps) if (w.name, at) not in places]
    of_start = {window.name for window, _ in (place for place, _ in starts)}
    usual = [(w, at) for w, at in others if w.name in of_start] or others
    if not usual:
        return None
    return EpochStarts(
        steps=steps,
        seen=len(starts),
        length_ns=median(window.durations_ns[at] for (window, at), _ in starts),
        wait_ns=median(wait for _, wait in starts),
        usual_length_ns=median(window.durations_ns[at] for window, at in usual),
        usual_wait_ns=median(window.loader_wait_ns[at] for window, at in usual),
    )


def enough_steps(steps: float) -> int:
    """So many steps in a row hold one that begins an epoch."""
    return ceil(steps) + _MOST_OFF


def _windows(facts: Facts) -> Iterator[Window]:
    return (window for window in facts.windows if window.steps and len(window.loader_wait_ns) == window.steps)


def _starts(facts: Facts, steps: float, off: int) -> list[tuple[tuple[Window, int], int]]:
    """The place and the wait of each recorded step that holds the first batch of an epoch, but for the very first."""
    found = []
    for window in _windows(facts):
        for at in range(window.steps):
            before = window.first_step + at - 1 + off  # steps that were taken by then
            if before > max(off, 0) and ceil(before / steps - _ROUNDING) < (before + 1) / steps - _ROUNDING:
                found.append(((window, at), window.loader_wait_ns[at]))
    return found
