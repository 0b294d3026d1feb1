"""FSDP units are so small that their collectives are latency-bound.

## What it measures

The units of FullyShardedDataParallel or `fully_shard`: how many there are, the mean size of the all-gathers that their
hooks issue, and the exposed communication of these all-gathers and reduce-scatters in a step. Units are small where
latency takes more than half of the time of an all-gather of the mean size, by the latency and bandwidth measured
between these ranks. If those are not known but message sizes span 8x, the shortest calls of the smallest and the
largest size are used instead, with low confidence; otherwise units are small below 1 MiB. In a plain trace, units are
counted by the hooks of a backward pass.

## Why it matters

Each unit is gathered before its forward pass and usually again before its backward pass, and its gradients are
reduce-scattered: two or three collectives a step, each with its latency, and each with hooks on the host that copy
parameters into and out of a buffer. Small units pay these costs many times for few bytes.

## What to change

Shard whole blocks and not the layers inside them: apply `fully_shard` to each transformer block or stage, then to the
root module, which takes the parameters that are left. Where blocks are small, pass several to one call:
`fully_shard([block1, block2])`. With FullyShardedDataParallel, wrap by `ModuleWrapPolicy({Block})`, or raise
`min_num_params` of the size-based policy.

The saving of `fully_shard` on whole blocks is predicted by replay, with one unit per block and one for the rest; on a
CPU the interval ends at the upper bound. This bound is all the time that FSDP takes in a step: its collectives
(overlapped ones on a GPU: only the slowdown of compute that they cause), host time in its hooks, and copies into and
out of gathered buffers; with FullyShardedDataParallel the optimizer as well, which updates a tensor for each unit.

## When to leave it alone

- Memory is short: while a unit is computed each rank holds all of its parameters, so larger units raise the peak.
- A single layer is as large as a block (an embedding): it can stay a unit of its own.

## References

- Zhao et al. 2023, "PyTorch FSDP", section 3.2 and figure 2 on the time of all-gathers by their size, section 4.2 on
  the choice of units: https://arxiv.org/abs/2304.11277
- fully_shard, on which modules to apply it to: https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Confidence, Evidence, Saving
from dptune.measured import Missing, ShardMessages, digits, shard_messages
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.blocks_as_units import number_of_units, shard_blocks, units_of_blocks
from dptune_rules.exposed import exposed_rows
from dptune_rules.known import known

MIB = 2**20
_UNITS = "the time of FSDP's collectives, hooks and copies"
_WITH_OPTIMIZER = "the time of FSDP's collectives, hooks and copies, and of the optimizer"

LEAST_MIB = 1.0  # of a unit: smaller blocks go several into one call

LEAST_UNITS = Threshold(
    "least_units", 8, "fewer than 8 units issue fewer than 25 collectives per step, so their total latency is small"
)
SMALL_MIB = Threshold("small_mib", 1.0, "the smallest message DDP makes by default, its first bucket, is 1 MiB")
WORTH_SHARE = Threshold(
    "worth_share", 0.05, "impact is medium from here; counts the exposed communication of FSDP's collectives"
)

RULE = Rule(
    code="DP205",
    name="small-shard-units",
    family="topology",
    kind="time",
    summary="FSDP units are so small that their collectives are latency-bound",
    since="0.1",
    thresholds=(LEAST_UNITS, SMALL_MIB, WORTH_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose larger units where many small ones hold up steps."""
    found = run.any_facts("fsdp", "fsdp.units").fsdp
    sharded = [fsdp for fsdp in found if fsdp.mesh or not run.facts]  # not roots without parameters of their own
    units = sum(fsdp.units for fsdp in sharded)
    if units < run.limit(LEAST_UNITS) or run.measured.world_size == 1:
        return
    rows = [row for row in run.measured.overlap.rows if row.known("purpose") == "sharding"]
    if not rows and any(collective.kind == "all_gather" for collective in run.measured.overlap.rows):
        raise Missing("the traces do not show which all-gathers FSDP issued")
    share = sum(collective.exposed_transfer_ns for collective in rows) / run.measured.account.window_ns
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    messages = shard_messages(run.measured)
    if not messages.latency_bound(run.limit(SMALL_MIB) * MIB):
        return
    finest = max(sharded, key=lambda one: one.units)
    made = f" ({finest.where})" if finest.where else ""
    taken = run.measured.sharding
    flat = any(fsdp.version == 1 for fsdp in sharded)
    most, how = (taken.most_share, _WITH_OPTIMIZER) if flat else (taken.units_most_share, _UNITS)
    names = [name for fsdp in sharded for name in fsdp.modules]
    kind = messages.kind.replace("_", "-")
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{units} FSDP units{made} are too small: their exposed collectives take {100 * share:.0f} % of a step. "
        "Shard whole blocks instead",
        why=_why(messages),
        changes=[] if flat else units_of_blocks(run, names, LEAST_MIB, finest.where),
        remedy="" if flat else shard_blocks(run, names, LEAST_MIB),
        saves=_saving(run, units, run.bound(0.0, run.most_of_process(most + run.slowed_share("sharding")), how)),
        confidence=_confidence(messages),
        evidence=[
            *exposed_rows(run, rows),
            Evidence(label="units", value=units),
            *known("sharded modules", ", ".join(dict.fromkeys(m for fsdp in sharded for m in fsdp.modules))),
            Evidence(label=f"{kind}s", value=messages.per_step, unit="per step"),
            Evidence(label=f"mean {kind}", value=messages.mean_bytes / 2**10, unit="KiB"),
        ],
        numerics="same",
        watch="Watch memory: each rank holds one whole unit at a time, plus the next one, which is gathered ahead.",
        fingerprint=f"{RULE.code}:{next(iter(finest.modules), 'units')}",
    )


def _saving(run: RunView, units: int, bound: Saving) -> Saving:
    """Predicted by replay: neighbours are merged into as many units as there are blocks, and one for the rest.

    On CPUs the interval ends at the bound: replay predicted 11 to 39 % where 43 % were saved.
    """
    fewer = number_of_units(run, LEAST_MIB)
    if fewer is None or fewer >= units:
        return bound
    saves = run.saving({"fsdp.units": fewer}, bound)
    if run.measured.known("device_kind") != "cpu" or saves.basis != "replayed":
        return saves
    high = max(saves.high_share, bound.high_share)
    return run.narrowed(saves, saves.low_share, saves.predicted_share, high, f"upper end: {bound.how}")


def _confidence(messages: ShardMessages) -> Confidence:
    """High if the link was measured, low if it is estimated from the run's shortest calls."""
    if messages.startup_us is None:
        return "medium"
    return "low" if messages.estimated else "high"


def _why(messages: ShardMessages) -> str:
    """Why the collectives are slow: by the link's latency where that is known."""
    kind = messages.kind.replace("_", "-")
    size = f"{digits(messages.mean_bytes / 2**10)} KiB"
    if messages.startup_us is None or messages.transfer_us is None:
        return f"The mean {kind} is {size}: at that size latency takes most of its time, and each unit pays it again."
    return (
        f"The mean {kind} is {size}: its latency takes {digits(messages.startup_us)} us, its transfer "
        f"{digits(messages.transfer_us)} us. Each unit pays the latency again."
    )
