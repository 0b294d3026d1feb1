"""Latency and bandwidth of the links, by kind and group: from the collectives of a trace, and from a sweep.

Only collectives of which every rank was read, and which shared no time with another collective of any of their ranks,
are fitted: two at once slow each other. Waiting counts as sharing, so that nothing shared slips in; what ranks outside
of the group send through the same wire at that time is not seen.

Where no hosts are known, consecutive ranks on consecutive GPUs count as ranks of one host, with medium confidence: as
launchers place them, a second host begins again with its first GPU. Faster than the links of that GPU are, they do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dptune.measure.communication.fit import Fit, Times, fit, pooled
from dptune.measure.communication.matching import MatchedCollective, RankCalls
from dptune.measure.communication.peaks import intra_node
from dptune.measure.intervals import Ints
from dptune.measured import LinkFigures, LinkSize, RankFigures
from dptune.measured.collectives import collective
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes, SweepFit

NO_COLLECTIVE = "no collective of known size was recorded on all ranks of its group; `dptune links` measures the links"
ONE_RANK = "a single rank has no links"
_NO_GROUP = "the trace does not name the process group"
_OF_ALL = "a sweep uses the default group"
_NO_FACTOR = "it is unknown how much of this kind crosses each link"
_NO_PEAK = "dptune has no peak for the links of this device"
_ONE_GPU = "its ranks share a GPU"  # in place of the name of a device: no link joins it with itself
_NETWORK = "the network between the hosts is unknown"
_NO_HOSTS = "the hosts of its ranks are not known"
_SHARED = "every call overlapped another collective"
_OUTER = 0.05  # of a collective's transfer, at each end; 4 % was seen on a busy machine
_NS_PER_S = 1e9

Scope = Literal["intra-node", "inter-node", "unknown"]


@dataclass(frozen=True)
class Sweep:
    """What `dptune links` measured, and the file it is kept in. `asked`: named by the user for this run."""

    record: LinkRecord
    source: str
    asked: bool = False

    def fits(self, backend: str | None, world_size: int | None) -> bool:
        """Whether it measured the links of a run with this backend on so many ranks; unknown ones fit if asked for."""
        return all(
            of_sweep == of_run or (of_run is None and self.asked)
            for of_sweep, of_run in ((self.record.backend, backend), (self.record.world_size, world_size))
        )


def links(
    matches: Sequence[MatchedCollective], calls: Sequence[RankCalls], ranks: Sequence[RankFigures], sweep: Sweep | None
) -> list[LinkFigures] | None:
    """The links as the run's own collectives show them, then as a sweep does; None where neither says anything."""
    return [*from_trace(matches, calls, ranks), *(from_sweep(sweep) if sweep else [])] or None


def from_trace(
    matches: Sequence[MatchedCollective], calls: Sequence[RankCalls], ranks: Sequence[RankFigures]
) -> list[LinkFigures]:
    """One record per kind, group and set of ranks whose collectives have sizes and split."""
    crowded = _crowded(calls)
    hosts = {rank_figures.rank: rank_figures.known("host") for rank_figures in ranks}
    names = {rank.rank: _ONE_GPU if rank.gpu_ranks else rank.known("device_name") for rank in ranks}
    gpus = _gpus(calls)
    alike: dict[tuple[str, str | None, tuple[int, ...]], list[MatchedCollective]] = defaultdict(list)
    for match in matches:
        if match.splits and match.message_bytes and match.transfer_ns > 0:
            alike[match.kind, match.group, tuple(match.ranks.tolist())].append(match)
    found = []
    for (kind, group, members), each in alike.items():
        alone = [sized for sized in each if not _shares(sized, crowded)]
        message_bytes = np.array([sized.message_bytes for sized in alone], dtype=np.int64)
        durations_ns = np.array([sized.transfer_ns for sized in alone], dtype=np.int64)
        sizes = pooled(message_bytes, durations_ns)
        found.append(
            _figures(
                kind,
                group,
                list(members),
                [hosts.get(rank) for rank in members],
                [names.get(rank) for rank in members],
                sizes,
                *fit(sizes) if sizes else (None, _SHARED),
                shared_calls=len(each) - len(alone),
                basis="trace",
                gpus=[gpus.get(rank) for rank in members],
            )
        )
    return found


