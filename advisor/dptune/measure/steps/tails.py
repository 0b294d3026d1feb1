"""The last step without the wait before the next: left out where the shares of a short trace would be off by it.

The window of the last step ends with its last operation, for what comes next was not recorded. It lacks the time until
the first operation of a next step: the rest of the step on the host, and what other steps take from then on. Where the
device still worked off what was queued by then, it lacks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from dptune.measure.views import RankView, busiest, without

_LEAST_WHOLE = 2  # windows: with fewer the last one is needed too
_OFF_SHARE = 0.01  # of all windows of a rank: what the last may lack


def cut_short(views: Sequence[RankView]) -> tuple[list[RankView], list[int]]:
    """The ranks without a last step that lacks its trailing wait, and the number of that step, if any.

    The median over the ranks that end with it says how much it lacks.
    """
    last = max((windows[-1].number for own in views if (windows := busiest(own))), default=None)
    ending = [own for own in views if (windows := busiest(own)) and windows[-1].number == last]
    if last is None or median(map(_lacking_share, ending)) <= _OFF_SHARE:
        return list(views), []
    return [without(own, {last}) for own in views], [last]


def _lacking_share(view: RankView) -> float:
    """What the last window lacks, as a share of all."""
    windows = busiest(view)
    if not windows[-1].open_ended or len(windows) <= _LEAST_WHOLE:
        return 0.0
    begun = {step.number: step.start_ns for step in view.steps}
    ended = {step.number: step.end_ns for step in view.steps}[windows[-1].number]
    usual = median(window.start_ns - begun[window.number] for window in windows[1:])
    return max(0.0, ended + usual - windows[-1].end_ns) / sum(window.length_ns for window in windows)
