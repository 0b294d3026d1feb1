"""A torch.profiler of the script that records through its training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ScriptProfilerFacts:
    """What is known of the script's profiler that was running last.

    `where` is the script's line that makes or enters it; `cycle` the steps of each cycle of its schedule (wait, warmup,
    active), empty without a schedule; `repeat` the number of cycles, 0 where they go on until it is stopped, None for a
    schedule that torch did not make. While it ran, the script made `optimizer_steps` optimizer steps and `calls` calls
    of its `step`, which together took `spent_ns` of `lasted_ns`: that is what starting, stopping and processing a
    cycle costs, without what recording adds to the recorded steps.
    """

    where: str | None = None
    cycle: list[int] | None = None
    repeat: int | None = None
    running: bool = False
    optimizer_steps: int = 0
    calls: int = 0
    spent_ns: int = 0
    lasted_ns: int = 0

    @property
    def cycles(self) -> int:
        """Whole cycles of the schedule that ended; 0 without a schedule."""
        return self.calls // sum(self.cycle) if self.cycle else 0
