"""The link of a program's collectives: measured, derived, or from too few sizes for a fit.

It is the link of `dptune links`: what a collective takes that has the link and the devices to itself. The run's own are
slower while a rank computes, so a fit of theirs is brought to those that overlap no compute.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from dptune.measured import LinkFigures, Measured, Missing
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import ALONE as ALONE_RANK
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.graph import Kind, Message, offsets_of
from dptune.whatif.gpu.overlap import computing_shares, shares_of_messages
from dptune.whatif.gpu.program import Program
from dptune.whatif.link import link_figures, link_of, link_range

NO_MESSAGES = "no collective of known size was matched on all its ranks"
NO_SIZES = "the traces do not record the sizes of collectives"
ASSUMED = "the run's own collectives, with an assumed latency"
ALONE, BESIDE = (
    0.25,
    0.75,
)  # of a collective, in which a rank computes: up to the first alone, from the second overlapped
# Times as long while a rank computes. On an H200 an all-reduce took 1.3 times as long as `dptune links` measured.
SLOWED = Assumed(1.0, 1.14, 1.34)
# Latency of an all-reduce between GPUs where the run's sizes are too few or too alike for a fit, and its range: between
# NVLink within a node and sockets. Assumed; it is at most half of what the quickest of the run's own takes.
_ALPHA_NS, _OTHER_ALPHAS_NS = 40e3, (10e3, 200e3)
_LARGEST_PART = 0.5
_OVERLAPPED, _FEWEST = 0.3, 4  # of a collective, and how many alone and how many overlapped show what that takes
_UNSHARED = 0.95  # of a collective's duration that it takes alone: if less, it shares links with others
# All-reduces that take as long as a collective of the same message: a ring all-reduce is a reduce-scatter, then an
# all-gather.
_ALL_REDUCES = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5}


class _Sent(NamedTuple):
    """One collective: its message, its time, the share of that in which a rank computes, and if it shares links."""

    message: Message
    ns: float
    share: float
    shares_links: bool = False

    @property
    def message_bytes(self) -> int:
        return self.message.message_bytes


def linked(program: Program, measured: Measured) -> Program:
    """The program with its link, others that the data allow, and their source; as it is where no link is known.

    And with what transfers take longer while a rank computes, if the trace shows it.
    """
    found = _linked(program, measured)
    if found.link is None or found.shared:
        return found
    if (times := _slowed(found, found.link)) is None:
        return found
    return found.contending(shares_of_messages(found, computing_shares(found)), times)


def _slowed(program: Program, link: Link) -> float | None:
    """How many times as long a transfer takes while a rank computes; None if too few show it.

    By transfers of the same message, over any link; else by what the link takes for those of others.
    """
    sent = _sent(program)
    every = _all_sent(program)
    found = _beside_alone([(each.message, each.ns, each.share) for each in every if not each.shares_links])
    found = found or _beside_alone([(each.message, each.ns, each.share) for each in every])
    found = found or _beside_alone([("", each.ns / link.alone_ns(each.message_bytes), each.share) for each in sent])
    return min(SLOWED.most, max(1.0, 1 + median(found))) if found else None


def _beside_alone(sent: Sequence[tuple[object, float, float]]) -> list[float]:
    """How much longer transfers take while a rank computes, as a share of those of the same key that ran alone.

    `sent`: the key, the time, and the share in which a rank computes. None if too few show it.
    """
    alone: dict[object, list[float]] = defaultdict(list)
    for key, took, share in sent:
        if share <= ALONE:
            alone[key].append(took)
    seen = [
        (took / median(alone[key]) - 1) / share
        for key, took, share in sent
        if share >= _OVERLAPPED and len(alone[key]) >= _FEWEST
    ]
    return seen if len(seen) >= _FEWEST else []


def _linked(program: Program, measured: Measured) -> Program:
    try:
        figures = link_figures(measured)
    except Missing:
        return _assumed(program.among(*_largest(program)))
    program = program.among(len(figures.ranks), offsets_of(figures.ranks))
    link, others = link_of(figures, "nccl"), link_range(figures)
    if figures.basis == "sweep":
        return program.over(link, tuple(others))
    level, *levels = _levels(program, figures)
    beside = [_scaled(link, other) for other in levels]
    return program.over(_scaled(link, level), (*(_scaled(other, level) for other in others), *beside))


def _largest(program: Program) -> tuple[int, tuple[int, ...]]:
    """How many ranks the largest groups have, and how these lie; of several the one that all-reduces most bytes."""
    sent: Counter[tuple[int, bool, tuple[int, ...]]] = Counter()
    for message in program.messages:
        sent[message.ranks, message.kind == "all_reduce", message.offsets] += message.message_bytes
    ranks, _, offsets = max(sent, key=lambda group: (group[:2], sent[group]), default=(0, False, ()))
    return ranks, offsets


def known_link(program: Program) -> Link:
    """The link. Raises Missing where there is none, or it is not known."""
    if program.world_size == 1:
        raise Missing(ALONE_RANK)
    if program.link is None:
        unmeasured = "latency and bandwidth of all-reduces are unknown: measure them with `dptune links`"
        raise Missing(unmeasured if program.messages else NO_SIZES if has_no_sizes(program) else NO_MESSAGES)
    return program.link


def has_no_sizes(program: Program) -> bool:
    """Whether collectives were matched, and the size of none is known."""
    return not program.messages and bool(program.places((Kind.UNSIZED,)))


def relinked(program: Program) -> list[Program]:
    """The program with each of the other links that the data allow."""
    return [program.over(link) for link in program.other_links]


def _levels(program: Program, figures: LinkFigures) -> tuple[float, ...]:
    """What a collective takes alone / what the fit of the run's own says; then the same at both ends of its range."""
    link = link_of(figures, "nccl")
    sent = [each for each in _sent(program) if link.alone_ns(each.message_bytes) > 0]
    alone = [each.ns / link.alone_ns(each.message_bytes) for each in sent if each.share <= ALONE]
    if alone or not sent:
        return (min(1.0, median(alone)) if alone else 1.0,)
    share = median(each.share for each in sent)
    return tuple(1 / slower(share, SLOWED.at(side)) for side in (Side.MIDDLE, Side.LEAST, Side.MOST))


