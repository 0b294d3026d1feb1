"""Ranks compared with each other: who is late and where, slow GPUs, slow links, unsteady hosts, what steps would gain.

The gain is the what-if of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): the
recorded steps are replayed with the work of the slowest ranks as the median rank's. That study replaces the times of
operations; here it is the work between collectives, whatever it consists of (`communication/gain.py`).

The study compares the job with one without any straggler: its slowdown is the mean step time divided by that of a
replay in which each compute operation takes the mean time of its kind over ranks, stages and steps, and each transfer
the median; launch delays are removed from both. `gains` are of the slowest rank, the slowest 2, the slowest 1 % and all
late ranks, as shares of the recorded time: a share g is a slowdown of 1 / (1 - g). The gain of all late ranks is the
nearest to the study's slowdown, and a lower bound of it: ranks below the threshold keep their times, and so do the
collectives. What the study attributes to the slowest 3 % of workers is the part of the difference between the recorded
and the ideal step time that goes when they alone take ideal times; the nearest here is the gain of the slowest 1 %
divided by the gain of all late ranks. The study ranks workers by what their own times alone add to the ideal job, here
they are ranked by their lag. Shares of jobs that it publishes are of one cluster's jobs and are no reference for one
run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dptune.measure.across_ranks import Across
from dptune.measure.communication.arrivals import CAUSE_OF_CLASS
from dptune.measure.communication.gain import gains
from dptune.measure.communication.lag import Floats
from dptune.measure.outliers.devices import Times, slow_devices
from dptune.measure.outliers.lags import Lags, own_lags
from dptune.measure.outliers.links import slow_links
from dptune.measure.outliers.places import Place, places, positions, shared
from dptune.measure.outliers.thresholds import upper_limit
from dptune.measure.views import RankView
from dptune.measured import CLASSES, LAG_CLASSES, Account, DeviceFigures, ProcessGroupFigures
from dptune.measured.outliers import (
    HostLag,
    LatePlace,
    OutlierFigures,
    RankLag,
    SlowDevice,
    SlowestGain,
    UnsteadyHost,
)

FEWEST_RANKS = 8  # the median of fewer is moved by a late rank or two; `straggler` compares them
FEW = f"fewer than {FEWEST_RANKS} ranks share collectives"
_LEAST_SHARE = 0.02  # of a step, from which a lag costs something: `impact_of` in advice.py calls less no impact
_LATE_STEP = 0.5  # of the threshold, from which on a step counts as late
_LEAST_STEPS = 3  # in which a rank is late: fewer may be chance; all, of fewer steps
_ONE_PERCENT = 0.01
_CAUSES: dict[str, str] = {**dict(LAG_CLASSES.items()), "": "compute"}
_NO_CAUSE = "nothing in its trace explains half of its lag"


def outliers(
    views: Sequence[RankView],
    times: Mapping[int, Times],
    together: Across,
    hosts: Mapping[int, str],
    account: Account,
    groups: Sequence[ProcessGroupFigures],
) -> OutlierFigures | None:
    """None where fewer than eight ranks share collectives. `hosts` of the ranks whose host is known.

    `times` are those of the kernels by rank, in all recorded steps.
    """
    lags = own_lags(together.compared, together.clocks, together.tracks)
    if len(lags.ranks) < FEWEST_RANKS:
        return None
    steps = sum(len(device.steps) for devices in together.devices.values() for device in devices)
    mean_ns, least_ns = lags.mean_ns, _LEAST_SHARE * account.window_ns / max(1, steps)
    threshold_ns = upper_limit(mean_ns, least_ns)
    late = _late(lags, threshold_ns)
    by_rank = positions(views, groups)
    known = places({rank: hosts[rank] for rank in lags.ranks if rank in hosts}, by_rank)
    slow = slow_devices(times)
    links, link_hosts = slow_links(together.collectives, hosts)
    found = shared(late, known)
    latest = lags.lag_ns.argmax(axis=0)
    more = _more(together.devices)
    return OutlierFigures(
        steps=lags.steps,
        threshold_ns=round(threshold_ns),
        latest_ns=round(float(lags.lag_ns.max(axis=0).mean())),
        latest_ranks=len({int(at) for at, most in zip(latest, lags.lag_ns.max(axis=0), strict=True) if most > 0}),
        late=sorted(
            (_place(place, lags, threshold_ns, hosts, dict(slow), more) for place in found),
            key=lambda place: -place.lag_ns,
        ),
        slow_devices=[SlowDevice(rank=rank, host=hosts.get(rank, ""), times=times) for rank, times in slow],
        slow_links=links,
        slow_link_hosts=link_hosts,
        unsteady_hosts=_unsteady(lags, set(late), hosts, least_ns),
        gains=_gains(lags, late, together) if late else [],
        hosts=_hosts(lags, hosts),
        ranks=[
            RankLag(
                rank=rank,
                lag_ns=round(mean),
                steps_ns=np.rint(row).astype(int).tolist(),
                positions=by_rank.get(rank, {}),
            )
            for rank, mean, row in zip(lags.ranks, mean_ns.tolist(), lags.lag_ns, strict=True)
        ],
    )


def _late(lags: Lags, threshold_ns: float) -> list[int]:
    """The ranks that are late in the mean step, and in several steps."""
    often = (lags.lag_ns >= _LATE_STEP * threshold_ns).sum(axis=1) >= min(_LEAST_STEPS, len(lags.steps))
    return [lags.ranks[at] for at in np.flatnonzero(often & (lags.mean_ns >= threshold_ns)).tolist()]


def _place(
    place: Place,
    lags: Lags,
    threshold_ns: float,
    hosts: Mapping[int, str],
    slow: Mapping[int, float],
    more: Mapping[int, _More],
) -> LatePlace:
    ranks = sorted(place.ranks)
    of_ranks = lags.lag_ns[[lags.ranks.index(rank) for rank in ranks]]
    lag_ns = float(np.median(of_ranks.mean(axis=1)))
    cause = _cause(ranks, slow, more, lag_ns)
    return LatePlace(
        kind=place.kind,
        place=place.name,
        ranks=ranks,
        hosts=sorted({hosts[rank] for rank in ranks if rank in hosts}),
        lag_ns=round(lag_ns),
        late_share=float(np.median((of_ranks >= _LATE_STEP * threshold_ns).mean(axis=1))),
        cause=cause,
        missing={} if cause else {"cause": _NO_CAUSE},
    )


def _cause(ranks: Sequence[int], slow: Mapping[int, float], more: Mapping[int, _More], lag_ns: float) -> str | None:
    """A slow GPU where half of the ranks have one; else what takes most of them half of their lag or more longer."""
    times = sorted(slow[rank] for rank in ranks if rank in slow)
    if 2 * len(times) >= len(ranks):
        return f"slow GPU: same kernels {times[len(times) // 2]:.2f}x"
    causes = Counter(more[rank].cause for rank in ranks if rank in more and more[rank].length_ns >= lag_ns / 2)
    if not causes:
        return None
    cause, count = causes.most_common(1)[0]
    return _CAUSES[cause] if 2 * count >= len(ranks) else None


class _More(NamedTuple):
    """What a rank spends longer on than the median rank, per step; "" for compute."""

    cause: str
    length_ns: float


def _more(devices: Mapping[int, Sequence[DeviceFigures]]) -> dict[int, _More]:
    """By rank, the largest of what its accounts show; communication is not work of its own."""
    spent = {rank: _spent([step.account for device in of for step in device.steps]) for rank, of in devices.items()}
    spent = {rank: by_cause for rank, by_cause in spent.items() if by_cause}
    causes = sorted({cause for by_cause in spent.values() for cause in by_cause if cause != "communication"})
    usual = {cause: float(np.median([by_cause[cause] for by_cause in spent.values()])) for cause in causes}
    return {
        rank: max((_More(cause, by_cause[cause] - usual[cause]) for cause in causes), key=lambda more: more.length_ns)
        for rank, by_cause in spent.items()
    }


def _spent(accounts: Sequence[Account]) -> dict[str, float]:
    """Nanoseconds of a step by cause of a lag; "" is compute."""
    found: dict[str, float] = {}
    for account in accounts:
        for name in CLASSES:
            cause: str = CAUSE_OF_CLASS.get(name, "")
            found[cause] = found.get(cause, 0.0) + getattr(account, name) / len(accounts)
    return found


def _gains(lags: Lags, late: Sequence[int], together: Across) -> list[SlowestGain]:
    """Without the delays of the slowest one, two, one percent and all late ranks; each set of ranks once."""
    slowest = [lags.ranks[at] for at in np.argsort(-lags.mean_ns, kind="stable").tolist()]
    windows = {(view.rank, device.operations.device): device.windows for view, device, _ in together.spent}
    counts = sorted({1, 2, math.ceil(_ONE_PERCENT * len(slowest)), len(late)})
    sets = [sorted(slowest[:count]) for count in counts if count <= len(late)]
    replayed = gains([set(ranks) for ranks in sets], together.compared, together.clocks, together.tracks, windows)
    return [
        SlowestGain(ranks=ranks, share=gain.share)
        for ranks, gain in zip(sets, replayed, strict=True)
        if gain is not None
    ]


def _unsteady(lags: Lags, late: set[int], hosts: Mapping[int, str], least_ns: float) -> list[UnsteadyHost]:
    """Hosts of two ranks or more that are late in some steps, without those of which most ranks are late in most."""
    of_hosts: dict[str, list[int]] = {}
    for at, rank in enumerate(lags.ranks):
        if rank in hosts:
            of_hosts.setdefault(hosts[rank], []).append(at)
    spread = np.percentile(lags.lag_ns, 90, axis=1) - np.median(lags.lag_ns, axis=1)
    by_host = {host: float(np.median(spread[rows])) for host, rows in of_hosts.items() if len(rows) > 1}
    if len(by_host) < 2:
        return []
    limit = upper_limit(np.array(list(by_host.values())), least_ns)
    found = [
        UnsteadyHost(host=host, ranks=[lags.ranks[at] for at in of_hosts[host]], spread_ns=round(spread_ns))
        for host, spread_ns in by_host.items()
        if spread_ns >= limit and 2 * sum(lags.ranks[at] in late for at in of_hosts[host]) <= len(of_hosts[host])
    ]
    return sorted(found, key=lambda unsteady: -unsteady.spread_ns)


def _hosts(lags: Lags, hosts: Mapping[int, str]) -> list[HostLag]:
    """Every host, in the order of its lowest rank; none where there is only one."""
    of_hosts: dict[str, list[int]] = {}
    for at, rank in enumerate(lags.ranks):
        if rank in hosts:
            of_hosts.setdefault(hosts[rank], []).append(at)
    means: Floats = lags.mean_ns
    if len(of_hosts) < 2:
        return []
    return [
        HostLag(
            host=host,
            ranks=len(rows),
            lag_ns=round(float(means[rows].mean())),
            latest_ns=round(float(means[rows].max())),
        )
        for host, rows in of_hosts.items()
    ]
