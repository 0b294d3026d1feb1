"""How long a step takes: unprofiled from the facts, else as traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dptune.measure.steps.groups import period
from dptune.measure.steps.outliers import outliers
from dptune.measure.views import RankView, busiest
from dptune.measured import StepTime
from dptune.runfile.facts import Facts, Window

_FOREIGN = "untraced steps are recorded by `dptune profile` only"
_LEAST_WHOLE = 3  # windows: with fewer the last one is needed too


def step_time(
    facts: Sequence[Facts],
    views: Sequence[RankView],
    repeats: Sequence[Sequence[Facts]] = (),
    accounted_ns: int | None = None,
) -> StepTime:
    """Step times as the median over ranks of each rank's median, the quartiles likewise.

    A window with device durations is taken from those, else from host durations. Where the facts have no lean window,
    its time is that of the trace's steps: on a GPU the device's windows, on a CPU the host's steps. The last window of
    a GPU lacks its tail of idle, and is left out where there are at least three others. Facts keep all their steps.
    `repeats` are the facts of further processes: the step time is then the median over all of them.

    The step time of a report is that of steps without the profiler. Where none was recorded it is `accounted_ns`, the
    mean step of the account: the parts of the account are of those steps, and add up to it.
    """
    unprofiled, lean, rich = (_durations(facts, name) for name in ("unprofiled", "lean", "rich"))
    if not lean:
        lean = [traced for view in views if (traced := _traced(view))]
    figures = {
        "unprofiled_median_ns": _over_ranks(unprofiled, 50),
        "unprofiled_q1_ns": _over_ranks(unprofiled, 25),
        "unprofiled_q3_ns": _over_ranks(unprofiled, 75),
        "lean_median_ns": _over_ranks(lean, 50),
        "lean_q1_ns": _over_ranks(lean, 25),
        "lean_q3_ns": _over_ranks(lean, 75),
        "rich_median_ns": _over_ranks(rich, 50),
    }
    again = [_over_ranks(_durations(repeat_facts, "unprofiled"), 50) for repeat_facts in repeats]
    others = [median_ns for median_ns in again if median_ns is not None] if unprofiled else []
    unprofiled_ns = figures["unprofiled_median_ns"]
    figures["time_ns"] = accounted_ns if unprofiled_ns is None else median([unprofiled_ns, *others])
    figures = {name: value or None for name, value in figures.items()}
    no_unprofiled = "no untraced step was recorded" if facts else _FOREIGN
    no_lean = next((view.no_steps for view in views if view.no_steps), "no traced step that takes time was recorded")
    reasons = {
        "unprofiled_median_ns": no_unprofiled,
        "unprofiled_q1_ns": no_unprofiled,
        "unprofiled_q3_ns": no_unprofiled,
        "lean_median_ns": no_lean,
        "lean_q1_ns": no_lean,
        "lean_q3_ns": no_lean,
        "rich_median_ns": "no window with shapes and stacks was recorded",
        "time_ns": no_lean,
    }
    longest_ns, longest_wait_ns = _longest_outlier(facts)
    return StepTime(
        basis="unprofiled" if unprofiled else "traced",
        **figures,
        repeats_ns=others,
        unprofiled_period=max((period(steps) for steps in unprofiled), default=1),
        unprofiled_steps=max(map(len, unprofiled), default=0),
        unprofiled_outliers=max((len(outliers(steps)) for steps in unprofiled), default=0),
        unprofiled_mean_ns=median([round(sum(steps) / len(steps)) for steps in unprofiled]) or 0,
        longest_outlier_ns=longest_ns,
        longest_outlier_wait_ns=longest_wait_ns,
        lean_steps=max(map(len, lean), default=0),
        rich_steps=max(map(len, rich), default=0),
        missing={name: reasons[name] for name, value in figures.items() if value is None},
    )


def _longest_outlier(facts: Iterable[Facts]) -> tuple[int, int]:
    """The longest unprofiled step that is an outlier on some rank, and what it waited for a loader; zeros of none."""
    windows = [window for rank_facts in facts if (window := rank_facts.window("unprofiled"))]
    found = [
        (window.step_durations_ns[at], window.loader_wait_ns[at] if at < len(window.loader_wait_ns) else 0)
        for window in windows
        for at in outliers(window.step_durations_ns)
    ]
    return max(found, default=(0, 0))


def durations(window: Window | None) -> list[int]:
    """The step durations of a recorded window: of the device where it was timed, else of the host."""
    if window is None:
        return []
    return window.step_durations_ns


def median(values: Iterable[int]) -> int | None:
    """The median in whole nanoseconds; None of nothing."""
    listed = list(values)
    return round(float(np.median(listed))) if listed else None


def _durations(facts: Sequence[Facts], name: str) -> list[list[int]]:
    return [found for rank_facts in facts if (found := durations(rank_facts.window(name)))]


def _traced(view: RankView) -> list[int]:
    """The steps of one trace: the windows of its busiest device, else the host's own."""
    steps = busiest(view) or view.steps
    whole = [step for step in steps if not step.open_ended]
    return [step.length_ns for step in (whole if len(whole) >= _LEAST_WHOLE else steps)]


def _over_ranks(ranks: list[list[int]], percentile: int) -> int | None:
    if not ranks:
        return None
    return round(float(np.median([np.percentile(steps, percentile) for steps in ranks])))
