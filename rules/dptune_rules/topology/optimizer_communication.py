"""A sharded optimizer's collectives are exposed: the backward pass and the next forward pass could overlap them.

## What it measures

The exposed time of reduce-scatters, all-gathers and broadcasts inside the step of an optimizer that itself shards its
work over the ranks. FSDP and ZeroRedundancyOptimizer are left out: `sharded-parameters` and `sharded-optimizer` report
them. Waiting for a rank that is late by 10 % of the step or more is not counted.

## Why it matters

Such an optimizer averages gradients by reduce-scatter, updates its shard of the parameters and all-gathers the new
ones. The update computes too little to overlap this.

## What to change

- Start the reduce-scatter of each gradient in the backward pass, from `register_post_accumulate_grad_hook`. Where the
  model is compiled as one graph, all its gradients become ready at its end: compile block by block.
- Start with the largest parameters, and wait for each reduce-scatter only before the update that needs it.
- Do not wait for the all-gathers at the end of the step: wait in a pre-forward hook of the module that uses the
  parameter. The next forward pass then overlaps all but the first.

The upper bound is the exposed time of these collectives; those of the first layers remain exposed.

## When to leave it alone

- The parameters are read right after the step, for example by an exponential moving average.

## References

- Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 7:
  https://arxiv.org/abs/1910.02054
- Zhao et al. 2023, "PyTorch FSDP", section 3.3 on overlapping communication with compute:
  https://arxiv.org/abs/2304.11277
- Calibrated on public traces of a GPT on eight H100, whose optimizers do this: 5 % of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import inf

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import CommunicationFigures, Missing
from dptune.rule import Rule, RunView, Threshold

KINDS = ("reduce_scatter", "all_gather", "broadcast")
NOTHING_SHARE = 0.0005  # of a step: a smaller saving is printed as 0.0 %
SHARDED = "ZeroRedundancyOptimizer"  # another rule reports it

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP207",
    name="optimizer-communication",
    family="topology",
    kind="time",
    summary="the collectives of a sharded optimizer are exposed: forward and backward passes could overlap them",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to overlap these collectives where they hold up the optimizer step."""
    if run.measured.known("world_size") == 1:
        return
    names = list(dict.fromkeys(optimizer.name for optimizer in run.any_facts("optimizers").optimizers))
    if SHARDED in names:
        return
    rows = [row for row in run.measured.overlap.rows if row.known("phase") == "optimizer" and row.kind in KINDS]
    rows = [row for row in rows if row.known("purpose") == "other"]
    if not {"all_gather", "broadcast"} & {row.kind for row in rows} or _gathers_shards(run):
        return
    share = sum(map(run.held_up_share, rows))
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    kinds, most = list(dict.fromkeys(row.kind for row in rows)), run.most_exposed(rows)
    replayed = _replayed(run)
    sent = [f"{kind.replace('_', '-')}s" for kind in kinds]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Exposed {_joined(sent)} of {_joined(names) or 'the optimizer'} take {100 * share:.0f} % of a "
        "step: overlap them with the backward pass and the next forward pass",
        why="The update computes too little to overlap the collectives of the optimizer step.",
        changes=[],
        saves=run.bound(0.0, most, f"the exposed collectives of the optimizer step{_in_words(replayed, most)}"),
        confidence="low" if _saves_nothing(replayed) else "medium",
        evidence=[_of_kind(run, kind, [row for row in rows if row.kind == kind]) for kind in kinds],
        numerics="same",
        watch="Each module must wait for its new parameters before it computes.",
        fingerprint=f"{RULE.code}:{' '.join(names)}",
    )


def _gathers_shards(run: RunView) -> bool:
    """Whether FSDP shards the parameters: the optimizer then gathers those that it needs."""
    return any(row.known("purpose") == "sharding" for row in run.measured.overlap.rows)


def _replayed(run: RunView) -> Saving | None:
    """What a replay of the traced steps without any communication saves; None where the steps were timed untraced too,
    or cannot be replayed.
    """
    if run.measured.step.basis == "untraced" or len(run.measured.ranks) < 2:  # no replay knows the link of one rank
        return None
    with suppress(Missing):
        return run.predict({"link.alpha_us": 0.0, "link.gb_per_s": inf})
    return None


def _saves_nothing(replayed: Saving | None) -> bool:
    return replayed is not None and (replayed.central_share or 0.0) < NOTHING_SHARE


def _in_words(replayed: Saving | None, most: float) -> str:
    """What a replay saves, where that is less than the bound: it waits for a host that the profiler slows."""
    if replayed is None or (replayed.central_share or 0.0) >= most:
        return ""
    if _saves_nothing(replayed):
        return (
            "; removing all communication in the replay saves nothing: the host, slowed by the profiler, is the limit"
        )
    likely = replayed.predicted_share
    saved = replayed.part_in_words if likely is None else f"{100 * likely:.1f} %"
    return (
        f"; replaying the traced steps without communication saves only {saved}: the host, slowed by the profiler, may "
        "be the limit"
    )


def _of_kind(run: RunView, kind: str, rows: list[CommunicationFigures]) -> Evidence:
    longest = max(rows, key=lambda row: row.exposed_ns)
    return Evidence(
        label=f"exposed {kind.replace('_', '-')}s of the optimizer step",
        value=sum(map(run.held_up_share, rows)),
        unit="of a traced step",
    ).at(longest.known("longest"))


def _joined(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
