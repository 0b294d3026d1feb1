"""One FSDP unit gathers most of the parameters, so no compute of other units can overlap its collectives.

## What it measures

On GPUs, units of `fully_shard` or FullyShardedDataParallel: the unit that gathers the most bytes, its share of all
gathered bytes, and the exposed communication of its collectives in a step.

## Why it matters

A unit computes only after all of its parameters are gathered. While one unit is gathered, another can compute: if one
unit holds most of the parameters, too little compute is left to overlap its gathering. It also holds most of the model
unsharded at once, so sharding saves little memory.

## What to change

Apply `fully_shard` to each transformer block or stage first, then to the root module, which takes the parameters that
are left. `fully_shard` on the root alone makes one unit of the whole model. FullyShardedDataParallel makes a unit of
each block with `auto_wrap_policy=ModuleWrapPolicy({Block})`.

The upper bound is the exposed communication of that unit's collectives.

## When to leave it alone

- The unit is one layer, for example a large embedding or output layer: it cannot be split.
- Block-sized units would be too small (`small-shard-units`).

## References

- fully_shard, on which modules to apply it to: https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- Zhao et al. 2023, "PyTorch FSDP", section 4.2 on the choice of units: https://arxiv.org/abs/2304.11277
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import digits
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.blocks_as_units import shard_blocks, units_of_blocks, wrap_blocks
from dptune_rules.known import known

MIB = 2**20

LARGE_SHARE = Threshold(
    "large_share",
    0.5,
    "if one unit holds more than half of the parameters, compute of the others cannot hide most of its all-gather",
)
WORTH_SHARE = Threshold(
    "worth_share", 0.05, "impact is medium from here; counts the exposed communication of that unit's collectives"
)

RULE = Rule(
    code="DP208",
    name="unsplit-units",
    family="topology",
    kind="time",
    summary="one FSDP unit gathers most of the parameters, so no compute of other units can overlap its collectives",
    since="0.1",
    thresholds=(LARGE_SHARE, WORTH_SHARE),
    preview=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose units of blocks where one unit holds most of the model and its collectives hold up steps."""
    if run.measured.device_kind == "cpu" or run.measured.known("world_size") == 1:
        return  # on a CPU, collectives of units block whatever their size
    if not run.any_facts("fsdp").fsdp:
        return
    units, whole_bytes = run.measured.shard_units, run.measured.shard_units.whole_bytes
    gathered = {row.unit: row.message_bytes for row in units.rows if row.kind == "all_gather"}
    largest = max(gathered, key=lambda unit: gathered[unit], default=None)
    if largest is None or gathered[largest] <= run.limit(LARGE_SHARE) * whole_bytes:
        return
    rows = [row for row in units.rows if row.unit == largest]
    window_ns = run.measured.account.window_ns
    share = sum(row.sending_ns for row in rows) / window_ns
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    part = gathered[largest] / whole_bytes
    name = f"unit {largest}" if largest else "root unit"
    sharded = run.any_facts("fsdp").fsdp
    where = next((fsdp.where for fsdp in sharded if largest in fsdp.names), None)
    flat = all(fsdp.version == 1 for fsdp in sharded)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"The {name} gathers {100 * part:.0f} % of the parameters at once, and {100 * share:.0f} % of a step is "
        "its exposed communication: shard its blocks separately",
        why="A unit computes only after all of it is gathered, so only other units' compute can hide its all-gather.",
        changes=[] if flat else units_of_blocks(run, [], 0.0, where),
        remedy=wrap_blocks(run) if flat else shard_blocks(run, [], 0.0),
        saves=run.bound(0.0, share, "the exposed communication of that unit's collectives"),
        confidence="medium",
        evidence=[
            *(
                Evidence(
                    label=f"exposed {row.kind.replace('_', '-')}s ({row.direction} phase)",
                    value=row.sending_ns / window_ns,
                    unit="of a step",
                )
                for row in rows
            ),
            Evidence(label="the unit, gathered", value=gathered[largest] / MIB, unit="MiB"),
            Evidence(label="units", value=len(gathered)),
            *known("sharded at", where),
        ],
        numerics="same",
        watch=f"Smaller units hold less memory: now {digits(gathered[largest] / MIB)} MiB are gathered at once.",
        fingerprint=f"{RULE.code}:{largest or 'root'}",
    )
