"""What watches torch in this process: installed once, whoever records."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dptune.capture.injected.garbage import Garbage
from dptune.capture.injected.meters import Meters
from dptune.capture.injected.places import Places


@dataclass(frozen=True)
class Observers:
    """The places where things were made, and what measures what happens between two steps."""

    places: Places
    meters: Meters
    garbage: Garbage


@functools.cache
def observers() -> Observers:
    """The observers of this process; the first call hooks them into torch."""
    places = Places()
    places.install()
    meters = Meters(places)
    meters.install()
    garbage = Garbage()
    garbage.install()
    return Observers(places, meters, garbage)
