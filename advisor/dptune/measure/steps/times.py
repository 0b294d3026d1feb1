"""How long a step takes: untraced from the facts, else as traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dptune.measure.steps.groups import period
from dptune.measure.steps.outliers import outliers
from dptune.measure.views import RankView, busiest
from dptune.measured import StepTime
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window

_FOREIGN = "no untraced steps: record with `dptune profile`"
_LEAST_WHOLE = 3  # windows: with fewer the last one is needed too


def step_time(
    facts: Sequence[Facts],
    views: Sequence[RankView],
    repeats: Sequence[Sequence[Facts]] = (),
    accounted_ns: int | None = None,
) -> StepTime:
    """Step times as the median over ranks of each rank's median, the quartiles likewise.

    A window with device durations is taken from those, else from host durations. Where the facts have no light window,
    its time is that of the trace's steps: on a GPU the device's windows, on a CPU the host's steps. The last window of
    a GPU lacks its tail of idle, and is left out where there are at least three others. Facts keep all their steps.
    `repeats` are the facts of further processes: the step time is then the median over all of them.

    The step time of a report is that of untraced steps. Where none was recorded it is `accounted_ns`, the
    mean step of the account: the parts of the account are of those steps, and add up to it.
    """
    untraced, light, detailed = (_durations(facts, name) for name in ("untraced", "light", "detailed"))
    if not light:
        light = [traced for view in views if (traced := _traced(view))]
    figures = {
        "untraced_median_ns": _over_ranks(untraced, 50),
        "untraced_q1_ns": _over_ranks(untraced, 25),
        "untraced_q3_ns": _over_ranks(untraced, 75),
        "light_median_ns": _over_ranks(light, 50),
        "light_q1_ns": _over_ranks(light, 25),
        "light_q3_ns": _over_ranks(light, 75),
        "detailed_median_ns": _over_ranks(detailed, 50),
    }
    again = [_over_ranks(_durations(repeat_facts, "untraced"), 50) for repeat_facts in repeats]
    others = [median_ns for median_ns in again if median_ns is not None] if untraced else []
    untraced_ns = figures["untraced_median_ns"]
    figures["time_ns"] = accounted_ns if untraced_ns is None else median([untraced_ns, *others])
    figures = {name: value or None for name, value in figures.items()}
    no_untraced = "no untraced step was recorded" if facts else _FOREIGN
    no_light = next((view.no_steps for view in views if view.no_steps), "no traced step that takes time was recorded")
    reasons = {
        "untraced_median_ns": no_untraced,
        "untraced_q1_ns": no_untraced,
        "untraced_q3_ns": no_untraced,
        "light_median_ns": no_light,
        "light_q1_ns": no_light,
        "light_q3_ns": no_light,
        "detailed_median_ns": "no window with shapes and stacks was recorded",
        "time_ns": no_light,
    }
    longest_ns, longest_wait_ns = _longest_outlier(facts)
    return StepTime(
        basis="untraced" if untraced else "traced",
        **figures,
        repeats_ns=others,
        untraced_period=max((period(steps) for steps in untraced), default=1),
        untraced_steps=max(map(len, untraced), default=0),
        untraced_outliers=max((len(outliers(steps)) for steps in untraced), default=0),
        untraced_mean_ns=median([round(sum(steps) / len(steps)) for steps in untraced]) or 0,
        longest_outlier_ns=longest_ns,
        longest_outlier_wait_ns=longest_wait_ns,
        light_steps=max(map(len, light), default=0),
        detailed_steps=max(map(len, detailed), default=0),
        missing={name: reasons[name] for name, value in figures.items() if value is None},
    )


def _longest_outlier(facts: Iterable[Facts]) -> tuple[int, int]:
    """The longest untraced step that is an outlier on some rank, and what it waited for a loader; zeros of none."""
    windows = [window for rank_facts in facts if (window := rank_facts.window("untraced"))]
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
