"""Whether other processes slowed the recorded steps so much that their times are no basis for advice.

Presence of other processes is no harm: on a machine with free cores, or where they run at low priority, the job gets
its cores all the same. What counts is the CPU time that the job needed and waited for while others ran (see
`dptune.measure.load`), and whether the steps show it. Times block advice where others withheld

- three quarters of the CPU time that the job needed, or
- half of it, and the steps scatter, drift, or differ between windows by more than tracing explains.

Where half of it was withheld and the steps do not show it, there is advice, with medium confidence at most, and data
quality reports by what factor steps may have been slowed.

Steps that differ many-fold within one recording block it, too, unless others are known to have withheld next to
nothing: then it is the script that changes, as with sequences that grow.

Recorded on two cores with others at work: scripts of two ranks from which 0.40 and 0.53 was withheld had steady steps
and the right advice; at 0.81 a planted stall was no longer the largest delay; at 0.86 a training step of a small GPT
took 2,900 ms, and its optimizer 422.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dptune.advise.limits import milliseconds, percent
from dptune.finding import Finding
from dptune.measured import LoadFigures, Measured, digits, in_ms
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window

WORTH_NAMING = 0.05  # of the CPU time needed: below it two identical runs differ by more
LARGE = 0.5  # steps took twice as long, had they computed all the time; one busy process beside two threads is less
MOST = 0.75  # four times as long
SCATTERED = 0.3  # interquartile range, of the median; 0.1 is noisy, 0.02 to 0.05 usual
MANY_FOLD = 3.0  # no profiler makes steps quicker, and no healthy run slows down like that
_APART = 1.5  # of quarters that are apart: more than the usual drift
_LEAST_STEPS = 6  # of which each third has two
_LEAST_NS = 1_000_000_000  # of all of them: within less, one interruption or the end of warm-up changes steps many-fold

BUSY, UNSTEADY, SHARED = "machine-busy", "steps-unsteady", "machine-shared"


def findings(measured: Measured, facts: Sequence[Facts]) -> Iterator[Finding]:
    """What other processes withheld, and steps that differ many-fold."""
    loads = [figures for figures in measured.known("load") or [] if figures.known("withheld_share") is not None]
    worst = max(loads, key=lambda load: load.withheld_share, default=None)
    withheld = 0.0 if worst is None else worst.withheld_share
    taken = max((window.taken_share or 0.0 for rank in facts for window in rank.windows), default=0.0)
    apart = many_fold(facts)
    shown = apart or unsteady(measured, facts)
    if worst is not None and (withheld >= MOST or (withheld >= LARGE and shown)):
        said = f". {shown[:1].upper()}{shown[1:]}" if shown else ""
        yield Finding(code=BUSY, level="unjudgeable", text=f"{_words(worst)}{said}")
        return
    quiet = worst is not None and withheld < WORTH_NAMING and taken < WORTH_NAMING
    if apart and not quiet:
        why = "no load of other processes was measured" if worst is None else _words(worst)
        yield Finding(code=UNSTEADY, level="unjudgeable", text=f"{apart}; {why}")
        return
    if apart:
        yield Finding(code=UNSTEADY, level="info", text=f"{apart}, although other processes used hardly any CPU time")
    if worst is not None and withheld >= LARGE:
        times = f"up to {1 / (1 - withheld):.1f} times as long as on an otherwise idle machine"
        text = f"{_words(worst)}: steps may have taken {times}"
        yield Finding(code=SHARED, level="partial", text=text)
    elif worst is not None and withheld >= WORTH_NAMING:
        yield Finding(code=SHARED, level="info", text=_words(worst))


def _words(load: LoadFigures) -> str:
    cores = f"{digits(load.other_cores)} of {load.cores} {'core' if load.cores == 1 else 'cores'}"
    where = f"host {load.host}" if load.host else "the machine"
    return (
        f"other processes used {cores} on {where} during recording and withheld up to {percent(load.withheld_share)} "
        f"of the CPU time this job needed"
    )


def unsteady(measured: Measured, facts: Sequence[Facts]) -> str:
    """The sign in step times that something slowed them, as text; empty if there is none."""
    step = measured.step
    low, middle, high = (step.known(f"untraced_{part}_ns") for part in ("q1", "median", "q3"))
    if low is None or middle is None or high is None:
        return ""
    if step.untraced_period == 1 and high - low > SCATTERED * middle:
        return f"step times vary widely: interquartile range {in_ms(low)} to {milliseconds(high)}"
    light = step.known("light_median_ns")
    if light is not None and light * _APART < middle:
        return f"traced steps were faster ({milliseconds(light)}) than untraced ones ({milliseconds(middle)})"
    if light is not None and light > MANY_FOLD * middle:
        return f"traced steps took {light / middle:.1f} times as long as untraced ones"
    return next((words for rank in facts if (words := _drift(rank, _APART))), "")


def many_fold(facts: Sequence[Facts]) -> str:
    """Steps of one recording that differ many-fold and that neither loader nor garbage collection explains, in words.

    Traced steps may be slower than others, by far where operators are small, but never quicker.
    """
    for rank in facts:
        untraced, traced = (_working_ns(rank.window(name)) for name in ("untraced", "light"))
        if _enough(untraced) and traced and apart(untraced, traced, MANY_FOLD):
            times = (
                f"{milliseconds(float(np.median(untraced)))} untraced, then {milliseconds(float(np.median(traced)))}"
            )
            return f"step times of rank {rank.rank} changed many-fold during recording: {times} traced"
        if words := _drift(rank, MANY_FOLD):
            return words
    return ""


def _drift(rank: Facts, times: float) -> str:
    """The first and last third of the untraced steps, where they are apart."""
    steps = _working_ns(rank.window("untraced"))
    third = len(steps) // 3
    if not _enough(steps):
        return ""
    first, last = steps[:third], steps[-third:]
    if not apart(first, last, times) and not apart(last, first, times):
        return ""
    medians = (milliseconds(float(np.median(part))) for part in (first, last))
    return f"step times of rank {rank.rank} changed during recording: {' at first, '.join(medians)} at the end"


def _enough(steps: Sequence[int]) -> bool:
    return len(steps) >= _LEAST_STEPS and sum(steps) >= _LEAST_NS


def apart(longer: Sequence[int], shorter: Sequence[int], times: float) -> bool:
    """Whether most of some steps took `times` as long as most of others: lower quartile against upper quartile."""
    return bool(np.percentile(longer, 25) >= times * np.percentile(shorter, 75))


def _working_ns(window: Window | None) -> list[int]:
    """Each step less what it waited for its loader and collected garbage: those have causes in the script."""
    if window is None:
        return []
    spent = [window.loader_wait_ns, window.gc_ns]
    known = [each for each in spent if len(each) == window.steps]
    working_ns = [ns - sum(each[at] for each in known) for at, ns in enumerate(window.step_durations_ns)]
    return [max(0, ns) for ns in working_ns]
