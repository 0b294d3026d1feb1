"""How much of its cores' time a machine did not get, by its kernel's own count: its host ran other machines."""

from __future__ import annotations

from typing import NamedTuple

_COUNTS = "/proc/stat"
_LEAST = 50  # ticks, of 10 ms each nearly everywhere: of fewer a share is chance


class Ticks(NamedTuple):
    """For how long all cores together ran since the start, and for how long they had work and did not get to."""

    ran: int
    taken: int

    @classmethod
    def now(cls) -> Ticks | None:
        """None where the kernel counts nothing like it."""
        try:
            with open(_COUNTS, encoding="ascii") as counts:
                user, nice, system, _, _, irq, softirq, steal = map(int, counts.readline().split()[1:9])
        except (OSError, ValueError):
            return None
        return cls(user + nice + system + irq + softirq, steal)


def taken_share(begun: Ticks | None, ended: Ticks | None) -> float | None:
    """What was taken, of the time for which the cores had work in between; None where that is not known, or too little.

    Each a count of `Ticks.now`.
    """
    if begun is None or ended is None:
        return None
    ran, taken = ended.ran - begun.ran, ended.taken - begun.taken
    return taken / (ran + taken) if taken >= 0 and ran >= 0 and ran + taken >= _LEAST else None
