"""FSDP gathers each unit only when it is needed, after the unit before was computed: nothing overlaps the all-gather.

## What it measures

On GPUs, all-gathers that a unit of FullyShardedDataParallel or `fully_shard` issues in its own hook and not ahead
(prefetching): their exposed time, and the compute that ran between the gather of the unit before and theirs. The first
gather of a pass is not counted: nothing precedes it.

## Why it matters

A unit's parameters can be gathered while the unit before computes. `fully_shard` relies on the host for that: it runs
ahead, and issues the next all-gather early. Where the host is late, or where the driver puts both streams into one
hardware queue, the gather starts after that compute, and the next unit waits for all of it.

## What to change

- `fully_shard`: `unit.set_modules_to_forward_prefetch([next unit, the one after it])`, and
  `set_modules_to_backward_prefetch` in the opposite order for backward passes.
- FullyShardedDataParallel: `forward_prefetch=True`, and for backward passes
  `backward_prefetch=BackwardPrefetch.BACKWARD_PRE`, which is the default.

The upper bound is the exposed time of these gathers, or the compute that preceded them, whichever is smaller.

## When to leave it alone

- Memory is short: each unit that is gathered ahead takes memory of its whole size.
- The order of units changes between steps: a prefetched unit that is not used next costs time.

## References

- fully_shard, `set_modules_to_forward_prefetch`: https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- FullyShardedDataParallel, `forward_prefetch`: https://pytorch.org/docs/stable/fsdp.html
- Zhao et al. 2023, "PyTorch FSDP", section 3.3 on prefetching: https://arxiv.org/abs/2304.11277
- Measured with two NCCL ranks that share an H200: prefetching two units saved 13 % of a step; the bound is 13 %.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.delays import delay_of, evidence_of, overlap_share

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

_HOW = "the exposed time of gathers that units issued themselves, at most the compute before them"
_SETTINGS = {1: "set forward_prefetch=True", 2: "use set_modules_to_forward_prefetch"}

RULE = Rule(
    code="DP206",
    name="gathers-not-prefetched",
    family="topology",
    kind="time",
    summary="FSDP gathers each unit only when it is needed: the compute of the unit before could overlap that",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose prefetching where units gather their parameters after the compute that could overlap it."""
    sharded = run.any_facts("fsdp").fsdp
    delay = delay_of(run, "not_prefetched") if sharded else None
    if delay is None:
        return
    share = overlap_share(run, delay)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    version = 1 if all(fsdp.version == 1 for fsdp in sharded) else 2
    where = next((f" ({fsdp.where})" for fsdp in sharded if fsdp.where), "")
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"FSDP gathers units{where} only when they are needed: compute of the unit before could overlap "
        f"{100 * share:.0f} % of a step. Prefetch them: {_SETTINGS[version]}",
        why="Each unit issues its all-gather in its own hook, after the unit before, and then waits for it.",
        changes=[],
        saves=run.bound(0.0, run.most_overlapped(delay), _HOW),
        confidence="medium",
        evidence=evidence_of(run, delay),
        numerics="same",
        watch="Watch memory: each unit that is gathered ahead is held whole.",
        fingerprint=f"{RULE.code}:{next((name for fsdp in sharded for name in fsdp.modules), 'units')}",
    )