def from_sweep(sweep: Sweep) -> list[LinkFigures]:
    """The same from what `dptune links` measured."""
    record = sweep.record
    found = []
    for kind in record.kinds:
        sizes = swept(kind)
        found.append(
            _figures(
                kind.kind,
                None,
                kind.ranks,
                [_at(record.hosts, rank) for rank in kind.ranks],
                [_at(record.devices, rank) for rank in kind.ranks],
                sizes,
                *fit(sizes),
                shared_calls=0,
                basis="sweep",
                queued=_times(kind.queued),
                source=sweep.source,
                measured=record.measured,
            )
        )
    return found


def swept(kind: KindTimes) -> list[Times]:
    """The times of a kind of a sweep, ascending by size."""
    return _times(kind.sizes)


def _times(sizes: Sequence[SizeTimes]) -> list[Times]:
    rows = sorted(sizes, key=lambda size: size.message_bytes)
    return [
        Times(row.message_bytes, row.median_s * _NS_PER_S, row.q1_s * _NS_PER_S, row.q3_s * _NS_PER_S, row.calls)
        for row in rows
    ]


def scope(hosts: Iterable[str | None]) -> Scope:
    """Whether ranks on these hosts share a node."""
    named = set(hosts)
    if None in named or "" in named or not named:
        return "unknown"
    return "intra-node" if len(named) == 1 else "inter-node"


def _gpus(calls: Sequence[RankCalls]) -> dict[int, int]:
    """By rank the number of the only GPU that its collectives run on."""
    used: dict[int, set[str]] = defaultdict(set)
    for rank_calls in calls:
        used[rank_calls.rank].add(rank_calls.device)
    found = {}
    for rank, devices in used.items():
        _, _, number = devices.pop().rpartition("cuda:") if len(devices) == 1 else ("", "", "")
        if number.isdecimal():
            found[rank] = int(number)
    return found


def _in_a_row(ranks: Sequence[int], gpus: Sequence[int | None]) -> bool:
    """Whether these are consecutive ranks on consecutive GPUs."""
    known = [gpu for gpu in gpus if gpu is not None]
    return len(known) == len(ranks) > 1 and all(
        list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))) for numbers in (ranks, known)
    )


def _at(names: Sequence[str], rank: int) -> str | None:
    return names[rank] if 0 <= rank < len(names) else None


def _crowded(calls: Sequence[RankCalls]) -> dict[int, tuple[Ints, Ints]]:
    """By rank the starts and ends of all its collectives, each sorted, in ns since the epoch."""
    starts: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for rank_calls in calls:
        starts[rank_calls.rank] += [rank_calls.base_ns + call.start_ns for call in rank_calls.calls]
        ends[rank_calls.rank] += [rank_calls.base_ns + call.start_ns + call.dur_ns for call in rank_calls.calls]
    return {
        rank: (np.sort(np.array(starts[rank], dtype=np.int64)), np.sort(np.array(ends[rank], dtype=np.int64)))
        for rank in starts
    }


def _shares(match: MatchedCollective, crowded: Mapping[int, tuple[Ints, Ints]]) -> bool:
    """Whether a rank ran another collective meanwhile: begun before the end of this one, and not over by its start.

    Gloo's thread may close the range of one a little after the script has begun the next: the outer parts do not count.
    """
    for rank, start, end in zip(match.ranks.tolist(), match.start_ns.tolist(), match.end_ns.tolist(), strict=True):
        starts, ends = crowded[rank]
        outer = round(_OUTER * match.transfer_ns)
        begun = int(np.searchsorted(starts, end - outer, side="left"))
        over = int(np.searchsorted(ends, start + outer, side="right"))
        if begun - over > 1:
            return True
    return False


