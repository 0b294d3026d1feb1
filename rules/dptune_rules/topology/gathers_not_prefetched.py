"""FSDP units are not prefetched: each all-gather starts after the compute that could overlap it.

## What it measures

On GPUs, all-gathers that a unit of FullyShardedDataParallel or `fully_shard` issues in its own hook instead of
prefetching them: their exposed time, and the compute between the previous unit's all-gather and theirs. The first
all-gather of a pass is not counted: nothing precedes it.

## Why it matters

A unit's parameters can be gathered while the previous unit computes. `fully_shard` relies on the host to run ahead and
issue the next all-gather early. If the host is late, or the driver maps both streams to one hardware queue, the
all-gather starts after that compute, and the next unit waits for all of it.

## What to change

- `fully_shard`: `unit.set_modules_to_forward_prefetch([next unit, the one after it])`, and
  `set_modules_to_backward_prefetch` in reverse order for backward passes.
- FullyShardedDataParallel: `forward_prefetch=True`, and for backward passes
  `backward_prefetch=BackwardPrefetch.BACKWARD_PRE`, which is the default.

The saving is predicted by replay. Where the traces are not enough for one, or its interval includes zero, it is an
upper bound: the exposed time of these all-gathers, or the compute before them, whichever is smaller.

## When to leave it alone

- Memory is short: each prefetched unit needs memory for all its parameters. Nothing is proposed if the predicted peak
  does not fit.
- The order of units changes between steps: prefetching a unit that is not used next costs time.

## References

- fully_shard, `set_modules_to_forward_prefetch`: https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- FullyShardedDataParallel, `forward_prefetch`: https://pytorch.org/docs/stable/fsdp.html
- Zhao et al. 2023, "PyTorch FSDP", section 3.3 on prefetching: https://arxiv.org/abs/2304.11277
- Measured with two NCCL ranks that share an H200: prefetching two units saved 13 % of a step; the bound is 13 %.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change
from dptune.knobs import Value
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.delays import delay_of, evidence_of, overlap_share
from dptune_rules.predicted_memory import fits

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

DEPTH = 2  # units ahead: what the measurement below `References` set

_HOW = "the exposed time of all-gathers that were not prefetched, or the compute before them, whichever is smaller"
_SETTINGS = {1: "pass forward_prefetch=True", 2: "call set_modules_to_forward_prefetch()"}  # by version of FSDP

_UNSURE = "the interval of the replay includes zero"

RULE = Rule(
    code="DP206",
    name="gathers-not-prefetched",
    family="topology",
    kind="time",
    summary="FSDP units are not prefetched: compute of the previous unit could hide their all-gathers",
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
    if impact is None or fits(run, {"fsdp.forward_prefetch": DEPTH, "fsdp.backward_prefetch": DEPTH}) is False:
        return
    changes = _changes(run)
    settings: dict[str, Value] = {"fsdp.prefetch": True}
    bound = run.bound(0.0, run.most_overlapped(delay), _HOW)
    saves = run.saving(changes or settings, bound)
    if saves.central_share is not None:
        impact = run.impact(saves.central_share, WORTH_SHARE)
        saves = bound.without_prediction(_UNSURE) if saves.may_be_nothing else saves
    if impact is None:
        return
    version = 1 if all(fsdp.version == 1 for fsdp in sharded) else 2
    where = next((f" ({fsdp.where})" for fsdp in sharded if fsdp.where), "")
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"FSDP all-gathers{where} are not prefetched: compute of the previous unit could hide "
        f"{100 * share:.0f} % of a step. To prefetch, {_SETTINGS[version]}",
        why="These all-gathers are issued in the unit's own hook. They start only after the previous unit's compute, "
        "so nothing hides them.",
        changes=changes,
        saves=saves,
        confidence="medium",
        evidence=evidence_of(run, delay),
        numerics="same",
        watch="Each prefetched unit needs memory for all its parameters.",
        fingerprint=f"{RULE.code}:{next((name for fsdp in sharded for name in fsdp.modules), 'units')}",
    )


def _changes(run: RunView) -> list[Change]:
    """Gather units ahead in the passes whose gathers compute could hide. One unit ahead is what torch does anyway."""
    units, sharded = run.measured.known("shard_units"), run.any_facts("fsdp").fsdp
    if units is None or not run.facts or all(fsdp.version == 1 for fsdp in sharded):
        return []
    window_ns = run.measured.account.window_ns
    found = []
    for direction, now in (
        ("forward", max(fsdp.forward_prefetch_depth for fsdp in sharded)),
        ("backward", max(1, *(fsdp.backward_prefetch_depth for fsdp in sharded))),
    ):
        gathers = [row for row in units.rows if (row.direction, row.kind) == (direction, "all_gather")]
        rows = [row for row in gathers if row.known("neighbour_compute_ns") is not None]
        if now < DEPTH and sum(row.hideable_ns for row in rows) >= run.limit(WORTH_SHARE) * window_ns:
            found.append(Change(knob=f"fsdp.{direction}_prefetch", now=now, then=DEPTH))
    return found
