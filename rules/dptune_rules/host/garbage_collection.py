"""Garbage-collection pauses inside the training step.

## What it measures

The time that the training thread spends in Python's garbage collector in untraced steps, as a share of their time: in
each step on the rank that spends most, because the others wait for it. Calls of `gc.collect()` are recorded with their
line.

## Why it matters

The collector scans all objects that could be part of a cycle whenever enough new ones exist, wherever the script is.
With millions of objects a full collection takes hundreds of milliseconds. Ranks collect at different moments, and each
of them holds up all others.

## What to change

Collect at chosen steps, and on all ranks at once: `gc.disable()` before the loop, and in it `if step % 500 == 0:
gc.collect()`. Where most objects live until the end (a data set of Python lists, a large configuration), `gc.freeze()`
before the loop takes them out of every later collection.

If the script calls `gc.collect()` in many steps, the title names the line: remove the call, or make it every few
hundred steps. If a library makes the call, look for its setting.

Where the training process prepares its own batches, collections run during that, and preparing takes longer than
collecting, the loader makes the objects: follow the input rules first. The impact is then medium at most.

If possible, keep the data set in tensors or arrays, not in millions of lists and dicts.

On a CPU the saving is predicted for the mean step. Lower end: 0.8 times what the busiest rank saves, because some
collections remain. Upper end: the collection time of all ranks together, because ranks that collect at different
moments hold each other up; where a line makes all ranks collect in the same steps, the longest. Otherwise that sum is
an upper bound, limited to the time in which the busiest rank does not compute.

## When to leave it alone

- The script makes cycles in each step that hold device memory: collect more often than every 500 steps.

## References

- gc, "Garbage Collector interface": https://docs.python.org/3/library/gc.html
- Measured: see `collections_ns` and `gc_ns` under the run folder's facts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

HARDLY = 0.1  # of the longest collection: the rest of a step is young objects
SAME = 0.5  # of the longest on another rank: a rank collects in the same step
IN_LOADER = 0.8  # of the collection time; the rest is young objects, collected wherever the script is
OF_LOADER = (
    "The collections run while the data loader prepares batches. Fewer objects per batch mean fewer collections: fix "
    "the loader first."
)

RULE = Rule(
    code="DP602",
    name="garbage-collection",
    family="host",
    kind="time",
    summary="garbage-collection pauses inside the training step",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to collect at chosen steps where collections take a share of the steps that is worth it."""
    run.any_facts()
    took_ns, collected_ns = _by_step(run)
    mean_steps = [sum(rank_durations_ns) / len(rank_durations_ns) for rank_durations_ns in took_ns]
    total_ns = sum(mean_steps)
    share = min(1.0, sum(map(max, collected_ns)) / total_ns)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    # At most each collection holds up all ranks by itself, those of ranks that were not recorded as well.
    ranks = max(run.measured.known("world_size") or 1, len(took_ns[0]))
    most = min(1.0, sum(map(sum, collected_ns)) / total_ns * ranks / len(took_ns[0]))
    if run.measured.known("account") is not None:
        # What a traced step computes is computed in each, whether that step held a collection or not.
        times = statistics.median(mean_steps) / statistics.mean(mean_steps)
        most = min(most, max(share, 1 - times * (1 - run.unstretched(1 - run.most_share("compute_ns")))))
    call = run.collecting_line()
    of_loader = call is None and _in_loader(run) and share <= (run.measured.input.known("wait_share") or 0.0)
    by = f" through {call.through}" if call and call.through else ""
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="medium" if of_loader and impact == "high" else impact,
        title=f"Python garbage collection takes {100 * share:.0f} % of a step: "
        + (
            f"{call.where} calls gc.collect(){by} {call.calls} times in {call.steps} steps. Remove it, or call it "
            "every few hundred steps"
            if call
            else "collect at chosen steps, on all ranks at once"
        ),
        why="Each gc.collect() call scans all objects that the garbage collector tracks."
        if call
        else "The collector scans all objects once enough new ones exist, and ranks do so at different moments.",
        changes=[],
        saves=_predicted(run)
        or run.bound_of_all(
            most,
            "the collection time of all ranks together, or the time without compute, whichever is smaller",
            mean_steps,
        ),
        confidence="medium" if of_loader else "high",
        evidence=[
            Evidence(label="in the garbage collector", value=share, unit="of a step (untraced)").at(
                run.measured.where("gc_idle_ns")
            ),
            *(
                [Evidence(label=f"gc.collect() in {call.where}", value=call.calls, unit=f"calls in {call.steps} steps")]
                if call
                else []
            ),
            *_full(run),
        ],
        numerics="same",
        watch=OF_LOADER if of_loader else "",
        fingerprint=RULE.code,
    )


