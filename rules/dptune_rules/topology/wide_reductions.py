"""FSDP reduce-scatters gradients in fp32, which backward passes cannot hide on this link; bf16 would halve the bytes.

## What it measures

The exposed communication of the reduce-scatters (and, with a 2-D mesh, the all-reduces) of `fully_shard`
whose gradients are reduced in fp32, and whether bandwidth takes more of their time than latency, by the latency and
bandwidth measured between these ranks.

## Why it matters

Without `reduce_dtype`, gradients are reduced in the dtype in which units are gathered. In fp32 that is twice the bytes
of bf16, and bytes that the backward pass cannot hide extend the step.

## What to change

`fully_shard(module, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))`. `dptune verify --set
fsdp.reduce_dtype=bf16` tries it without editing the script.

The upper bound is half of the exposed communication of these collectives.

## When to leave it alone

- Many ranks: sums of many bf16 values lose precision; fp32 reduction avoids that. Compare the loss.
- Units are so small that latency dominates: see `small-shard-units`.

## References

- MixedPrecisionPolicy, `reduce_dtype`: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- The thresholds are those of `wide-gradients`, its DDP counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Location
from dptune.measured import Missing, shard_messages
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.exposed import exposed_rows
from dptune_rules.known import in_parentheses

EXPOSED_SHARE = Threshold("exposed_share", 0.05, "of a step: below it, halving the bytes saves less than 2.5 %")
SMALL_BYTES = 2**20  # as for `small-shard-units`, where no link is known

RULE = Rule(
    code="DP210",
    name="wide-reductions",
    family="topology",
    kind="time",
    summary="fp32 reduce-scatter of FSDP cannot be hidden behind backward on this link; bf16 would halve the bytes",
    since="0.1",
    thresholds=(EXPOSED_SHARE,),
    needs="recording",
    preview=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose bf16 where reduce-scatters in fp32 hold up steps and bandwidth takes their time."""
    if (facts := run.recorded_about("fsdp")) is None or run.measured.known("world_size") == 1:
        return
    units = [fsdp for fsdp in facts.fsdp if fsdp.version == 2 and fsdp.mesh]
    wide = [fsdp for fsdp in units if (fsdp.reduce_dtype or fsdp.parameter_dtype or "float32") == "float32"]
    if not wide or len(wide) < len(units) or any(_narrow(optimizer.dtypes) for optimizer in facts.optimizers):
        return
    rows = [row for row in run.measured.overlap.rows if row.known("purpose") == "sharding" and row.kind != "all_gather"]
    exposed = sum(row.exposed_transfer_ns for row in rows) / run.measured.account.window_ns
    impact = run.impact(exposed / 2, EXPOSED_SHARE) if exposed >= run.limit(EXPOSED_SHARE) else None
    if exposed < run.limit(EXPOSED_SHARE) or _latency_bound(run):
        return
    where = next((fsdp.where for fsdp in wide if fsdp.where), None)
    changes = [
        Change(knob="fsdp.reduce_dtype", now="fp32", then="bf16", at=Location.parse(fsdp.where) if fsdp.where else None)
        for fsdp in wide
    ]
    bound = run.bound(0.0, run.most_exposed(rows) / 2, "half of the exposed communication of FSDP's reduce-scatters")
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact or "low",
        title=f"FSDP reduces gradients in fp32{in_parentheses(where)}, and the exposed reductions take "
        f"{100 * exposed:.0f} % of a step: bf16 halves the bytes",
        why="The link is too slow to hide the reduction behind the backward pass. 16 bits halve the bytes.",
        changes=changes,
        saves=run.saving(changes, bound),
        confidence="low",
        evidence=exposed_rows(run, rows),
        numerics="changes",
        watch="Gradients are rounded to 16 bits before they are added: compare the loss over the first few "
        "hundred steps.",
        fingerprint=f"{RULE.code}:fsdp.reduce_dtype",
    )


def _narrow(dtypes: list[str]) -> bool:
    """Whether parameters are no 32-bit floats, so that their gradients are not either."""
    return bool(dtypes) and dtypes != ["float32"]


def _latency_bound(run: RunView) -> bool:
    try:
        return shard_messages(run.measured).latency_bound(SMALL_BYTES)
    except Missing:
        return False
