"""Persistent straggler: the same rank is last to most collectives.

## What it measures

How late each rank arrives at collectives which no rank leaves before the last has arrived, by aligned clocks: the rank
that is late in most steps, its lag as a share of the step, and the share that the others wait. Some rank is always
last. A rank is reported only if it is late in every step by about the same time, or if chance would make one of N equal
ranks last this often in at most one run of ten. If untraced steps also show the lag, it must be the latest rank in
three quarters of them. Otherwise ranks take turns: see `uneven-ranks`, which does not report what this rule reports.

Where CPUs compute, untraced steps also show how long a rank is busy, not waiting for another rank: the time outside of
its backward passes, and the CPU time of its thread in them. A rank that is not busier than the others by this measure
was late only in the traced steps, for example because another process ran on its core, unless a function, a range or a
call explains the lag: a sleep in a backward pass only shows in traced steps.

The cause is found by comparing ranks in the same steps: ranges named by the script, Python functions (with their line,
if the detailed window has them), operators, gaps between operators, and kernels that take longer on the late rank, each
with the share of the lag that it explains. If these explain less than half of the lag, and no part of the step
breakdown explains four fifths, the cause is unknown, and the impact is low: there is nothing to act on. The impact is
also low where ranks compute on CPU cores with as many threads, and all that differs is that the late rank takes longer
(at most twice as long) for the functions and operators that the others run too: its cores are slower or shared, and the
script is not the cause. If tensor shapes show as much work on all ranks, one function may then explain most of the lag,
as long as most of that is in one operator.

If tensor shapes show that the late rank does more of the work that all ranks do, the loader is named: replicas of one
model that draw the same number of batches differ in the number of samples per batch, or in the samples' length.

A delay before several collectives makes a rank late to each of them, but counts once.

On a busy machine a rank can be late only because other processes use its cores. The time that the late rank's training
thread waits for a core, beyond the median of the other ranks on its machine, is subtracted from its lag, up to the CPU
time of the other processes. If the remaining lag is below `warning_share`, the rank is not reported.

## Why it matters

A step ends when its slowest rank ends. The others wait in the next all-reduce for whatever takes longer on this rank.

## What to change

It depends on the cause:

- *input*: its loader is slower. Check its storage, its share of the cores, and its samples.
- *copies*, *host*: the rank runs something that no other rank runs: logging, checkpoints, evaluation "on rank 0".
- *more compute*: it runs more operations, or its operations take longer, except those of its optimizer: its samples are
  longer, or its part of the model is larger. Give all ranks batches of about equal length (sort the batches by length,
  then each rank takes every N-th: `batches[rank::N]`), or split the model evenly.
- *slower compute*: the same operations take longer, including the optimizer's. Look for other processes on its host,
  fewer threads, a device that is hot or clocked lower, or a slower card.
- *gc*: it collects garbage at another moment than the others. See `garbage-collection`.

A rank that is late because other collectives reach it later (it receives, and another rank sends) is not reported:
other rules cover these collectives.

The saving depends on the cause. More of the same work (shown by tensor shapes, if the detailed window has them) moves
to the other ranks when it is shared evenly, so the predicted step is that in which all ranks do the mean. Work that
only this rank does, or does more slowly, can be removed: the predicted step is that in which it takes the median time
of the others. Without a step model the saving is found by replaying the collectives, with the late rank's work between
them taking as long as that of the others. The upper bound is the larger of that saving and the shortest wait of any
other rank, because waiting kernels slow others down; if the steps cannot be replayed, it is the larger of the rank's
lag and the wait of the others. On CPUs the bound is the part of the step that the others spend waiting, if that is
larger: with more samples on one rank the lag was 37 % of a step, that part 43 %, and dropping those samples saved 40 %.
The bound is the whole delay, although sharing the work among N ranks saves only (N - 1) / N of it: the extra work may
also be dropped, and neither kernels nor shapes show whether it can be.

On CPUs, where no step model predicts it and the work can be removed, the saving is predicted from the time that the
rank is busy in untraced steps beyond the busiest other rank: from 0.8 times it to the upper bound.

A replay whose interval includes zero is not used as a prediction. If the cause is known and the traced steps are
shorter by `warning_share` or more without the delay, the delay itself is measured: the upper bound is then given, with
the replay's interval as the reason.

## When to leave it alone

- Pipeline parallel training, where ranks have different parts by design.

## References

- Zhang et al. 2024, "Understanding Stragglers in Large Model Training Using What-if Analysis":
  https://arxiv.org/abs/2505.05713
- Measured on two cores while other processes used 0.7 of them: of two equal ranks, one waited 23 ms for a core in each
  step of 72 ms, the other 9.5 ms. The first was 12 ms late in all 17 traced steps.
- Calibrated on public traces: of four V100 it names rank 2 in the set that was made with a straggler (1,002 ms late in
  each step), of eight H100 rank 1, which is 9 ms late in three of four steps; no finding on two V100.
- Measured with two gloo ranks: one was busy 51 % of a step longer than the other; without its delay the step took 47 %
  less time.
- Measured with two gloo ranks over a link of 200 Mbit/s: without a straggler of 50 ms a step ran 1.37 times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from dptune.advice import Advice, Evidence, Saving, impact_of
from dptune.measured import (
    LAG_CAUSES,
    LAG_CLASSES,
    ArrivalFigures,
    LagCause,
    LagDifference,
    Missing,
    StragglerFigures,
    in_ms,
)
from dptune.rule import LateLine, Rule, RunView, Threshold, late_line
from dptune_rules.known import in_parentheses
from dptune_rules.ranks.late_saving import others_wait, unsure, upper_bound, without_delay

LEAST_STEPS_SHARE = Threshold(
    "least_steps_share", 0.6, "two equal ranks are each last in half of the steps, and one of many in fewer"
)
WARNING_SHARE = Threshold("warning_share", 0.1, "the lag of healthy ranks on shared machines reaches a few per cent")
CAUSE_SHARE = Threshold(
    "cause_share", 0.8, "a cause that covers less of the lag is not the reason, or not the only one"
)
MOST_CHANCE = Threshold("most_chance", 0.1, "a rank must be late in 3 of 4 steps with 8 ranks, in 7 of 8 steps with 2")
EXPLAINED_SHARE = Threshold(
    "explained_share", 0.5, "of the lag; where the differences explain less, most of it has another cause"
)
INPUT_SHARE = Threshold("input_share", 0.05, "from here another rule covers the wait for the loader")

UNTRACED_SHARE = Threshold(
    "untraced_share",
    0.2,
    "of its lag, the part that it also has without the profiler: planted stragglers had 0.27 "
    "(slower compute, only partly visible) to 1, two healthy runs with a rank that was late only "
    "while traced 0.1 and less",
)

# What only the script makes longer, and no other process on its cores. A sleep in a backward hook is not seen without
# the profiler.
OF_SCRIPT = ("function", "range", "call")

OPERATOR = "aten::"
SAME_TIMES = 0.5  # of its time on the late rank: two threads that share a core take at most twice as long
SLOWER_MACHINE = (
    "it does the same work more slowly than they do. Check the load and the clock of its cores; no difference in the "
    "script explains the delay"
)

MOST_STRETCH = Threshold(
    "most_stretch", 1.5, "in steps that the profiler slowed more, healthy runs had lags of 60 % of a traced step"
)

RULE = Rule(
    code="DP701",
    name="late-rank",
    family="ranks",
    kind="time",
    summary="persistent straggler: the same rank is last to most collectives",
    since="0.1",
    thresholds=(
        LEAST_STEPS_SHARE,
        WARNING_SHARE,
        CAUSE_SHARE,
        EXPLAINED_SHARE,
        MOST_CHANCE,
        INPUT_SHARE,
        MOST_STRETCH,
        UNTRACED_SHARE,
    ),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the rank that is late in most steps, by how much, and what it does meanwhile."""
    if run.measured.world_size == 1:
        return
    if len(run.measured.ranks) < 2:
        raise Missing("one trace does not show which rank is late: pass the traces of all ranks")
    arrivals = {traced_rank.rank: traced_rank.arrival for traced_rank in run.measured.ranks}
    late = run.measured.known("straggler")
    if late is None:
        return  # none is later than the others, or they take turns
    if late.mean_lag_ns - run.core_wait_ns(late.rank) < run.limit(WARNING_SHARE) * run.measured.traced_step_ns:
        return  # it is hardly late, or other processes take the cores of one of equal ranks
    lag_share = late.mean_lag_ns / run.measured.traced_step_ns
    if lag_share < run.limit(WARNING_SHARE) or not run.leads(
        late, run.limit(LEAST_STEPS_SHARE), run.limit(MOST_CHANCE)
    ):
        return
    busy = run.busy_ns() or {}
    others = [ns for rank, ns in busy.items() if rank != late.rank]
    cause, covered = _cause(run, arrivals[late.rank])
    moves = cause == "more compute" if late.moves is None else late.moves
    bound = upper_bound(run, late, busy)
    saves = run.saving({"straggler.balanced" if moves else "straggler.removed": True}, bound)
    explained = late.explained_share >= run.limit(EXPLAINED_SHARE)
    gain = late.known("gain_share")
    share = saves.central_share
    if share is None:
        share = late.waiting_share if gain is None else gain
    if saves.basis == "bound" and gain:
        saves = saves.model_copy(update={"replayed_share": gain})
    least = run.limit(WARNING_SHARE) / 2
    if max(late.waiting_share, gain or 0.0) < least:
        return
    if share < least and (saves.central_share is not None or not explained):
        return
    impact = impact_of(share) or "low"
    stretch = run.measured.traced_step_ns / run.measured.recorded_step_ns
    if stretch > run.limit(MOST_STRETCH):
        raise Missing(f"traced steps took {stretch:.1f} times as long as untraced ones: the profiler makes ranks late")
    of_script = explained and late.differences[0].kind in OF_SCRIPT
    if others and not of_script and busy[late.rank] - median(others) < run.limit(UNTRACED_SHARE) * late.mean_lag_ns:
        return  # it was late while it was traced
    why = [difference.words(late.rank) for difference in late.differences[:1]] if explained else []
    why += [LAG_CAUSES[cause]] if cause and not why else []
    of_machine = _all_slower(run, late)
    sure = bool(why) and not of_machine
    why = [SLOWER_MACHINE] if of_machine and why else why
    measured_gain = late.waiting_share if gain is None else gain
    if saves.may_be_nothing and why and measured_gain >= run.limit(WARNING_SHARE):
        saves = bound.without_prediction(unsure(saves, measured_gain))
    elif saves.basis == "bound" and sure and not moves:
        saves = without_delay(run, late, busy, bound) or saves
    if cause == "communication":
        return
    if cause == "gc" and run.facts:
        return  # which has a rule of its own
    if cause == "input" and (run.measured.input.known("wait_share") or 0.0) >= run.limit(INPUT_SHARE):
        return  # most ranks wait for their loaders, this one longest
    at = None if of_machine else late_line(run.facts, late.rank, run.limit(EXPLAINED_SHARE) * late.mean_lag_ns)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact if sure else "low",
        title=_of_more_work(run, late)
        or f"Rank {late.rank} arrives {in_ms(late.lag_ns)} ms late {late.when} and holds up the others: "
        f"{why[0] if why else 'the cause is not known'}",
        why="Collectives are synchronous, so the slowest rank sets the pace."
        + (f" It spends longer than the others in `{at.function}` ({at.where})." if at else "")
        + _less_than_waited(run, late, saves),
        changes=[],
        saves=saves,
        confidence="medium" if sure else "low",
        evidence=[*_evidence(run, late, lag_share), *_causes(late, cause, covered), *_line(late.rank, at)],
        numerics="same",
        fingerprint=f"{RULE.code}:{cause or 'unknown'}",
    )


