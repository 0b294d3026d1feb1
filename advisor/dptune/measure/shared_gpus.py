"""Which ranks compute on the same GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dptune.measure.views import RankView
from dptune.runfile.facts import Facts

K = TypeVar("K", bound=Hashable)

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_DOUBT = "rank {} may share a GPU with rank {}: its GPU was not recorded, so its share of the peak is unknown"
_FEWER = "rank {} may share a GPU with rank {}: the recording has fewer GPUs of their host than ranks"


@dataclass(frozen=True)
class SharedGpus:
    """`ranks`: by rank all ranks on its GPU, where its UUID shows that it shares it. `doubt`: why others may share.

    `least`: with that doubt, the fewest GPUs that these ranks have; those of different index on a host differ.
    """

    ranks: dict[int, list[int]] = field(default_factory=dict)
    doubt: str = ""
    least: int = 0


def shared_gpus(
    facts: Mapping[int, Facts],
    views: Sequence[RankView],
    hosts: Mapping[int, str | None],
    cards: Mapping[str, int] | None = None,
) -> SharedGpus:
    """By host and UUID; a rank without one, beside others that have one, may share a GPU of the same index on its host.

    The index proves nothing: launchers that give each process one GPU of its own make it number 0 in all of them. Where
    no rank has a UUID, ranks of one index may share a GPU if their host has fewer `cards`, by host, than ranks.
    """
    read = {rank: _uuid(each.device.uuid) for rank, each in sorted(facts.items()) if each.device}
    uuids = {rank: uuid for rank, uuid in read.items() if uuid}
    by_gpu = _by(((hosts.get(rank), uuid), rank) for rank, uuid in uuids.items())
    shared = {rank: ranks for ranks in by_gpu.values() if len(ranks) > 1 for rank in ranks}
    devices = [
        ((hosts.get(view.rank), device.operations.device), view.rank)
        for view in views
        for device in view.devices
        if not device.operations.on_cpu
    ]
    on_host = Counter(hosts.get(view.rank) for view in views)
    for (host, _), ranks in _by(devices).items():
        few = host is not None and 0 < (cards or {}).get(host, 0) < on_host[host]
        if not uuids and not few:
            continue
        for unnamed in [rank for rank in ranks if rank not in uuids]:
            others = (rank for rank in ranks if rank != unnamed and not _apart(facts, rank, unnamed))
            if (other := next(others, None)) is not None:
                unnamed_only = sum(not uuids.keys() & {*ranks} for ranks in _by(devices).values())
                doubt = (_DOUBT if uuids else _FEWER).format(unnamed, other)
                return SharedGpus(shared, doubt, len(by_gpu) + unnamed_only)
    return SharedGpus(shared)


def _uuid(recorded: str | None) -> str:
    """As it is compared: some sources write it in capitals, or with the prefix `GPU-`."""
    return (recorded or "").strip().lower().removeprefix("gpu-")


def _by(pairs: Iterable[tuple[K, int]]) -> dict[K, list[int]]:
    found: dict[K, list[int]] = {}
    for key, rank in pairs:
        found.setdefault(key, []).append(rank)
    return found


def _apart(facts: Mapping[int, Facts], *ranks: int) -> bool:
    """Whether the GPUs that these ranks see are set, and differ."""
    environments = [facts[rank].environment for rank in ranks if rank in facts]
    return any(len({each.get(name) for each in environments} - {None, ""}) > 1 for name in _VISIBLE)
