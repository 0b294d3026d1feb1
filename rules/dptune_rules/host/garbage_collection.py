"""Python collects garbage inside the steps, for a part of them that is worth sparing.

## What it measures

The time that the training thread spends in Python's garbage collector in steps without the profiler, as a share of
their time: in each step on the rank where it is most, because the others wait for it.

## Why it costs time

The collector looks through all objects that could be part of a cycle, and it does so whenever enough of them were made,
wherever the script then is. With millions of objects a full collection takes hundreds of milliseconds. Ranks collect at
different moments, so that each of them holds up all others.

## What to change

Collect when it suits, and on all ranks at once: `gc.disable()` before the loop, and in it
`if step % 500 == 0: gc.collect()`. Where most objects are there for good (a data set of Python lists, a large
configuration), `gc.freeze()` before the loop takes them out of every later collection.

Better, where it can be done: keep a data set in tensors or arrays, not in millions of lists and dicts.

The step saves at most what all ranks spend in it together, for where they collect at different moments, each of them
holds up the others; and no more than what of it is not computed.

## When to leave it alone

- The script makes cycles in each step that hold memory of the device: then collect more often than every 500.

## References

- gc, "Garbage Collector interface": https://docs.python.org/3/library/gc.html
- Measured: see `collections_ns` and `gc_ns` under the run folder's facts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from dptune.advice import Advice, Evidence, severity_of
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.02, "what a note is: below 2 % of a step nothing is worth changing")

RULE = Rule(
    code="DP602",
    name="garbage-collection",
    family="host",
    kind="time",
    summary="Python collects garbage inside the steps, for a part of them that is worth sparing",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to collect at chosen steps where collections take a share of the steps that is worth it."""
    run.any_facts()
    windows = {facts.rank: window for facts in run.facts if (window := facts.window("unprofiled")) and window.steps}
    windows = {rank: window for rank, window in windows.items() if len(window.gc_ns) == window.steps}
    if not windows:
        raise Missing("no steps were timed without the profiler")
    steps = list(zip(*(window.gc_ns for window in windows.values()), strict=False))
    total_ns = statistics.mean(sum(window.durations_ns[: len(steps)]) for window in windows.values())
    share = min(1.0, sum(map(max, steps)) / total_ns)
    severity = severity_of(share)
    if share < run.limit(WORTH_SHARE) or severity is None:
        return
    # At most each collection holds up all ranks by itself, those of ranks that were not recorded as well.
    ranks = max(run.measured.known("world_size") or 1, len(windows))
    most = min(1.0, sum(map(sum, steps)) / total_ns * ranks / len(windows))
    busy = run.measured.known("account")
    if busy is not None and busy.window_ns:
        most = min(most, max(share, run.unstretched(1 - busy.share("compute_ns"))))
    worst = max(windows, key=lambda rank: sum(windows[rank].gc_ns))
    window = windows[worst]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        severity=severity,
        title=f"Python collects garbage for {100 * share:.0f} % of a step: collect at chosen steps, and on all ranks "
        "at once",
        why="The collector looks through all objects whenever enough were made, and ranks do so at different moments.",
        changes=[],
        saves=run.bound(
            0.0, most, "no more than the time in the collector, of all ranks together, and no more than is not computed"
        ),
        confidence="high",
        evidence=[
            Evidence(label="in the garbage collector", value=share, unit="of a step (unprofiled)").at(
                run.measured.where("gc_idle_ns")
            ),
            *(
                [Evidence(label="full collections", value=len(window.collections_ns), unit=f"in {window.steps} steps")]
                if window.collections_ns
                else []
            ),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )
