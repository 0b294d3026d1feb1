"""Sends and receives in dumps of the flight recorder that are not over, and which of the two ranks has not called one.

The recorder numbers them per process group and rank, so the numbers of sender and receiver differ. Send n from one rank
to another belongs to receive n there: by count where both dumps reach back to the first one of the group. Else a rank
whose peer has an unfinished one, and which has none itself, has not called it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dptune.measured.flight import StuckCollective
from dptune.trace.flight.dump import Dump, Entry


@dataclass
class _Pair:
    """Sends from one rank to another in a process group, and the receives there, in the order of the calls.

    `oldest` are the numbers of the first send or receive that each rank has in the group.
    """

    sends: list[Entry] = field(default_factory=list)
    receives: list[Entry] = field(default_factory=list)
    oldest: dict[int, int] = field(default_factory=dict)


_Key = tuple[str, int, int]  # group, sender, receiver: ranks of the job


def unfinished_with_peers(
    dumped: Mapping[int, Dump], message_bytes: Callable[[Entry], int | None]
) -> Iterator[StuckCollective]:
    """The first send or receive of each two ranks that is not over, by group, sender and receiver."""
    for (group, sender, receiver), pair in sorted(_pairs(dumped.values()).items()):
        sides = {sender: pair.sends, receiver: pair.receives}
        opened = {rank: at for rank, calls in sides.items() if (at := _first_open(calls)) is not None}
        if not opened or sender == receiver:
            continue
        counted = all(pair.oldest.get(rank, 1) == 1 for rank in sides)
        number = min(opened.values())
        called = [rank for rank in sides if (len(sides[rank]) > number if counted else rank in opened)]
        done = [rank for rank in called if counted and sides[rank][number].done]
        waiting = min((rank for rank in opened if rank in called and rank not in done), default=min(opened))
        entry = sides[waiting][number if counted else opened[waiting]]
        lacking = [rank for rank in sides if rank not in called]
        yield StuckCollective(
            group=group,
            description=entry.description,
            sequence=entry.sequence,
            kind=f"send to rank {receiver}" if waiting == sender else f"receive from rank {sender}",
            message_bytes=message_bytes(entry),
            reached=sorted(called),
            missing=sorted(rank for rank in lacking if rank in dumped),
            without_dump=sorted(rank for rank in lacking if rank not in dumped),
            not_started=[],
            done=sorted(done),
            at=entry.at,
        )


def _pairs(dumps: Iterable[Dump]) -> dict[_Key, _Pair]:
    found: dict[_Key, _Pair] = defaultdict(_Pair)
    for dump in dumps:
        oldest: dict[str, int] = {}
        for entry in dump.entries:
            if entry.to_peer:
                oldest[entry.group] = min(entry.sequence, oldest.get(entry.group, entry.sequence))
        for entry in dump.entries:
            ranks = None if entry.peers is None else _ranks_of(entry.peers, dump.groups.get(entry.group))
            if ranks is None or dump.rank not in ranks:
                continue
            pair = found[entry.group, *ranks]
            (pair.sends if entry.name.startswith("send") else pair.receives).append(entry)
            pair.oldest[dump.rank] = oldest[entry.group]
    return found


def _ranks_of(peers: tuple[int, int], members: Sequence[int] | None) -> tuple[int, int] | None:
    """The ranks of the job; those of a group that is not listed are taken to be numbered alike."""
    if members is None:
        return peers
    return (members[peers[0]], members[peers[1]]) if max(peers) < len(members) else None


def _first_open(calls: Sequence[Entry]) -> int | None:
    return next((at for at, entry in enumerate(calls) if not entry.done), None)