def _all_slower(run: RunView, late: StragglerFigures) -> bool:
    """Whether a rank on CPU cores does the same work as the others more slowly: its cores do that, not the script."""
    if run.measured.known("device_kind") != "cpu" or not late.differences or late.moves:
        return False
    if len({facts.device.torch_threads for facts in run.facts if facts.device}) > 1:
        return False  # with fewer threads each operator takes longer
    same_sizes = late.known("work_ratio") is not None
    return all(_only_slower(run, difference, same_sizes=same_sizes) for difference in late.differences)


def _only_slower(run: RunView, difference: LagDifference, *, same_sizes: bool) -> bool:
    """Whether the other ranks do the same for at least half as long, and nothing in it explains most of the lag.

    An operator may explain it, if all ranks compute on as many elements (`same_sizes`).
    """
    if difference.kind == "host":
        return True  # operators that all ranks run, each slower by a little
    detail_ns = difference.known("detail_rank_ns")
    if detail_ns is not None and difference.detail_others_ns < SAME_TIMES * detail_ns:
        return False
    if difference.others_ns < SAME_TIMES * difference.rank_ns:
        return False
    in_operator = detail_ns is not None and difference.detail.startswith(OPERATOR)
    return difference.share < run.limit(EXPLAINED_SHARE) or (same_sizes and in_operator)


