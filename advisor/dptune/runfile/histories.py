"""Lines that join the values of all steps so far, in each step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class HistoryFacts:
    """A list that is joined in each step, and is longer in each.

    `where` is the script's line that joins it, in `function`. It had `length` parts in step number `step`, counted from
    0, and `grows` by as many each step.
    """

    where: str
    function: str
    length: int = 0
    grows: int = 1
    step: int = 0

    def steps_joined(self, step: float) -> float:
        """Of how many steps the list holds the values in that step, if it is not emptied before."""
        return max(1.0, self.length / self.grows + step - self.step)
