"""How far the replay of some recorded steps is from those that it does not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median

from dptune.runfile.facts import Facts
from dptune.whatif.cpu.building import Recorded
from dptune.whatif.cpu.median_process import computing
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.step_times import untraced
from dptune.whatif.cpu.unit_building import RecordedUnits


def held_out_share(recorded: Recorded | RecordedUnits, processes: Sequence[Mapping[int, Facts]], level: float) -> float:
    """How far the replay of every second step is from the median of the others, as a share; mean of both halves.

    `level`: how many times as long as in the recorded process a step takes in the middle one of all.
    """
    return mean(_off_share(recorded, half, processes, level) for half in (0, 1))


def _off_share(
    recorded: Recorded | RecordedUnits, half: int, processes: Sequence[Mapping[int, Facts]], level: float
) -> float:
    others = [untraced(facts).durations_ns[1 - half :: 2] for facts in recorded.facts.values()]
    scored = level * float(median(median(durations) for durations in others))
    return abs(step_ns(computing(recorded.model(slice(half, None, 2)), processes)) - scored) / scored