def _less_than_waited(run: RunView, late: StragglerFigures, saves: Saving) -> str:
    """Why a replay saves less than the others wait; empty where it does not, or where nothing was replayed."""
    waited = others_wait(run, late)
    if saves.basis != "replayed" or run.unstretched(waited) <= saves.high_share:
        return ""
    return (
        f" The others wait {100 * waited:.0f} % of a step, but a replay saves less: without the delays their own "
        "host and device work sets the pace."
    )


def _of_more_work(run: RunView, late: StragglerFigures) -> str | None:
    """The title where its batches hold more than those of the others; None where that is not known, or not why."""
    dealt = run.dealt_batches(late.rank) if late.does_more else None
    if dealt is None:
        return None
    devices = [device for rank in run.measured.ranks if rank.rank == late.rank for device in rank.devices]
    steps = [step.account.compute_ns for device in devices for step in device.steps]
    computed_ns = sum(steps) * len(devices) / max(1, len(steps))
    if computed_ns * (1 - 1 / late.work_ratio) < run.limit(EXPLAINED_SHARE) * late.mean_lag_ns:
        return None
    if 2 * (dealt.samples_times - 1) >= late.work_ratio - 1:
        batches, remedy = f"{dealt.samples_times:.1f} times the samples", "batches of equal size"
    else:
        batches, remedy = "longer samples", "batches of about equal length"
    place = ", ".join(filter(None, [dealt.sampler and f"`{dealt.sampler}`", dealt.where]))
    return (
        f"Rank {late.rank} arrives {in_ms(late.lag_ns)} ms late: its batches hold {batches} "
        f"({late.work_ratio:.1f} times the work of the other ranks, by tensor shapes). Give all ranks {remedy}"
        + in_parentheses(place)
    )