def _figures(
    kind: str,
    group: str | None,
    ranks: list[int],
    hosts: list[str | None],
    names: list[str | None],
    sizes: Sequence[Times],
    fitted: Fit | None,
    no_fit: str,
    *,
    shared_calls: int,
    basis: Literal["trace", "sweep"],
    queued: Sequence[Times] = (),
    gpus: Sequence[int | None] = (),
    source: str = "",
    measured: str = "",
) -> LinkFigures:
    where = scope(hosts)
    factor = collective(kind).bus_factor(len(ranks))
    peak, no_peak = _peak(where, names)
    inferred = False
    if not any(hosts) and _in_a_row(ranks, gpus):
        within, no_links = _peak("intra-node", names)
        inferred = within is not None and bool(fitted and factor and factor * fitted.beta_gb_per_s <= within)
        if inferred:
            where, peak, no_peak = "intra-node", within, no_links
    figures = {
        "group": (group, _NO_GROUP if basis == "trace" else _OF_ALL),
        "alpha_us": (fitted and fitted.alpha_ns / 1e3, no_fit),
        "alpha_low_us": (fitted and fitted.alpha_low_ns / 1e3, no_fit),
        "alpha_high_us": (fitted and fitted.alpha_high_ns / 1e3, no_fit),
        "algbw_gb_per_s": (fitted and fitted.beta_gb_per_s, no_fit),
        "busbw_gb_per_s": (fitted and factor and factor * fitted.beta_gb_per_s, no_fit or _NO_FACTOR),
        "busbw_low_gb_per_s": (fitted and factor and factor * fitted.beta_low_gb_per_s, no_fit or _NO_FACTOR),
        "busbw_high_gb_per_s": (fitted and factor and factor * fitted.beta_high_gb_per_s, no_fit or _NO_FACTOR),
        "residual_share": (fitted and fitted.residual_share, no_fit),
        "confidence": (fitted and fitted.confidence, no_fit),
        "peak_gb_per_s": (peak, no_peak),
    }
    return LinkFigures.of(
        figures,
        kind=kind,
        ranks=ranks,
        scope=where,
        scope_inferred=inferred,
        basis=basis,
        source=source,
        measured=measured,
        sizes=_sizes(sizes),
        queued=_sizes(queued),
        calls=sum(size.calls for size in sizes),
        shared_calls=shared_calls,
    )


def _sizes(times: Sequence[Times]) -> list[LinkSize]:
    return [
        LinkSize(
            message_bytes=time.message_bytes,
            calls=time.calls,
            median_ns=round(time.median_ns),
            q1_ns=round(time.q1_ns),
            q3_ns=round(time.q3_ns),
        )
        for time in times
    ]


def _peak(where: Scope, names: Sequence[str | None]) -> tuple[float | None, str]:
    """What the links of a rank carry at most, GB/s per direction, where all are of one kind; else why not."""
    if where != "intra-node":
        return None, _NETWORK if where == "inter-node" else _NO_HOSTS
    if _ONE_GPU in names:
        return None, _ONE_GPU
    found = {intra_node(name or "") for name in names}
    peak = found.pop() if len(found) == 1 else None
    return (None, _NO_PEAK) if peak is None else (peak.gb_per_s, "")


def fitted(record: LinkRecord) -> LinkRecord:
    """The record of a sweep with the fit of each kind in it, or why there is none."""
    kinds = []
    for kind in record.kinds:
        found, why = fit(swept(kind))
        factor = collective(kind.kind).bus_factor(len(kind.ranks))
        kinds.append(replace(kind, fit=_kept(found, factor) if found and factor else None, no_fit=why))
    return replace(record, kinds=kinds)


def _kept(found: Fit, factor: float) -> SweepFit:
    return SweepFit(
        alpha_us=found.alpha_ns / 1e3,
        alpha_low_us=found.alpha_low_ns / 1e3,
        alpha_high_us=found.alpha_high_ns / 1e3,
        algbw_gb_per_s=found.beta_gb_per_s,
        busbw_gb_per_s=factor * found.beta_gb_per_s,
        busbw_low_gb_per_s=factor * found.beta_low_gb_per_s,
        busbw_high_gb_per_s=factor * found.beta_high_gb_per_s,
        residual_share=found.residual_share,
        confidence=found.confidence,
    )
