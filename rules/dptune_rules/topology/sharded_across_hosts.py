"""FSDP shards over all hosts, so every all-gather crosses the network; a 2-D mesh (HSDP) keeps it within a host.

## What it measures

The hosts of the ranks, the mesh of `fully_shard` (or the strategy of FullyShardedDataParallel), and the exposed
communication of its all-gathers, without waiting for late ranks. Reported where a 1-D mesh spans several hosts with
several ranks each.

## Why it matters

Each unit is gathered for its forward pass and again for its backward pass. Links between hosts are several times slower
than those within, and all ranks of a host share them.

## What to change

`mesh = init_device_mesh(device, (hosts, ranks_per_host), mesh_dim_names=("replicate", "shard"))` and
`fully_shard(module, mesh=mesh)` (`HYBRID_SHARD` of FullyShardedDataParallel): each host holds all shards, gathers stay
within it, and only reduced shards of gradients cross the network. A rank then holds N / n times the parameters,
gradients and optimizer state, for N ranks with n per host: HSDP is proposed only if the predicted peak memory fits, or
is unknown.

The saving is predicted by replay, and nothing is proposed where that saves nothing. Without a prediction, the upper
bound is the exposed communication of all-gathers.

## When to leave it alone

- The hosts are connected as fast as their GPUs are (multi-node NVLink).
- The memory is needed: for a larger batch, or the model fits only if sharded over all hosts.

## References

- Zhao et al. 2023, "PyTorch FSDP", section 3.2.2 on hybrid sharding: https://arxiv.org/abs/2304.11277
- fully_shard, `mesh`: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, Location
from dptune.knobs import mesh_line
from dptune.rule import Missing, Rule, RunView, Threshold
from dptune_rules.exposed import exposed_rows
from dptune_rules.known import in_parentheses
from dptune_rules.predicted_memory import fits, peak_evidence

WORTH_SHARE = Threshold("worth_share", 0.05, "medium impact from here: the saved memory is worth a smaller cost")
HYBRID = {"fsdp.within_hosts": True}

RULE = Rule(
    code="DP211",
    name="sharded-across-hosts",
    family="topology",
    kind="time",
    summary="FSDP all-gathers cross the network between hosts; sharding within each host (HSDP) avoids this",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
    preview=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose a 2-D mesh where gathers across hosts hold up steps."""
    if (facts := run.recorded_about("fsdp")) is None:
        return
    sharded = [fsdp for fsdp in facts.fsdp if fsdp.mesh]
    on_host = Counter(rank_facts.host for rank_facts in run.facts)
    if not sharded or len(on_host) < 2:
        return
    if len(run.facts) < run.measured.world_size:
        raise Missing("not all ranks were recorded, so their hosts are unknown")
    ranks_each = set(on_host.values())
    flat = all(len(fsdp.mesh) == 1 and fsdp.mesh[0] == run.measured.world_size for fsdp in sharded)
    if not flat or len(ranks_each) > 1 or ranks_each == {1}:
        return
    rows = [row for row in run.measured.overlap.rows if row.kind == "all_gather" and row.known("purpose") == "sharding"]
    share = sum(row.exposed_transfer_ns for row in rows) / run.measured.account.window_ns
    impact = run.impact(share, WORTH_SHARE)
    if impact is None or fits(run, HYBRID) is False:
        return
    saves = run.saving(HYBRID, run.bound(0.0, run.most_exposed(rows), "the exposed communication of all-gathers"))
    if saves.basis == "replayed" and not saves.central_share:
        return
    where = next((fsdp.where for fsdp in sharded if fsdp.where), None)
    (ranks_here,) = ranks_each
    line = mesh_line(str(run.measured.device_kind), len(on_host), ranks_here)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"All-gathers across {len(on_host)} hosts take {100 * share:.0f} % of a step{in_parentheses(where)}: "
        f"shard within each host of {ranks_here} ranks, and replicate across hosts",
        why="Links between hosts are several times slower than those within, and all ranks of a host share them.",
        changes=_hybrid(sharded[0].version, where, line),
        remedy=f"Create `{line}` and pass `mesh=mesh` to each `fully_shard`.",
        saves=saves,
        confidence="low",
        evidence=[
            Evidence(label="hosts", value=len(on_host)),
            *exposed_rows(run, rows),
            *peak_evidence(run, HYBRID),
        ],
        numerics="same",
        watch=f"Each rank then holds {len(on_host)} times the parameters, gradients and optimizer state.",
        fingerprint=RULE.code,
    )


def _hybrid(version: int, where: str | None, line: str) -> list[Change]:
    """A 2-D mesh for the calls of fully_shard."""
    at = Location.parse(where)
    return [Change(knob="fsdp.within_hosts", now=False, then=True, at=at, snippet=line)] if version == 2 and at else []