def slower(share: float, slowed: float) -> float:
    """How many times as long a collective takes that overlaps compute for this share of what it takes alone."""
    return 1 + (slowed - 1) * share


def _scaled(link: Link, times: float) -> Link:
    """The link on which everything takes so many times as long."""
    return replace(link, alpha_ns=link.alpha_ns * times, bytes_per_ns=link.bytes_per_ns / times)


def _sent(program: Program) -> list[_Sent]:
    """The collectives that use the link and are part of an all-reduce, as long as an all-reduce of their bytes."""
    return [
        each._replace(ns=each.ns / _ALL_REDUCES[each.message.kind])
        for each in _all_sent(program)
        if each.message.kind in _ALL_REDUCES and program.uses_link(each.message)
    ]


def _all_sent(program: Program) -> list[_Sent]:
    """The collectives that were found on all their ranks, each once; without what sharing a link added."""
    shares = computing_shares(program)
    unshared = {end: transfer.alone for transfer in program.transfers for end in transfer.ends}
    found: dict[int, _Sent] = {}
    for place in program.places((Kind.COLLECTIVE,)):
        for edge in program.edges[place]:
            if edge.kind == Kind.COLLECTIVE and edge.lag_ns > 0:
                alone = unshared.get(place, 1.0)
                sent = _Sent(
                    program.messages[edge.message], edge.lag_ns * alone, shares.get(place, 0.0), alone < _UNSHARED
                )
                found[edge.message] = sent
    return list(found.values())


def _assumed(program: Program) -> Program:
    """With the rate at which messages were sent if the latency was as assumed."""
    sent = _sent(program)
    if not sent:
        return program
    alone = [(each.message_bytes, each.ns) for each in sent if each.share <= ALONE]
    by_side = [
        alone or [(each.message_bytes, each.ns / slower(each.share, SLOWED.at(side))) for each in sent]
        for side in (Side.MIDDLE, Side.LEAST, Side.MOST)
    ]
    link, *others = (_through(by_side[0], alpha_ns) for alpha_ns in (_ALPHA_NS, *_OTHER_ALPHAS_NS))
    beside = [] if alone else [_through(times, _ALPHA_NS) for times in by_side[1:]]
    return program.over(link, (*others, *beside), ASSUMED)


def _through(times: Sequence[tuple[int, float]], alpha_ns: float) -> Link:
    """The link of this latency on which messages of these bytes take as long as they did, in the median."""
    alpha_ns = min(alpha_ns, _LARGEST_PART * min(ns for _, ns in times))
    return Link(alpha_ns, median(message_bytes / (ns - alpha_ns) for message_bytes, ns in times))
