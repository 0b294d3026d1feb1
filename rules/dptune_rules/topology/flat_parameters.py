"""FullyShardedDataParallel (FSDP1) shards the model: fully_shard (FSDP2) is its successor.

## What it measures

Whether modules are wrapped by FullyShardedDataParallel, by the wrapped modules of a recording or by its ranges in a
trace.

## Why it matters

FSDP1 flattens and concatenates the parameters of a unit and shards the result. FSDP2 shards each parameter along its
first dimension as a DTensor. Frozen and trained parameters may then share a unit, sharded state dicts need no
communication, and peak memory does not depend on how far the host runs ahead, because FSDP2 does not use
`record_stream`. New features of torch are in FSDP2 only, for example prefetching of several units. Throughput is
similar, so no saving is claimed.

## What to change

Call `fully_shard` on each block, then on the model, and create the optimizer after that:

- `auto_wrap_policy`: call `fully_shard` on the modules that it would wrap;
- `ShardingStrategy.SHARD_GRAD_OP`: `reshard_after_forward=False`; `HYBRID_SHARD`: a 2-D device mesh;
- `MixedPrecision`: `MixedPrecisionPolicy`; `CPUOffload`: `CPUOffloadPolicy`; `no_sync()`:
  `set_requires_gradient_sync`.

Checkpoints written by FSDP1 are read through `torch.distributed.checkpoint.state_dict`.

## When to leave it alone

- A library wraps the model, and has no option for FSDP2.
- The training ends soon: this is maintenance, not speed.

## References

- FSDP1-to-FSDP2 migration guide: https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
- fully_shard: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP209",
    name="flat-parameters",
    family="topology",
    kind="risk",
    summary="FullyShardedDataParallel (FSDP1) shards the model: fully_shard (FSDP2) is its successor",
    since="0.1",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name FSDP1 where it shards the model of several ranks."""
    wrapped = [fsdp for fsdp in run.any_facts("fsdp").fsdp if fsdp.version == 1]
    if not wrapped or run.measured.known("world_size") == 1:
        return
    where = next((fsdp.where for fsdp in wrapped if fsdp.where), None)
    strategies = dict.fromkeys(fsdp.strategy for fsdp in wrapped if fsdp.strategy)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="low",
        title=f"FullyShardedDataParallel (FSDP1) shards the model{in_parentheses(where)}: move to fully_shard (FSDP2)",
        why="FSDP2 shards each parameter separately, has deterministic peak memory, and gets torch's new features.",
        changes=[],
        remedy="Move to `fully_shard` (FSDP2).",
        confidence="high",
        evidence=[
            Evidence(label="units of FullyShardedDataParallel", value=sum(fsdp.units for fsdp in wrapped)),
            *known("sharding strategy", ", ".join(strategies)),
        ],
        numerics="same",
        watch="Checkpoints of FSDP1 must be converted.",
        fingerprint=RULE.code,
    )
