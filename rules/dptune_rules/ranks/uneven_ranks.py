"""Rotating straggler: uneven work across ranks.

## What it measures

Time that ranks wait in collectives, as a share of the step, where no rank is last more often than chance explains (of
two ranks, one is always last in half of the steps). `late-rank` has no finding there, and this rule has none where
`late-rank` does.

## Why it matters

A step takes as long as its slowest rank. Where samples differ in cost (sentences, images, graphs of all sizes), each
step has a slowest rank, and the mean over steps of the slowest rank is above the mean of all ranks.

## What to change

- Batches of equal cost: sort by length and draw batches from neighbours; limit batches by tokens, not by samples.
- Fewer synchronization points: accumulate gradients with `no_sync`, so that costs even out over micro-batches.
- If the data is not the cause: collect garbage on all ranks at once (`garbage-collection`), and pin the processes of
  one host to separate cores.

Where the shapes of tensors show that a late rank has more of the same work, the prediction gives each rank
the mean work of all. Otherwise the saving is an upper bound: that waiting, or the delay of each step's latest
rank, whichever is larger. In the median step the latest rank must be late by the same share: on two cores that was 0 to
9 % in healthy runs of two ranks, and 65 % with uneven work. Ranks that share cores are not compared.

Where the mean over all ranks is below the threshold, most of the untraced steps must also show a late rank.

Without different shapes, the recording does not show the cause, and no cause is stated.

The time that other processes make a rank wait for a core is subtracted from the delay of the latest rank. The rule is
skipped if the rest is below the threshold.

## When to leave it alone

- Ranks on one small machine that share its cores: they are late because others run.
- The first traced steps: ranks start to record at different moments.
- Work that differs between ranks on purpose, for example layers dropped at random.

## References

- Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination": https://arxiv.org/abs/2107.02027
- The impact is medium at most, because the change that evens the work out is not known. No finding on the public traces
  of several GPUs, which have one rank that is late in most steps, or none that matters.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator

from dptune.advice import Advice, Evidence, impact_of
from dptune.measured import Missing, in_ms
from dptune.rule import LEADING, Rule, RunView, Threshold
from dptune_rules.known import known

WORTH_SHARE = Threshold("worth_share", 0.15, "healthy ranks that share two cores wait up to 12 % for each other")
MOST_STEPS_SHARE = Threshold("most_steps_share", 0.6, "if a rank is late in more of the steps, `late-rank` reports it")
MOST_CHANCE = Threshold(
    "most_chance", 0.1, "if equal ranks would be late in that number of steps more often than this, no rank stands out"
)
MOST_NAMED = 3  # ranks
MORE_WORK = "By the shapes of their tensors, the late ranks do more of the same work: their batches are uneven."
UNKNOWN = "The recording does not show why."
EQUAL_BATCHES = "Form batches of equal cost: sort samples by length, or limit a batch by tokens in place of samples."
COMPARE = "Compare what the ranks do in these steps: `dptune report --section ranks`."

MOST_STRETCH = Threshold(
    "most_stretch", 1.5, "in steps that the profiler slowed more, healthy runs had lags of 60 % of a traced step"
)

RULE = Rule(
    code="DP702",
    name="uneven-ranks",
    family="ranks",
    kind="time",
    summary="rotating straggler: uneven work across ranks",
    since="0.1",
    thresholds=(WORTH_SHARE, MOST_STEPS_SHARE, MOST_CHANCE, MOST_STRETCH),
)


def check(run: RunView) -> Iterator[Advice]:
    """Say what waiting for changing ranks costs."""
    if run.measured.world_size == 1:
        return
    if len(run.measured.ranks) < 2:
        raise Missing("one trace does not show which rank is late: pass the traces of all ranks")
    ranks = len(run.measured.ranks)
    waiting = run.measured.share("exposed_waiting_ns")
    share = waiting * ranks / (ranks - 1)  # the latest rank of a step waits for none
    if share < run.limit(WORTH_SHARE):
        return
    arrivals = {traced_rank.rank: traced_rank.arrival for traced_rank in run.measured.ranks}
    late = run.measured.known("straggler")
    untraced = run.late_untraced(0 if late is None else late.lag_ns)
    if waiting < run.limit(WORTH_SHARE) and not untraced:
        return  # of all ranks, as healthy ones wait in a few traced steps
    if late is not None and run.leads(late, run.limit(MOST_STEPS_SHARE), run.limit(MOST_CHANCE)):
        return
    by_step: dict[int, int] = defaultdict(int)
    latest: dict[int, int] = {}
    for rank, arrival in arrivals.items():
        for step in arrival.steps:
            if step.lag_ns > by_step[step.number]:
                by_step[step.number], latest[step.number] = step.lag_ns, rank
    if not latest:
        return  # who comes last is below what the clocks tell
    _refuse_shared_cores(run)
    usual_ns = statistics.median(by_step.values())
    if usual_ns / run.measured.traced_step_ns < run.limit(WORTH_SHARE):
        return  # no rank is late by much in the median step: short waits in many collectives are not uneven work
    withheld_ns = run.longest_core_wait_ns()
    if (usual_ns - withheld_ns) / run.measured.traced_step_ns < run.limit(WORTH_SHARE):
        raise Missing(
            f"other processes make a rank wait up to {in_ms(withheld_ns)} ms per step for a core, and ranks are "
            f"only {in_ms(usual_ns)} ms late"
        )
    stretch = run.measured.traced_step_ns / run.measured.recorded_step_ns
    if stretch > run.limit(MOST_STRETCH):
        raise Missing(f"traced steps took {stretch:.1f} times as long as untraced ones: the profiler makes ranks late")
    most = max(share, statistics.mean(by_step.values()) / run.measured.traced_step_ns)
    bound = run.bound(
        0.0,
        run.unstretched(most),
        "the delay of each step's latest rank, or the wait for it, whichever is larger",
    )
    moves = late is not None and bool(late.moves)
    saves = run.saving({"straggler.balanced": True}, bound) if moves else bound
    steps = untraced or list(latest.values())
    turns = Counter(steps).most_common(MOST_NAMED)
    rank, count = turns[0]
    if count >= LEADING * len(steps):  # they do not take turns
        if untraced:
            return  # it is one rank, and not that which was late while it was traced
        raise Missing(
            f"rank {rank} is late in {count} of {len(steps)} traced steps, too few to know whether it is the "
            f"straggler: record at least 10 (`--light 10`, or `active=10` in torch.profiler's schedule)"
        )
    who = ", ".join(f"rank {rank} in {count}" for rank, count in turns)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact_of(saves.central_share) or "low" if saves.central_share is not None else "medium",
        title=f"Ranks take turns being late, by {in_ms(usual_ns)} ms in the median step ({who} of "
        f"{len(untraced or by_step)} steps): the others wait for {100 * share:.0f} % of a step",
        why="The slowest rank sets the pace, and it is a different one from step to step. "
        + (MORE_WORK if moves else UNKNOWN),
        changes=[],
        remedy=EQUAL_BATCHES if moves else COMPARE,
        saves=saves,
        confidence="medium" if saves.central_share is not None else "low",
        evidence=[
            Evidence(label="waiting for the last rank", value=share, unit="of a step").at(
                run.measured.where("exposed_waiting_ns")
            ),
            *(_batches(run) if moves else []),
            *(
                Evidence(
                    label="late, in the steps in which it is last",
                    value=statistics.median(by_step[step] for step, last in latest.items() if last == rank) / 1e6,
                    unit="ms",
                    rank=rank,
                ).at(run.measured.where_late(rank))
                for rank, _ in turns
                if rank in latest.values()
            ),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _batches(run: RunView) -> list[Evidence]:
    """The lines of the script that choose the samples of a batch."""
    loaders = [loader for facts in run.facts[:1] for loader in facts.loaders if loader.batches_drawn]
    loader = max(loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    if loader is None:
        return []
    return [*known("loader created at", loader.where), *known("sampler created at", loader.sampler_where)]


def _refuse_shared_cores(run: RunView) -> None:
    """Raise Missing where more ranks compute on a host than it has cores."""
    devices = [facts.device for facts in run.facts if facts.device is not None and facts.device.kind == "cpu"]
    cores = min((device.usable_cores for device in devices if device.usable_cores), default=0)
    ranks = max((1 + (facts.local_rank or 0) for facts in run.facts), default=0)
    if cores and ranks > cores:
        raise Missing(f"{ranks} ranks share {cores} {'core' if cores == 1 else 'cores'} and delay each other")
