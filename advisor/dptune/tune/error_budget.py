"""How often a search may keep a change that has no effect: 5 % over the whole search.

A candidate and the stack of kept changes that it joins are timed in rounds of one trial each. After 6, 9, 13 and 18
rounds the exact rank test of `prove.sequential` compares their mean steps. A candidate is kept if it is the faster,
one-sided at 0.11 % at each look: with 6 rounds if each of its trials is faster than each of the stack's.
Of candidates without effect 0.32 % are kept at one of the four looks (400,000 simulated; ranks do not depend on the
distribution of the times). `COST` is above that.

Each candidate that starts a race is charged `COST`, and gets it back if it is kept. The chance to keep any change
without effect is then at most `LEVEL`, for any number of candidates and however results so far choose the next ones:

Let candidates without effect be null, and consider all races up to and including the first that keeps a null. A null
that starts a race is kept with a chance of at most `COST`, given all that happened before, because a race uses new
trials only. So the chance to keep any null is at most the expected number of nulls in these races, times `COST`. None
of the nulls in the earlier ones got its charge back, and a race starts only if all of its charges can be paid: the
charges of all these nulls were in the budget together, so they are at most `LEVEL`. Charges paid back are those of
candidates that do have an effect, and do not count here (online fallback: Tian & Ramdas 2021, Stat. Methods Med. Res.
30, 976).
"""

from __future__ import annotations

from dataclasses import dataclass

LEVEL = 0.05  # chance that a search keeps any change without effect, at most
COST = 0.0033  # of it: a candidate's
LOOKS = (6, 9, 13, 18)  # rounds
LEVEL_OF_A_LOOK = 0.0022  # two-sided; a change is kept at half of it


@dataclass
class ErrorBudget:
    """What is left of the level."""

    left: float = LEVEL

    @property
    def candidates(self) -> int:
        """How many candidates it allows to start."""
        return int(self.left / COST + 1e-9)

    def charge(self, candidates: int) -> None:
        """Pay for candidates that start a race."""
        assert candidates <= self.candidates
        self.left -= candidates * COST

    def pay_back(self) -> None:
        """Return the charge of a candidate that was kept."""
        self.left += COST

    @property
    def spent(self) -> float:
        """The charges that were not paid back."""
        return LEVEL - self.left
