"""Peaks of the CPU of a recorded rank, as its ranks measured them after the last window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dptune.measure.efficiency.counting import element_type
from dptune.measure.efficiency.peaks import Peak
from dptune.measure.load import withheld_share
from dptune.runfile.facts import Facts

NOT_RECORDED = "a torch.profiler trace does not show the peak of a CPU: `dptune profile` measures it"
NOT_MEASURED = (
    "the recording has no measured peak of the CPU (measured when the detailed window is complete): record again"
)
MOST_WITHHELD = 0.75  # of the CPU time that the ranks needed: from there on no report trusts times
_DISTURBED = (
    "other processes withheld {:.0f} % of the CPU time while the peak of the CPU was measured: record again while they "
    "do not run"
)


@dataclass(frozen=True)
class MeasuredPeaks:
    """The peaks of one rank by element type, and what part of the CPU time others withheld; None if not counted."""

    by_dtype: dict[str, Peak]
    withheld_share: float | None

    @property
    def unusable(self) -> str:
        """Why these are no peaks; "" if they are."""
        withheld = self.withheld_share
        return _DISTURBED.format(100 * withheld) if withheld is not None and withheld >= MOST_WITHHELD else ""


def measured_peaks(facts: Mapping[int, Facts], rank: int) -> MeasuredPeaks | str:
    """What the rank measured, or why there is nothing. `facts`: of all ranks."""
    if rank not in facts:
        return NOT_RECORDED
    found = facts[rank].cpu_peak
    if found is None or not found.dtypes:
        return NOT_MEASURED
    threads = f"{found.threads} thread{'' if found.threads == 1 else 's'}"
    by_dtype = {
        element_type(each.dtype): Peak(
            each.flops_per_s,
            f"measured after the recorded steps: products of {each.width:,} x {each.width:,} matrices, {threads}"
            + _together(found.ranks, found.expected),
        )
        for each in found.dtypes
        if each.flops_per_s > 0
    }
    here = [each for each in facts.values() if each.host == facts[rank].host]
    loads = [each.cpu_peak.load if each.cpu_peak is not None else None for each in here]
    counted = [each for each in loads if each is not None]
    return MeasuredPeaks(by_dtype, withheld_share(here, counted) if len(counted) == len(loads) else None)


def _together(ranks: int, expected: int) -> str:
    if expected == 1:
        return ""
    return f", {ranks} ranks at once" if ranks == expected else f", {ranks} of {expected} ranks at once"
