"""Peaks of the CPU of a recorded rank, as its ranks measured them after the last window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dptune.measure.efficiency.counting import element_type
from dptune.measure.efficiency.peaks import Peak
from dptune.measure.load import withheld_share
from dptune.runfile.cpu_peak import CpuPeakFacts
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord

NOT_RECORDED = "a torch.profiler trace does not show the peak of a CPU: `dptune profile` measures it"
NOT_WANTED = "the recording was made with `--no-cpu-peak`, so the peak of the CPU was not measured: record without it"
TOO_OLD = "the recording is from an older version of dptune and has no measured peak of the CPU: record again"
NOT_MEASURED = (
    "rank {} did not measure the peak of the CPU, which it does when its detailed window is complete: record again and "
    "let the script run until the recording ends"
)
_MOST_FLOPS_PER_S = 1e15  # which no CPU reaches
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


def measured_peaks(facts: Mapping[int, Facts], rank: int, record: RunRecord | None) -> MeasuredPeaks | str:
    """What the rank measured, or why there is nothing. `facts`: of all ranks; `record`: None where it was lost."""
    if rank not in facts:
        return NOT_RECORDED
    found = facts[rank].cpu_peak
    if found is None or not found.dtypes:
        return _why_none(facts, rank, record)
    here = [each for each in facts.values() if each.host == facts[rank].host]
    threads = f"{found.threads} thread{'' if found.threads == 1 else 's'}"
    by_dtype = {
        element_type(each.dtype): Peak(
            each.flops_per_s,
            f"measured after the recorded steps: products of {each.width:,} x {each.width:,} matrices, {threads}"
            + _together(_at_once(found, here), found.expected),
        )
        for each in found.dtypes
        if 0 < each.flops_per_s < _MOST_FLOPS_PER_S
    }
    loads = [each.cpu_peak.load if each.cpu_peak is not None else None for each in here]
    counted = [each for each in loads if each is not None]
    return MeasuredPeaks(by_dtype, withheld_share(here, counted) if len(counted) == len(loads) else None)


def _why_none(facts: Mapping[int, Facts], rank: int, record: RunRecord | None) -> str:
    if record is not None and record.cpu_peak is False:
        return NOT_WANTED
    measured = any(each.cpu_peak is not None for each in facts.values())
    return TOO_OLD if record is not None and record.cpu_peak is None and not measured else NOT_MEASURED.format(rank)


def _at_once(found: CpuPeakFacts, here: Sequence[Facts]) -> int:
    """How many ranks of the host measured: not those that came, and then ended without a peak.

    `here`: the ranks of the host whose facts were read. Of the others only their coming is known.
    """
    measured = sum(each.cpu_peak is not None and bool(each.cpu_peak.dtypes) for each in here)
    return min(found.ranks, measured + max(0, found.expected - len(here)))


def _together(ranks: int, expected: int) -> str:
    if expected == 1:
        return ""
    return f", {ranks} ranks at once" if ranks == expected else f", {ranks} of {expected} ranks at once"