def _evidence(run: RunView, late: StragglerFigures, lag_share: float) -> Iterator[Evidence]:
    """How late it is, what that costs, and where to look."""
    yield Evidence(label="mean lag", value=lag_share, unit="of a traced step", rank=late.rank).at(
        run.measured.where_late(late.rank)
    )
    unit = "of the steps" if late.late_share == 1 else "of the steps in which it is late"
    yield Evidence(label="last to arrive", value=late.steps_share, unit=unit, rank=late.rank)
    yield Evidence(label="the other ranks wait", value=others_wait(run, late), unit="of a step (mean)").at(
        run.measured.where("exposed_waiting_ns")
    )
    ratio = late.known("work_ratio")
    if ratio is not None and late.does_more:
        unit = "times that of the others, by tensor shapes"
        yield Evidence(label="work of the rank", value=ratio, unit=unit, rank=late.rank)


def _causes(late: StragglerFigures, cause: LagCause | None, covered: float) -> Iterator[Evidence]:
    """The causes of its lag, with the share that each explains."""
    for difference in late.differences:
        yield Evidence(
            label=f"explained by {difference.subject}",
            value=difference.share,
            unit=f"of rank {late.rank}'s lag",
        )
    if cause:
        yield Evidence(label=LAG_CLASSES[cause], value=covered, unit=f"of rank {late.rank}'s lag")


def _line(rank: int, at: LateLine | None) -> Iterator[Evidence]:
    """The line of the script at which it spends longer than the other ranks."""
    if at is not None:
        unit = "ms per step, beyond the median of the other ranks"
        yield Evidence(label=f"longer at {at.where}", value=at.extra_ns / 1e6, unit=unit, rank=rank)


def _cause(run: RunView, arrival: ArrivalFigures) -> tuple[LagCause | None, float]:
    """What it spends more time on, and how much of the lag that covers; none where that is too little, or not known."""
    cause: LagCause | None = arrival.known("cause")
    covered = arrival.known("cause_share") or 0.0
    explained = cause != "unexplained" and covered >= run.limit(CAUSE_SHARE)
    return (cause if explained else None), covered
