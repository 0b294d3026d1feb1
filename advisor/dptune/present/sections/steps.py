"""How long a step takes, untraced and in each traced window."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import CUT_SHORT, Measured, StepBasis, StepTime
from dptune.present.amounts import Hole, milliseconds, number, percent, several, shown
from dptune.present.lines import Line, heading, labelled, wrapped

_WINDOWS = (
    ("untraced", "untraced_median_ns", "untraced_steps"),
    ("light", "light_median_ns", "light_steps"),
    ("detailed", "detailed_median_ns", "detailed_steps"),
)
_SPREAD = ("untraced_median_ns", "light_median_ns")
_BASES: dict[StepBasis, str] = {
    "profiler_step": "marked by the profiler",
    "optimizer": "from the end of one optimizer step to the end of the next",
    "repeating": "repetitions in the order of operations, since nothing marks steps",
}


def steps(report: Report, width: int) -> Iterator[Line]:
    """The median step of each window; the one the report speaks of is marked."""
    step = report.measured.step
    yield from heading("Step time (median over ranks)", width)
    for window, median, count in _WINDOWS:
        speaks = step.basis == ("untraced" if window == "untraced" else "traced" if window == "light" else "")
        text = _window(step, median, getattr(step, count))
        if speaks and not step.repeats_ns and not text.startswith("not measured"):
            text += " (the step time of this report)" if step.basis == "untraced" else _mean(step)
        yield from labelled(window, text, width, column=22, indent="  ")
        if speaks and step.repeats_ns:
            yield from labelled("in other processes", _again(step), width, column=22, indent="  ")
    for sentence in _which_steps(report.measured):
        yield from wrapped(sentence, width, "  ", role="dim")


def _which_steps(measured: Measured) -> Iterator[str]:
    """What the traced steps are, how many, and which of them no figure is of."""
    steps = measured.known("steps")
    if steps is None:
        return
    counts = set(steps.by_rank.values())
    many = several(max(counts), "traced step") if len(counts) == 1 else f"{min(counts)} to {max(counts)} traced steps"
    known = steps.known("similarity")
    sure = "" if known is None else f" {percent(known)} of their operations are the same."
    where = " on each rank" if len(steps.by_rank) > 1 else ""
    yield f"Shares in this report are of {many}{where}, {_BASES[steps.basis]}.{sure}"
    for step in steps.set_aside:
        on = "" if step.rank is None else f" on rank {step.rank}"
        yield (
            f"Step {step.number} is excluded from all figures: it took {milliseconds(step.length_ns / 1e6)}{on}, "
            f"{number(step.of_usual)}x the others{f', {step.spent}' if step.spent else ''}"
            f"{' (warm-up)' if step.warm_up else ''}."
        )
    if steps.groups:
        each = "; ".join(
            f"step{'s' if len(group.numbers) > 1 else ''} {', '.join(map(str, group.numbers))} "
            f"take{'' if len(group.numbers) > 1 else 's'} {milliseconds(group.mean_ns / 1e6)}"
            for group in steps.groups
        )
        period = f"in time, with a period of {steps.period}"
        how = "in the operations they launch" if steps.grouped_by == "operations" else period
        yield f"Steps alternate {how}: {each} (means)."
    for left in steps.surplus:
        yield f"Step {left} is excluded from all figures: it does not complete a period of {steps.period} steps."
    for cut in steps.cut_short:
        on = " on the ranks that end with it" if len(steps.cut_short) > 1 else ""
        yield f"Step {cut} is excluded from all figures{on}: {CUT_SHORT}."
    if measured.step.basis == "traced" and measured.step.light_steps < max(counts):
        yield "The median excludes the last step: no next step was recorded, so it ends with its last operation."
    if measured.step.untraced_outliers:
        many = several(measured.step.untraced_outliers, "untraced step")
        are = "it is" if measured.step.untraced_outliers == 1 else "they are"
        yield f"{many} took much longer than the others{_longest(measured.step)}; {are} included in the median."


def _longest(step: StepTime) -> str:
    """How long the longest of them took, and what of it was waiting for the loader; empty where it is not known."""
    if not step.longest_outlier_ns:
        return ""
    waited_ns = step.longest_outlier_wait_ns
    waited = f", {milliseconds(waited_ns / 1e6)} of it waiting for the data loader" if waited_ns else ""
    return f" (up to {milliseconds(step.longest_outlier_ns / 1e6)}{waited})"


def _window(step: StepTime, median: str, count: int) -> str:
    time = shown(lambda: int(getattr(step, median)), lambda ns: milliseconds(ns / 1e6))
    if isinstance(time, Hole):
        return str(time)
    return f"{time}, {several(count, 'step')}{_half(step, median) if count > 1 else ''}"


def _mean(step: StepTime) -> str:
    """Of traced steps the report speaks of the mean, which the parts of a step add up to."""
    mean = step.known("time_ns")
    return "" if mean is None else f"; mean {milliseconds(mean / 1e6)} (the step time of this report)"


def _again(step: StepTime) -> str:
    times = ", ".join(number(ns / 1e6) for ns in step.repeats_ns)
    return f"{times} ms; the median of all, {milliseconds(step.time_ns / 1e6)}, is the step time of this report"


def _half(step: StepTime, median: str) -> str:
    if median not in _SPREAD:
        return ""
    low, high = (step.known(median.replace("median", quartile)) for quartile in ("q1", "q3"))
    if low is None or high is None:
        return ""
    return f", interquartile range {number(low / 1e6)}-{number(high / 1e6)} ms"
