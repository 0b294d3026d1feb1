"""HSDP: units are sharded within groups of ranks, and each reduced shard is all-reduced between the groups.

torch 2.13 (`_fsdp_collectives.foreach_reduce`) all-reduces a unit's shard right after its reduce-scatter; on a CPU both
block. Of n ranks, m groups of l ranks, a unit of S bytes, a hop of latency a and rate b:

| collective | latency | bytes over each link |
|---|---|---|
| all-gather in a group | (l - 1) a | (l - 1) / l S |
| reduce-scatter in a group, which gloo runs as an all-reduce | 2 (l - 1) a | 2 (l - 1) / l S |
| all-reduce of the shards between hosts, l of them at once | 2 (m - 1) a | 2 (m - 1) / m S, of all ranks of a host |

Groups are of neighbouring ranks, as `init_device_mesh` makes them. Sources: as in `topology`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import Hop, ranks_asked
from dptune.whatif.cpu.unit_changes import sharding_of
from dptune.whatif.cpu.units import Hybrid

WITHIN_HOSTS = "fsdp.within_hosts"
LINK_WITHIN = _WITHIN_ALPHA, _WITHIN_RATE = "link.within_alpha_us", "link.within_gb_per_s"
OF_A_MESH = "collectives among all ranks were not recorded: units are sharded over a two-dimensional mesh"
# Of the shortest collective, what its latency is where a run shows only how long some sizes took: in the middle, and at
# both ends.
_LATENCY_SHARE, _OTHER_SHARES = 0.5, (0.0, 0.95)


def hybrid_of(model: StepModel, settings: Mapping[str, Value]) -> Hybrid:
    """The groups and links with shards within each host, from the link that was measured among all ranks.

    Raises Missing where the ranks are on one host, or are not spread evenly, two or more to a host.
    """
    sharding_of(model)
    before = len(model.steps)
    ranks = ranks_asked(settings, before)
    hosts = int(settings.get("nodes") or model.hosts)
    if hosts == 1:
        raise Missing("HSDP needs several hosts: the ranks are on one, and `nodes` is not set")
    if ranks % hosts or ranks == hosts:
        raise Missing(f"HSDP needs two or more ranks on each host: {ranks} ranks are on {hosts} hosts")
    shards = ranks // hosts
    measured = Hop(model.link.alpha_ns / (2 * (before - 1)), model.link.bytes_per_ns * 2 * (before - 1) / before)
    within = measured
    if model.hosts > 1:  # a ring over all ranks waits for its slowest hop, which is that between hosts
        times = model.within_times
        within = Hop(measured.alpha_ns * times, measured.bytes_per_ns / times if times else float("inf"))
    alpha_us, rate = (settings.get(f"link.between_{name}") for name in ("alpha_us", "gb_per_s"))
    at_once = 1 if model.shares_host_link else shards
    inside = ring(within, shards)
    if {_WITHIN_ALPHA, _WITHIN_RATE} <= settings.keys():
        inside = Link(
            float(settings[_WITHIN_ALPHA] or 0) * 1e3 * model.latency.alone, float(settings[_WITHIN_RATE] or 0)
        )
    between = Hop(
        measured.alpha_ns if alpha_us is None else float(alpha_us) * 1e3 * model.latency.alone,
        at_once * measured.bytes_per_ns if rate is None else float(rate),
    )
    return Hybrid(shards, inside, ring(between, hosts))


def ring(hop: Hop, ranks: int) -> Link:
    """An all-reduce in a ring of so many ranks."""
    return Link(2 * (ranks - 1) * hop.alpha_ns, hop.bytes_per_ns / (2 * (ranks - 1) / ranks))


def is_hybrid(model: StepModel) -> bool:
    """Whether units are sharded within groups of ranks."""
    return model.sharding is not None and model.sharding.hybrid is not None


def check_one_group(model: StepModel) -> None:
    """Raise Missing where no collective of units is among all ranks, whose link would be needed."""
    if is_hybrid(model):
        raise Missing(OF_A_MESH)


def check_link_within(settings: Mapping[str, Value]) -> None:
    """Raise Missing for a link within hosts that nothing uses, or of which a half is set."""
    given = [name for name in LINK_WITHIN if name in settings]
    if given and not settings.get(WITHIN_HOSTS):
        raise Missing(f"{given[0]} has no effect without {WITHIN_HOSTS}")
    if len(given) == 1:
        raise Missing(f"a link needs both its latency and its bandwidth: set {' and '.join(LINK_WITHIN)}")


def within_hosts(model: StepModel, value: Value) -> StepModel:
    """Without shards within hosts; with them is `hybrid_of`, which needs the ranks and links that there are then."""
    if not value:
        check_one_group(model)
    sharding_of(model)
    return model


def seen(shards: int, within: Sequence[tuple[float, float]], between: Sequence[tuple[float, float]]) -> Hybrid:
    """The groups and links of a run that is sharded so: bytes of units and how long an all-reduce of them takes, ns.

    `between`: the all-reduce of a unit's shards, by the bytes of the unit. The shortest and the longest latency that
    those times allow are `others`.
    """
    if not within or not between:
        raise Missing("the trace does not show how long units are reduced within and between groups of ranks")
    middle, *others = (
        (_through(within, share), _through(between, share)) for share in (_LATENCY_SHARE, *_OTHER_SHARES)
    )
    return Hybrid(shards, *middle, others=tuple(others))


def _through(times: Sequence[tuple[float, float]], share: float) -> Link:
    """The link whose latency is that share of the shortest, and on which the median takes what it took."""
    alpha_ns = share * min(ns for _, ns in times)
    return Link(alpha_ns, median(size / (ns - alpha_ns) if ns > alpha_ns else float("inf") for size, ns in times))


def variants_of(model: StepModel) -> tuple[StepModel, ...]:
    """The model with other links of its groups that the recording allows; none where it has no groups."""
    if model.sharding is None or model.sharding.hybrid is None:
        return ()
    sharding, hybrid = model.sharding, model.sharding.hybrid
    links = (replace(hybrid, within=within, between=between) for within, between in hybrid.others)
    return tuple(replace(model, sharding=replace(sharding, hybrid=other)) for other in links)


def others_of(model: StepModel, changes: Mapping[str, Value]) -> Iterator[StepModel]:
    """The model with the links that a change to HSDP may find: not measured within hosts, nor for many ranks at once.

    Within a host a hop takes no time, or as long as between hosts; ranks of a host share its link, or are each as fast
    alone as one was.
    """
    if model.hosts == 1:
        return
    if _WITHIN_RATE not in changes:
        for times in (0.0, 1.0):
            yield replace(model, within_times=times)
    yield replace(model, shares_host_link=False)
