"""ZeRO-1 parameter broadcasts cost more time than the saved memory justifies.

## What it measures

The exposed communication of the optimizer phase of a step, where the optimizer is a ZeroRedundancyOptimizer.

## Why it matters

Each rank updates its part of the parameters, and then sends that part to all others. Gradients are all-reduced as
before, so a step sends 50 % more than with a plain optimizer, at a moment when no compute overlaps it.

## What to change

Use the optimizer itself, without ZeroRedundancyOptimizer: `AdamW(model.parameters(), ...)`. Each rank then holds all of
its state, for Adam two 32-bit floats per parameter. On a GPU this is proposed only where the state fits in memory.

Where it does not, FullyShardedDataParallel or `fully_shard` send the same amount, but overlapped with compute, and
shard gradients and parameters as well; without resharding after forward they send less.

## When to leave it alone

- The memory is needed for a larger batch, which saves more.
- Checkpoints are written sharded, and read back by this number of ranks.

## References

- ZeroRedundancyOptimizer: https://pytorch.org/docs/stable/distributed.optim.html
- Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 7 on
  communication: https://arxiv.org/abs/1910.02054
- Measured with two gloo ranks over a link of 200 Mbit/s: with ZeroRedundancyOptimizer steps ran at half the speed.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

SHARDED = "ZeroRedundancyOptimizer"
STATE_BYTES = 8  # of Adam, for each parameter: two 32-bit floats; others take less
FULL_SHARE = 0.9  # of a device's memory, that may be taken then

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: the saved memory is worth a smaller cost")

RULE = Rule(
    code="DP202",
    name="sharded-optimizer",
    family="topology",
    kind="time",
    summary="ZeRO-1 parameter broadcasts cost more time than the saved memory justifies",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose the plain optimizer where sharding costs a step time and its state would fit."""
    sharded = next(
        (optimizer for optimizer in run.any_facts("optimizers").optimizers if optimizer.name == SHARDED), None
    )
    if sharded is None:
        return
    rows = [row for row in run.measured.overlap.rows if row.known("phase") == "optimizer"]
    share = sum(map(run.held_up_share, rows))
    impact = run.impact(share, WORTH_SHARE)
    if impact is None or not _fits(run):
        return
    where = f" (created at {sharded.where})" if sharded.where else ""
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{SHARDED} broadcasts parameters for {100 * share:.0f} % of a step: a plain optimizer sends none",
        why="Each rank updates its shard of the parameters and broadcasts it, and no compute overlaps with that.",
        changes=[],
        saves=run.bound(0.0, run.most_exposed(rows), "the exposed communication of the optimizer phase"),
        confidence="medium",
        evidence=[
            Evidence(label=f"exposed communication of the optimizer{where}", value=share, unit="of a step").at(
                rows[0].known("longest")
            ),
            *(
                Evidence(label=f"{collective.kind}s", value=collective.calls, unit="calls in all traced steps")
                for collective in rows
            ),
        ],
        numerics="same",
        watch="Each rank then holds the full optimizer state: check memory use.",
        fingerprint=f"{RULE.code}:{SHARDED}",
    )


def _fits(run: RunView) -> bool:
    """Whether the state that other ranks hold now would fit beside the rest; of a CPU's host it is taken to."""
    if run.measured.device_kind == "cpu":
        return True
    state = STATE_BYTES * sum((ddp.gradient_bytes or 0) / 4 for ddp in run.any_facts("ddp", "ddp.gradient_bytes").ddp)
    elsewhere = state * (1 - 1 / run.measured.world_size)
    memory = run.measured.memory
    if not memory:
        raise Missing("GPU memory use was not recorded")
    return all(
        device_memory.peak_reserved_bytes + elsewhere <= FULL_SHARE * device_memory.capacity_bytes
        for device_memory in memory
    )
