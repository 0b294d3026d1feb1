"""How long a step waits for its data loader, and for how many batches."""

from __future__ import annotations

import statistics

from dptune.advice import Change, Saving
from dptune.rule import RunView

_SAME = 1e-6  # of a step: predictions are whole nanoseconds


def device_idle(run: RunView, host: float, longest: float) -> tuple[float, float]:
    """Of these waits of the host, in the median and on the rank that waits longest, the part that holds up the device.

    A GPU that has work queued computes on while the script waits. On a CPU the script is what computes.
    """
    if not host or run.measured.known("account") is None or run.measured.known("device_kind") == "cpu":
        return host, longest
    idle = min(host, run.measured.step_share("input_idle_ns"))
    of_longest = longest * idle / host
    if any(rank.devices for rank in run.measured.ranks):
        of_longest = max(of_longest, run.unstretched(run.most_share("input_idle_ns")))
    return idle, min(longest, of_longest)


def longest_wait(run: RunView) -> float:
    """Share of the untraced steps in which some rank waits: per step the longest wait, for the others wait for it."""
    windows = [window for window in (facts.window("untraced") for facts in run.facts) if window and window.steps]
    if not windows or any(len(window.loader_wait_ns) != window.steps for window in windows):
        return 0.0
    usual = set.intersection(*(set(window.usual_steps or range(window.steps)) for window in windows))
    waited: int = sum(max(window.loader_wait_ns[at] for window in windows) for at in usual)
    took: int = min(sum(window.durations_ns[at] for at in usual) for window in windows)
    return min(1.0, waited / took) if took else 0.0


def batches_per_step(run: RunView) -> int:
    """Batches that a step draws: the median of the untraced steps of the first rank; 1 where that is not known."""
    window = run.facts[0].window("untraced") if run.facts else None
    return max(1, statistics.median_low(window.loader_batches) if window and window.loader_batches else 1)


def has_workers(run: RunView) -> bool | None:
    """Whether the loader of a trace that dptune did not record has workers; None where that is not known.

    The profiler slows the training process, not the workers, so untraced steps wait for them at least as long.
    """
    inferred = None if run.facts else run.measured.known("inferred")
    if inferred is None or not inferred.facts.loaders:
        return None
    return "loaders.num_workers" not in inferred.confidence


def script_loads(run: RunView) -> bool:
    """Whether the training process prepares every batch itself: earlier host work then delays the next batch."""
    if not run.facts:
        return has_workers(run) is False
    loaders = run.facts[0].loaders
    return bool(loaders) and all(loader.num_workers == 0 for loader in loaders)


def inferred_workers(run: RunView) -> int | None:
    """The number of workers by the distance of long waits in a trace that dptune did not record; None if not known."""
    found = run.measured.known("inferred") if has_workers(run) else None
    values = (trait.value for trait in found.traits if trait.name == "DataLoader workers") if found else ()
    number = next((value.partition(":")[0] for value in values), "")
    return int(number) if number.isdecimal() else None


def of_trace(run: RunView, workers: int, bound: Saving, hidden: float) -> tuple[list[Change], Saving]:
    """The first workers of a trace that dptune did not record: the change, and what a replay with them saves.

    No more than the wait, and from what is left of it if the profiler adds as much as it can. `hidden`: the part of
    the wait, as a share of the step, in which the device computes.
    """
    changes = [Change(knob="loader.num_workers", now=0, then=workers)]
    saves = run.saving(changes, bound)
    if saves.basis == "bound":
        return [], saves
    high = min(saves.high_share, bound.high_share)
    low = min(saves.low_share, max(0.0, run.measured.input.least_share - hidden), high)
    if bound.high_share <= saves.high_share + _SAME:
        how = f"{saves.how}; the saving is limited to the wait during which the device is idle"
        saves = saves.model_copy(update={"how": how})
    return changes, saves.with_shares(low, high)
