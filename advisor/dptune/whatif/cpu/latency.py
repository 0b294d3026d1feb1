"""What latency is while ranks train: as the run's own collectives show it, or `dptune links` does, else assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from dptune.measured import LinkFigures
from dptune.whatif.cpu.model import Latency
from dptune.whatif.cpu.shared_link import Link, between
from dptune.whatif.cpu.timeline import Timeline

# Collectives after the backward pass tell what latency is while ranks train, where so many follow each other and it is
# so much of what they take: less of it is explained by errors of the link's rate.
_QUEUED, _QUEUED_SHARE = 8, 0.2
# Where ranks share the cores of one host with the threads that communicate: the latency that `dptune links` measures is
# of cores that idle and must be woken, which busy ones need not. Of bucket sizes on two ranks of one host of two cores,
# whose calls took 1.7 to 2.1 ms, five changes came out as by 0.8 to 1.4 ms; on another day the same calls took 0.25 ms,
# where cores had been kept awake.
_CROWDED_ALONE = 0.65
_OF_CROWDED = Latency(
    _CROWDED_ALONE, (), (0.4, 1.75), "`dptune links` also pays for CPU wake-up, which training ranks do not"
)
# Where it is not measured of calls that follow each other: six runs of many small buckets had 0.87, 0.88 (200 Mbit/s),
# 1.2, 2.0 (1 Gbit/s), 0.5 and 0.7 (on one host) times that of calls alone. Where it is: `dptune links` said 4.8 and
# 2.6 ms of them, of 64 KiB 4.6 and 1.7, and two runs each 4.6 and 4.6 (200 Mbit/s), 1.9 and 3.0 (1 Gbit/s). On one host
# it says 0.5 to 3 ms, another each time: it is not taken.
_OF_OTHERS, _QUEUED_OTHERS = Latency(others=(0.8, 1.4)), (0.85, 1.3)


def latency_of(seen: tuple[float, float] | None, figures: LinkFigures, link: Link, crowded: bool) -> Latency:
    """As the run's own collectives show it, and `dptune links` of calls that follow each other, else assumed.

    `seen` are bytes of a message, and the latency of such ones that follow each other: what was measured of other sizes
    is as much more or less than that of this one.
    """
    waking = crowded and figures.basis == "sweep"
    alone = _CROWDED_ALONE if waking else 1.0
    if not link.alpha_ns:
        return Latency()
    others: tuple[float, ...] = ()
    measured = (
        []
        if crowded
        else [
            (float(timing.message_bytes), link.lanes * (timing.median_ns - timing.message_bytes / link.bytes_per_ns))
            for timing in figures.queued
        ]
    )
    if seen is not None:
        size, took_ns = seen
        more_ns = took_ns - between(measured, size) if measured else took_ns
        found = [(message_bytes, latency_ns + more_ns) for message_bytes, latency_ns in measured or [(size, 0.0)]]
        why = "as observed after backward passes"
    elif measured:
        found, others, why = measured, _QUEUED_OTHERS, "as measured for calls queued back to back"
    elif waking:
        return _OF_CROWDED
    else:
        return _OF_OTHERS
    queued = tuple((size, max(0.0, latency_ns) / link.alpha_ns) for size, latency_ns in found)
    return Latency(alone, queued, others, why)


def seen(timelines: Mapping[int, Timeline], sizes: Sequence[int], link: Link) -> tuple[float, float] | None:
    """Bytes and latency of a collective that follows others while no rank computes; None where too few do.

    Of the rank that sees the least of it: the others wait for one that still computes.
    """
    seen = []
    for timeline in timelines.values():
        each = []
        for count, took_ns in timeline.tails:
            moving_ns = sum(sizes[-count:]) / link.bytes_per_ns
            if _QUEUED <= count <= len(sizes) and took_ns - moving_ns >= _QUEUED_SHARE * took_ns:
                each.append((link.lanes * (took_ns - moving_ns) / count, sum(sizes[-count:]) / count))
        if len(each) > len(timeline.tails) / 2:
            seen.append(tuple(median(column) for column in zip(*each, strict=True)))
    if len(seen) < len(timelines):
        return None
    latency_ns, size = min(seen)
    return size, latency_ns
