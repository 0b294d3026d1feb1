"""The rank that the others wait for most: what the steps would gain without its delays, and what differs on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from dptune.errors import TraceError
from dptune.measure.across_ranks import Across
from dptune.measure.communication.arrivals import late_steps
from dptune.measure.communication.arrivals import straggler as latest
from dptune.measure.communication.gain import gain
from dptune.measure.device import longer as on_device
from dptune.measure.host import longer as on_host
from dptune.measure.host.elements import elements_per_step
from dptune.measure.steps.windows import Step
from dptune.measure.views import MANY_EVENTS, RankView, view
from dptune.measured import OF_SCRIPT, Account, ArrivalFigures, LagDifference, StragglerFigures
from dptune.trace.run import RankTrace, Run

NO_REPLAY = "the collectives cannot be replayed: too few match across ranks"
NOTHING_LONGER = "no operator, function, gap or kernel takes longer on it than on the others"

_LEAST_WORK = 0.3  # of the lag, that differences of one sort explain where they are its cause
_LEAST_WHOLE = 2  # steps
_MOST_LAGS = 3  # a difference of more is of the detailed window itself, which holds other steps than the lag
LEAST_LAG_SHARE = 0.02  # of the steps: why a rank is later by less is not worth reading its detailed trace
MOST_OTHERS = 8  # ranks that the straggler's host is compared with: more tell no more
MOST_DETAILED = 3  # of those whose detailed traces are read: they are large


def straggler(
    run: Run, views: Sequence[RankView], together: Across, account: Account
) -> tuple[StragglerFigures | str, dict[int, ArrivalFigures]]:
    """The straggler, or why there is none; and the arrivals of all ranks, with what its differences tell of its own.

    `views` are the ranks of which the events are here.
    """
    arrived = together.arrivals
    found = latest(arrived, account)
    if isinstance(found, str):
        return found, arrived
    rank = found.rank
    windows = {(rank_view.rank, device.operations.device): device.windows for rank_view, device, _ in together.spent}
    gained = gain({rank}, together.compared, together.clocks, together.tracks, windows)
    missing = {"work_ratio": found.missing["work_ratio"]} | ({"gain_share": NO_REPLAY} if gained is None else {})
    found = found.model_copy(update={"gain_share": None if gained is None else gained.share, "missing": missing})
    accounted = {window.number for of_device in windows.values() for window in of_device}
    lag_ns = {step.number: float(step.lag_ns) for step in late_steps(arrived[rank]) if step.number in accounted}
    if not lag_ns:
        return found, arrived
    lag_ns = _whole(lag_ns, by_device=[device for (number, _), device in windows.items() if number == rank])
    steps = sum(len(device.steps) for devices in together.devices.values() for device in devices)
    if found.late_share * sum(lag_ns.values()) / len(lag_ns) < LEAST_LAG_SHARE * account.window_ns / steps:
        return found, arrived
    by_rank = {rank_view.rank: rank_view for rank_view in views if rank_view.rank in arrived}
    if rank not in by_rank:  # of which only a record was kept
        return found, arrived
    detailed = _detailed(run, rank)
    differences = _differences(detailed, by_rank, together, rank, lag_ns)
    found = found.model_copy(update={"differences": differences})
    ratio = _work_ratio(detailed, rank)
    if ratio is not None:
        missing = {name: why for name, why in found.missing.items() if name != "work_ratio"}
        found = found.model_copy(update={"work_ratio": ratio, "missing": missing})
    return found, {**arrived, rank: by_shapes(settled(arrived[rank], differences), found)}


def _whole(lag_ns: dict[int, float], by_device: Sequence[Sequence[Step]]) -> dict[int, float]:
    """The lags without that of a last step that lacks its trailing wait, where two are left: a rank that waits before
    its steps does so at the end of their windows.
    """
    open_ended = {window.number for device in by_device for window in device if window.open_ended}
    whole = {number: lag for number, lag in lag_ns.items() if number not in open_ended}
    return whole if len(whole) >= _LEAST_WHOLE else lag_ns


def by_shapes(arrival: ArrivalFigures, late: StragglerFigures) -> ArrivalFigures:
    """The straggler's arrivals, whose compute is more of the same work, or slower, as the shapes of its tensors say.

    Durations alone do not separate the two where other processes disturb them.
    """
    moves = late.moves if late.known("work_ratio") is not None else None
    cause, work = (
        arrival.known("cause"),
        sum(difference.share for difference in late.differences if difference.kind not in OF_SCRIPT),
    )
    if moves and cause in (None, "slower compute", "host") and work >= _LEAST_WORK:
        share = max(work, arrival.known("cause_share") or 0.0)
        missing = {name: why for name, why in arrival.missing.items() if name not in ("cause", "cause_share")}
        return arrival.model_copy(update={"cause": "more compute", "cause_share": share, "missing": missing})
    if moves is False and cause == "more compute":
        return arrival.model_copy(update={"cause": "slower compute"})
    return arrival


def _work_ratio(detailed: Mapping[int, RankView], rank: int) -> float | None:
    """Elements that the operators of the rank read in a step / the median of the others."""
    read = {number: elements_per_step(rank_view) for number, rank_view in detailed.items()} if len(detailed) > 1 else {}
    rank_elements, others = read.get(rank), [each for number, each in read.items() if number != rank and each]
    return rank_elements / median(others) if rank_elements and others and len(others) == len(read) - 1 else None


def settled(arrival: ArrivalFigures, differences: Sequence[LagDifference]) -> ArrivalFigures:
    """The straggler's arrivals, whose cause is compute only where operators or kernels do take longer.

    On a CPU whatever a hook or a function does inside of an operator counts as compute.
    """
    if arrival.known("cause") not in ("slower compute", "more compute"):
        return arrival
    script, work = (
        sum(difference.share for difference in differences if (difference.kind in OF_SCRIPT) == of_script)
        for of_script in (1, 0)
    )
    if work >= max(_LEAST_WORK, script):
        return arrival
    if script >= _LEAST_WORK:
        return arrival.model_copy(update={"cause": "host", "cause_share": script})
    missing = dict.fromkeys(("cause", "cause_share"), NOTHING_LONGER)
    return arrival.model_copy(update={"cause": None, "cause_share": None, "missing": {**arrival.missing, **missing}})


def _differences(
    detailed: Mapping[int, RankView],
    views: Mapping[int, RankView],
    together: Across,
    rank: int,
    lag_ns: Mapping[int, float],
) -> list[LagDifference]:
    """What takes the rank longer, on its host and its device, the largest share of the lag first."""
    device, most = [], 1.0
    if any(not each.operations.on_cpu for each in views[rank].devices):
        spent = {number: together.devices.get(number, []) for number in views}
        device = on_device.longer(views, spent, rank, lag_ns, on_host.LEAST_SHARE)
        most = min(1.0 - sum(difference.share for difference in device), on_device.idle_share(spent, rank, lag_ns))
    host = _of_host(detailed, views, rank, lag_ns) if most >= on_host.LEAST_SHARE else []
    too_much = max(1.0, sum(difference.share for difference in host) / max(most, on_host.LEAST_SHARE))
    host = [difference.model_copy(update={"share": difference.share / too_much}) for difference in host]
    return sorted([*device, *host], key=lambda one: -one.share)


def _of_host(
    detailed: Mapping[int, RankView], views: Mapping[int, RankView], rank: int, lag_ns: Mapping[int, float]
) -> list[LagDifference]:
    """From the detailed windows, which have functions; from the light ones where those do not show the difference."""
    others = [number for number in views if number != rank][:MOST_OTHERS]
    light = on_host.longer({number: views[number] for number in (rank, *others)}, rank, lag_ns)
    if len(detailed) < 2:
        return light
    usual_ns = median(lag_ns.values()) or sum(lag_ns.values()) / len(lag_ns)
    numbers = [step.number for step in detailed[rank].steps]
    found = on_host.longer(detailed, rank, dict.fromkeys(numbers, usual_ns))
    found = [difference for difference in found if difference.rank_ns - difference.others_ns <= _MOST_LAGS * usual_ns]
    explained, by_light = (sum(difference.share for difference in each) for each in (found, light))
    return found if explained >= by_light / 2 else light


def _detailed(run: Run, rank: int) -> dict[int, RankView]:
    """The detailed windows of the rank and of some others; none where its own cannot be read or is too large."""
    ranks = sorted(
        (rank_trace for rank_trace in run.ranks if rank_trace.detailed_source), key=lambda one: one.rank != rank
    )
    found = {}
    for rank_trace in ranks[: 1 + MOST_DETAILED]:
        rank_view = _detailed_view(run, rank_trace)
        if rank_view is not None:
            found[rank_trace.rank] = rank_view
    return found if rank in found else {}


def _detailed_view(run: Run, rank: RankTrace) -> RankView | None:
    try:
        trace = rank.detailed
    except TraceError:
        return None
    if trace is None or trace.events > MANY_EVENTS:
        return None
    facts = run.facts.get(rank.rank)
    rank_view = view(rank.rank, trace, facts.window("detailed") if facts else None)
    return None if rank_view.no_steps else rank_view
