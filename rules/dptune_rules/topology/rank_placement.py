"""Process groups are mapped badly to hosts: heavy traffic crosses hosts, light traffic stays inside.

## What it measures

The bytes that the ranks of each process group send in a step, and the hosts of those ranks. The bytes come from the
sizes of DDP's gradients and from the collectives that are called by name, each counted by its traffic on a link (as
nccl-tests counts it). The rule reports a group that would fit on one host but spans several, if swapping it with
a group within a host that sends less at least halves the traffic across the network. Where the trace shows other
collectives too (of compiled code, of sharded tensors), nothing is reported.

## Why it matters

Ranks within a host communicate over NVLink, PCIe or memory. Ranks of different hosts communicate over a network that is
several times slower and that all ranks of a host share.

## What to change

Reorder the ranks in the groups: launchers place neighbours on one host, so put neighbours into the group with the most
traffic. With `init_device_mesh` the last dimension holds neighbours: put the dimension with the most traffic last. With
`new_group`, the evidence lists the current ranks and the proposed ones.

The saving is an upper bound: the exposed communication, times the part of bytes between hosts that would stay within a
host.

## When to leave it alone

- The hosts are connected by links as fast as those within a host (multi-node NVLink).
- The job's scheduler places the ranks, and they are not numbered host by host.

## References

- Megatron-LM, Narayanan et al. 2021, section 3 on placing tensor parallel groups within servers:
  https://arxiv.org/abs/2104.04473
- DeviceMesh: https://pytorch.org/docs/stable/distributed.html#devicemesh
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dptune.advice import Advice, Evidence
from dptune.measured import COLLECTIVES, Missing, digits
from dptune.rule import Rule, RunView, Threshold

Ranks = tuple[int, ...]

PARTED = tuple(
    collective.kind for collective in COLLECTIVES if collective.parted and collective.crossings == 1
)  # a rank sends its part
MORE = 1.5  # times the collectives that were counted: those of a wrapper that sends buffers are not

LESS = Threshold("less", 0.5, "of the bytes between hosts: if more of them remain, the change is not worth it")
WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP203",
    name="rank-placement",
    family="topology",
    kind="time",
    summary="process groups are mapped badly to hosts: heavy traffic crosses hosts, light traffic stays inside",
    since="0.1",
    thresholds=(LESS, WORTH_SHARE),
    needs="recording",
)


@dataclass(frozen=True)
class _Groups:
    """Groups of one size that part the ranks among them, and what a rank of one sends in a step."""

    of: tuple[Ranks, ...]
    sent_bytes: float

    @property
    def size(self) -> int:
        return len(self.of[0])

    def crossing(self, hosts: dict[int, str]) -> bool:
        """Whether some of them lie on several hosts."""
        return any(len({hosts[rank] for rank in group}) > 1 for group in self.of)


def check(run: RunView) -> Iterator[Advice]:
    """Compare two ways to part the ranks, where one lies across hosts and the other one within."""
    if any(facts.fsdp or facts.engine or facts.compiled for facts in run.facts):
        return  # who sends how much is not counted there
    hosts = {facts.rank: facts.host for facts in run.facts}
    if len(set(hosts.values())) < 2:
        run.any_facts()
        return
    if len(hosts) < run.measured.world_size:
        raise Missing("not all ranks were recorded, so their hosts are unknown")
    on_each = {name: [rank for rank in sorted(hosts) if hosts[rank] == name] for name in hosts.values()}
    if len({len(ranks) for ranks in on_each.values()}) > 1:
        return
    partings = _partings(run)
    _check_counted(run)
    across = max(
        (parting for parting in partings if parting.crossing(hosts)),
        key=lambda candidate: candidate.sent_bytes,
        default=None,
    )
    within = min((one for one in partings if not one.crossing(hosts)), key=lambda one: one.sent_bytes, default=None)
    room = min(len(ranks) for ranks in on_each.values())
    if across is None or within is None or room % across.size:
        return
    now, then = across.sent_bytes, within.sent_bytes
    exposed = run.measured.share("exposed_without_waiting_ns")
    impact = run.impact(exposed, WORTH_SHARE)
    if impact is None or not now or then > run.limit(LESS) * now:
        return
    near = [tuple(ranks[at : at + across.size]) for ranks in on_each.values() for at in range(0, room, across.size)]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"The ranks that communicate most are on different hosts: {_listed(across.of)} send {_mb(now)} per step "
        f"each, "
        f"{_listed(within.of)} on one host {_mb(then)}",
        why="Links between hosts are several times slower than those within, and all ranks of a host share them.",
        changes=[],
        remedy=f"Form the groups that communicate most within hosts: {_listed(tuple(near))}.",
        saves=run.bound(
            0.0,
            run.unstretched(exposed * (1 - then / now)),
            "the exposed communication (where known), by the bytes that would stay within hosts",
        ),
        confidence="medium",
        evidence=[
            Evidence(
                label=f"sent across hosts among {_listed(across.of)}", value=now / 1e6, unit="MB per rank and step"
            ),
            Evidence(
                label=f"sent within hosts among {_listed(within.of)}", value=then / 1e6, unit="MB per rank and step"
            ),
            run.exposed_transfer(),
            Evidence(label="groups of neighbours for the heaviest communication", value=_listed(tuple(near))),
        ],
        numerics="same",
        watch="Ranks then hold other parts of the model or see other samples: checkpoints per rank may not fit.",
        fingerprint=RULE.code,
    )


def _partings(run: RunView) -> list[_Groups]:
    """The ways in which the ranks are parted into groups that communicate, largest bytes first."""
    sent: dict[Ranks, float] = {}
    for facts in run.facts:
        rank_sent: dict[Ranks, float] = {}
        for ddp in facts.ddp:
            sends = _on_a_link("all_reduce", len(ddp.ranks)) * (ddp.gradient_bytes or 0)
            rank_sent[tuple(ddp.ranks)] = rank_sent.get(tuple(ddp.ranks), 0.0) + sends
        for call in facts.calls:
            sends = _on_a_link(call.function, len(call.ranks)) * call.sent_bytes / max(facts.calls_steps, 1)
            rank_sent[tuple(call.ranks)] = rank_sent.get(tuple(call.ranks), 0.0) + sends
        for ranks, count in rank_sent.items():
            sent[ranks] = max(sent.get(ranks, 0.0), count)
    world = set(range(run.measured.world_size))
    by_size: dict[int, list[Ranks]] = {}
    for ranks in sent:
        if 1 < len(ranks) < len(world):
            by_size.setdefault(len(ranks), []).append(ranks)
    found = []
    for groups in by_size.values():
        found += [
            _Groups(parted_groups, max(sent[ranks] for ranks in parted_groups))
            for parted_groups in _that_part(sorted(groups), world)
        ]
    return sorted(found, key=lambda parting: -parting.sent_bytes)


def _on_a_link(function: str, ranks: int) -> float:
    """How many times its message a collective puts on each link: as nccl-tests has it."""
    if ranks < 2:
        return 0.0
    if function == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if function.startswith(PARTED) else 1.0


def _check_counted(run: RunView) -> None:
    """Raises Missing where the trace has many more collectives than were counted."""
    seen = sum(
        collective.calls_per_step
        for collective in run.measured.known("collectives") or []
        if collective.kind != "barrier"
    )
    facts = run.any_facts()
    named = sum(call.calls for call in facts.calls) / max(facts.calls_steps, 1)
    buckets = sum(len(ddp.rebuilt_bucket_sizes or ddp.bucket_sizes) for ddp in facts.ddp)
    passes = run.measured.accumulation.known("backwards_per_step") or 1
    if seen > MORE * (named + buckets * passes) + 1:
        raise Missing(f"a step has {digits(seen)} collectives, but only those called by name show who takes part")


def _that_part(groups: list[Ranks], world: set[int]) -> Iterator[tuple[Ranks, ...]]:
    """Sets of groups that hold each rank once: of those of one size, by the steps between their ranks."""
    alike: dict[Ranks, list[Ranks]] = {}
    for group in groups:
        alike.setdefault(tuple(rank - group[0] for rank in group), []).append(group)
    for similar_groups in alike.values():
        held = [rank for group in similar_groups for rank in group]
        if len(held) == len(world) == len(set(held)):
            yield tuple(similar_groups)


def _listed(groups: tuple[Ranks, ...]) -> str:
    """As `{0, 2} {1, 3}`, the first three."""
    text = " ".join("{" + ", ".join(str(rank) for rank in group[:8]) + "}" for group in groups[:3])
    return text + (" ..." if len(groups) > 3 else "")


def _mb(count: float) -> str:
    return f"{digits(count / 1e6)} MB"
