"""One timed trial, as a search sees it."""

from __future__ import annotations

from dataclasses import dataclass

from dptune.prove.result import Trial


@dataclass(frozen=True)
class Timed:
    """The time of a trial that ran, and the seconds that it took in all.

    `time_ns` is per sample (`per_sample`), or per step where the batch size is not known. `trial` is what was recorded;
    a simulation has none.
    """

    time_ns: float
    seconds: float
    per_sample: bool = True
    trial: Trial | None = None


@dataclass(frozen=True)
class Failed:
    """A trial without a time, and why, in one sentence without its full stop. `trial` as in `Timed`."""

    why: str
    seconds: float
    trial: Trial | None = None