def _predicted(run: RunView) -> Saving | None:
    windows = {facts.rank: facts.window("untraced") for facts in run.facts}
    spent_ns = {rank: window.gc_ns for rank, window in windows.items() if window and len(window.gc_ns) == window.steps}
    at_once = run.collecting_line() is not None and _in_the_same_steps([*spent_ns.values()])
    how = "the time in the garbage collector, "
    how += "in the same steps on all ranks" if at_once else "from what the busiest rank saves to the sum over all ranks"
    return run.removed_of_steps(spent_ns, how, in_turn=not at_once)


def _in_the_same_steps(spent_ns: Sequence[Sequence[int]]) -> bool:
    """Whether all ranks collect in the same steps, for about as long: a line that asks for it holds up none twice."""
    by_step = list(zip(*spent_ns, strict=False))
    longest = max(map(max, by_step), default=0)
    return all(min(each) >= SAME * max(each) for each in by_step if max(each) > HARDLY * longest)


def _by_step(run: RunView) -> tuple[list[list[int]], list[list[int]]]:
    """How long each step that all ranks timed took, and how long of that each collected: by step, then by rank, ns."""
    timed = [window for facts in run.facts if (window := facts.window("untraced")) and window.steps]
    windows = [window for window in timed if len(window.gc_ns) == window.steps]
    if not windows:
        raise Missing("no untraced steps were timed")
    first = max(window.first_step for window in windows)
    until = min(window.first_step + window.steps for window in windows)
    if first >= until:
        raise Missing("the ranks timed different untraced steps")
    numbers = range(first, until)
    took_ns = [[window.durations_ns[number - window.first_step] for window in windows] for number in numbers]
    collected_ns = [[window.gc_ns[number - window.first_step] for window in windows] for number in numbers]
    return took_ns, collected_ns


def _in_loader(run: RunView) -> bool:
    """Whether the training thread collects while it waits for its loader, which then makes the objects itself.

    A step with a long collection waits longer for the loader than the median step: by most of the collection.
    """
    windows = [window for facts in run.facts if (window := facts.window("untraced")) and window.gc_ns]
    collected = inside = 0.0
    for window in windows:
        if len(window.gc_ns) != window.steps or len(window.loader_wait_ns) != window.steps:
            return False
        usual_wait, usual = statistics.median(window.loader_wait_ns), statistics.median(window.gc_ns)
        for waited, in_gc in zip(window.loader_wait_ns, window.gc_ns, strict=True):
            if in_gc > 2 * usual:
                collected += in_gc - usual
                inside += min(max(0.0, waited - usual_wait), in_gc - usual)
    return collected > 0 and inside >= IN_LOADER * collected


def _full(run: RunView) -> Iterator[Evidence]:
    """How many full collections the rank made that collected longest."""
    windows = [window for facts in run.facts if (window := facts.window("untraced"))]
    window = max(windows, key=lambda rank_window: sum(rank_window.gc_ns))
    if window.collections_ns:
        yield Evidence(label="full collections", value=len(window.collections_ns), unit=f"in {window.steps} steps")
