"""The ranks side by side: what each spends its step on, and how late it arrives in each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dptune.advice import Report
from dptune.measured import Account, ArrivalFigures, RankFigures
from dptune.present.amounts import milliseconds, ns_as_ms, percent
from dptune.present.first_screen import reported_straggler
from dptune.present.html import charts
from dptune.present.html.markup import Section, key, note, paragraph
from dptune.present.html.style import COLORS
from dptune.present.sections.ranks import latest
from dptune.present.step_classes import CLASSES, NAMES, color_of

_LEAST_SHARE = 0.0005
_LATE = 0.1  # of the lag of the latest rank: with less, a rank of many is not drawn
_LEAST_ROWS = 8
_LEAST_LATE = 0.01  # of a step: where no rank is later in any, and none is reported, there is nothing to show
_FULL = 0.05  # of a step: where no rank is later, the color of that lag is not the strongest
_Rank = TypeVar("_Rank")
_Row = tuple[str, list[tuple[str, float]]]


def ranks(report: Report) -> Iterator[Section]:
    """A stacked bar for each rank, of the latest to arrive where they are many; of the recording without steps."""
    measured = report.measured
    account = measured.known("account")
    accounts = [(rank, total) for rank in measured.ranks if (total := _total(rank, whole=account is None))]
    latest = _latest(accounts, lambda pair: _lag_ns(pair[0]))
    rows = [] if account is None else [("all ranks" if len(accounts) > 1 else "all steps", _shares(account))]
    if len(accounts) > 1 or account is None:
        rows += [(f"r{rank.rank}", _shares(total)) for rank, total in sorted(latest, key=lambda pair: pair[0].rank)]
    if not rows:
        return
    took = measured.step.known("time_ns")
    words = "No steps were found: shares of the whole recording."
    if account is not None:
        words = ""
        if took:
            words = (
                f"The {measured.step.average} step takes {milliseconds(took / 1e6)}. Shares are of the traced steps."
            )
    used = {field for _, shares in rows for field, share in shares if share >= _LEAST_SHARE}
    bars = [(name, _bar(name, shares)) for name, shares in rows]
    colors = [(kind.color, f"{kind.name} ({kind.words})") for kind in CLASSES if kind.field in used]
    body = f"{paragraph(words)}{charts.rows(bars, late=_name(report))}{key(colors)}"
    title = "Step time breakdown" if account else "Time breakdown of the recording"
    left_out = _left_out(len(latest), len(accounts), late=any(map(_late, latest)))
    yield Section("ranks", title, "Breakdown", f"{body}{left_out}")


def lateness(report: Report) -> Iterator[Section]:
    """A row of cells for each rank, beside its late time: the stronger the color, the later it is in that step."""
    known = [(rank.rank, arrival) for rank in report.measured.ranks if (arrival := rank.known("arrival")) is not None]
    late = _latest(known, lambda pair: _summed_ns(pair[1]))
    rows = [
        (rank, arrival.lag_ns, [(step.number, step.lag_ns) for step in arrival.steps])
        for rank, arrival in sorted(late, key=lambda pair: pair[0])
    ]
    most = max((lag_ns for _, _, lags in rows for _, lag_ns in lags), default=0)
    if len(rows) < 2 or not most:
        return
    step_ns = report.measured.traced_step_ns if report.measured.known("account") else 0
    if most < _LEAST_LATE * step_ns and reported_straggler(report) is None:
        return
    full = max(most, round(_FULL * step_ns))
    names = {rank: f"r{rank}: {ns_as_ms(lag_ns)} ms" for rank, lag_ns, _ in rows}
    cells = [
        (names[rank], charts.strip(_cells(rank, lags, full), f"Lateness of rank {rank}")) for rank, _, lags in rows
    ]
    words = "A row per rank, with how late it is in the median step; a cell per step. "
    words += f"Full color: {ns_as_ms(full)} ms late"
    words += f"; no rank is later than {ns_as_ms(most)} ms." if full > most else "."
    named = reported_straggler(report)
    straggler = "" if named is None else names.get(named, "")
    body = f"{paragraph(latest(report))}{charts.rows(cells, late=straggler)}{note(words)}"
    yield Section("lateness", "Late ranks", "Late ranks", f"{body}{_left_out(len(late), len(known), late=True)}")


def _name(report: Report) -> str:
    """The name of the straggler's row; "" where none is reported."""
    late = reported_straggler(report)
    return "" if late is None else f"r{late}"


def _cells(rank: int, lags: Sequence[tuple[int, int]], full: int) -> Iterator[charts.Box]:
    for place, (number, lag_ns) in enumerate(lags):
        tooltip = f"rank {rank}, step {number}: {ns_as_ms(lag_ns)} ms late"
        length = 0.96 / len(lags)
        yield charts.Box(place / len(lags), length, COLORS["communication"], tooltip, 0.06 + 0.94 * lag_ns / full)


def _bar(name: str, shares: Sequence[tuple[str, float]]) -> str:
    return charts.bar(
        charts.Part(share, color_of(field), f"{name}: {NAMES[field]} {percent(share)}", percent(share), NAMES[field])
        for field, share in shares
    )


def _total(rank: RankFigures, *, whole: bool) -> Account | None:
    """The account of a rank's devices together, of the steps or of the whole recording; None where there is none."""
    accounts = [device.whole if whole else device.total for device in rank.devices if whole or device.steps]
    accounts = [account for account in accounts if account.window_ns]
    return sum(accounts[1:], accounts[0]) if accounts else None


def _shares(account: Account) -> list[tuple[str, float]]:
    return [(kind.field, account.share(kind.field)) for kind in CLASSES]


def _summed_ns(arrival: ArrivalFigures) -> int:
    """How late it is over all steps: a rank that is late in a few has no lag in the median one."""
    return sum(step.lag_ns for step in arrival.steps)


def _lag_ns(rank: RankFigures) -> int:
    arrival = rank.known("arrival")
    return 0 if arrival is None else _summed_ns(arrival)


def _late(pair: tuple[RankFigures, Account]) -> bool:
    return _lag_ns(pair[0]) > 0


def _latest(ranks: Sequence[_Rank], lag_ns: Callable[[_Rank], int]) -> list[_Rank]:
    """All of them, the latest first; of many ranks those about as late as the latest, and some to compare with."""
    if len(ranks) <= charts.MOST_ROWS:
        return sorted(ranks, key=lag_ns, reverse=True)
    latest = sorted(ranks, key=lag_ns, reverse=True)[: charts.MOST_ROWS]
    least_ns = _LATE * lag_ns(latest[0])
    return [rank for place, rank in enumerate(latest) if place < _LEAST_ROWS or lag_ns(rank) >= max(1, least_ns)]


def _left_out(shown: int, count: int, *, late: bool) -> str:
    """That a picture does not show all ranks, where it does not."""
    which = "those that arrive latest" if late else "those with the lowest numbers"
    return note(f"{shown} of {count:,} ranks, {which}; the rank table has all.") if shown < count else ""
