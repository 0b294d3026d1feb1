"""What stands beside the events of a trace file: devices, process group, clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypedDict

from dptune.finding import Finding
from dptune.trace.columns import NONE
from dptune.trace.events import Device, Distributed, ProcessGroup
from dptune.trace.kineto.schema import Header, integer
from dptune.trace.run import MOST_RANKS

_MOST_SHOWN = 30  # characters of an impossible value
_MOST_DESCRIBED = 200  # characters of the description of a process group


class Metadata(TypedDict):
    """The fields of a Trace that come from its header."""

    devices: tuple[Device, ...]
    distributed: Distributed
    base_ns: int
    host: str


def metadata(header: Header) -> Metadata:
    """The header's fields, whatever types they were written with; what does not fit is left out."""
    listed = header.devices if isinstance(header.devices, list) else header.old_devices
    devices = [_device(entry) for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return Metadata(
        devices=tuple(devices),
        distributed=_distributed(header.distributed),
        base_ns=max(integer(header.base_ns), 0),
        host=header.host if isinstance(header.host, str) else "",
    )


def is_torch(header: Header) -> bool:
    """Whether a header holds anything that only torch.profiler writes."""
    return any(
        value is not None
        for value in (header.schema_version, header.devices, header.old_devices, header.distributed, header.base_ns)
    )


RANK_IMPOSSIBLE = "rank-impossible"


def impossible(name: str, header: Header) -> Iterator[Finding]:
    """Impossible numbers of the process group; they are ignored."""
    given = header.distributed
    if given is not None and not isinstance(given, dict):
        text = f"{name}: distributedInfo is not a JSON object and is ignored"
        yield Finding(code=RANK_IMPOSSIBLE, level="partial", text=text)
        return
    found = given or {}
    for key, what, least in (("rank", "rank", 0), ("world_size", "world size", 1)):
        value = found.get(key)
        if value is None or least <= integer(value) <= MOST_RANKS:
            continue
        why = f"above {MOST_RANKS:,}" if _beyond(value) else f"invalid ({_shown(value)})"
        text = f"{name}: the {what} in distributedInfo is {why} and is ignored"
        yield Finding(code=f"{what.replace(' ', '-')}-impossible", level="partial", text=text)
    rank, world = _of_ranks(found.get("rank")), _of_ranks(found.get("world_size"))
    if rank is not None and world and rank >= world:
        text = f"{name}: distributedInfo gives rank {rank} and world size {world}, which contradict each other"
        yield Finding(code="world-size-too-small", level="partial", text=text)
    wrong = {str(group.get("pg_name", "")): why for group in _listed(found) if (why := _damage(group, found))}
    if wrong:
        (first, why), more = next(iter(wrong.items())), len(wrong) - 1
        others = f", and {more} more {'is' if more == 1 else 'are'} damaged" if more else ""
        text = f"{name}: process group {first[:_MOST_SHOWN]!r} {why}{others}: {'they are' if more else 'it is'} ignored"
        yield Finding(code="process-group-impossible", level="partial", text=text)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _beyond(value: object) -> bool:
    """Whether it is a number above MOST_RANKS, as JSON or as digits of any length."""
    if isinstance(value, str):
        digits = value.strip().lstrip("0")
        return digits.isdecimal() and (len(digits) > len(str(MOST_RANKS)) or int(digits) > MOST_RANKS)
    return isinstance(value, (int, float)) and value > MOST_RANKS


def _device(entry: dict[str, Any]) -> Device:
    name = entry.get("name")
    return Device(
        index=integer(entry.get("id")),
        name=name.strip() if isinstance(name, str) else "",
        compute_major=_known(entry.get("computeMajor", entry.get("major"))),
        compute_minor=_known(entry.get("computeMinor", entry.get("minor"))),
        memory_bytes=_known(entry.get("totalGlobalMem")),
    )


def _distributed(entry: object) -> Distributed:
    if not isinstance(entry, dict):
        return Distributed()
    backend = entry.get("backend")
    return Distributed(
        rank=_of_ranks(entry.get("rank")),
        world_size=_of_ranks(entry.get("world_size"), 1),
        backend=backend if isinstance(backend, str) and backend else None,
        groups=dict(_groups(entry)),
    )


def _groups(distributed: dict[str, Any]) -> Iterator[tuple[str, ProcessGroup]]:
    for group in _listed(distributed):
        size = _known(group.get("pg_size"))
        if size is not None and not _damage(group, distributed):
            described = group.get("pg_desc")
            words = described[:_MOST_DESCRIBED] if isinstance(described, str) else ""
            yield str(group.get("pg_name", "")), ProcessGroup(size, words, _members(group.get("ranks")))


def _listed(distributed: dict[str, Any]) -> list[dict[str, Any]]:
    config = distributed.get("pg_config")
    return [group for group in config if isinstance(group, dict)] if isinstance(config, list) else []


def _damage(group: dict[str, Any], distributed: dict[str, Any]) -> str:
    """What about a process group no run has; "" where nothing is. One that lists no ranks has them unknown."""
    size, ranks = _known(group.get("pg_size")), group.get("ranks")
    own, world = _of_ranks(distributed.get("rank")), _of_ranks(distributed.get("world_size"), 1)
    if size is not None and world and size > world:
        return f"has {size:,} ranks, and the run {world:,}"
    if size is None or not isinstance(ranks, list) or not ranks:
        return ""
    members = _members(ranks)
    if len(ranks) != size or len(members) != size:
        return f"has {size:,} ranks, and lists {len(members if len(ranks) == size else ranks):,}"
    if world and members[-1] >= world:
        return f"lists rank {members[-1]:,}, and the run has {world:,} ranks"
    return "" if own is None or own in members else f"does not list rank {own:,}, the rank of this trace"


def _members(ranks: object) -> tuple[int, ...]:
    """The ranks that a list names, ascending, each once."""
    numbers = {_of_ranks(rank) for rank in ranks} if isinstance(ranks, list) else set()
    return tuple(sorted(rank for rank in numbers if rank is not None))


def _of_ranks(value: object, least: int = 0) -> int | None:
    number = integer(value)
    return number if least <= number <= MOST_RANKS else None


def _known(value: object) -> int | None:
    number = integer(value)
    return None if number == NONE else number
