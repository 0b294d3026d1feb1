"""One row per rank and device: who is slow, who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dptune.advice import Report
from dptune.advise.straggler import cause, meanwhile
from dptune.measured import Account, DeviceFigures, Measured, Missing, RankFigures
from dptune.present.amounts import ns_as_ms, percent, several, shown
from dptune.present.first_screen import reported_straggler
from dptune.present.lines import Line, heading, wrapped
from dptune.present.table import Cell, Column, absent_throughout, table

COLUMNS = (
    Column("rank"),
    Column("host", right=False, least=8),
    Column("device", right=False, least=8),
    Column("step ms"),
    Column("compute"),
    Column("exposed"),
    Column("copies"),
    Column("idle"),
    Column("input"),
    Column("late ms"),
)
_SHARES = (
    "compute, exposed (communication not overlapped by compute, waiting included), copies and idle are shares of the "
    "{whole}"
)
_WORDS = {  # what a column means, where it is shown
    "step ms": "step ms is untraced",
    "compute": _SHARES,
    "input": "input is the share of the step in which the script waits for its next batch",
    "late ms": "late ms is how late the rank arrives at collectives (traced, median step)",
}
_AT_MOST = 16
_MOST_STEPS = 0.5
_LATEST = "Latest"  # what a rank is called that arrives last in most steps, and is no straggler
_LEAST_LAG_SHARE = 0.01  # of a step: a smaller lag holds up nobody


def ranks(report: Report, width: int) -> Iterator[Line]:
    """The table of ranks, and what is wrong with the file of any."""
    rows = list(rank_rows(report))
    yield from heading(f"Ranks ({len(report.measured.ranks):,})", width)
    order = ""
    if len(rows) > _AT_MOST:  # the late ones would be among those that are not shown
        rows, order = late_first(report, rows)
    alone = report.measured.known("world_size") == 1  # a single rank waits for no other
    columns = COLUMNS[:-1] if alone else COLUMNS
    yield from table(columns, [row[: len(columns)] for row in rows[:_AT_MOST]], width)
    if len(rows) > _AT_MOST:
        yield from wrapped(
            f"and {several(len(rows) - _AT_MOST, 'more row')}: see --format json", width, "  ", role="dim"
        )
    if rows:
        yield from wrapped(f"{order}{words(report, rows)}", width, "  ", role="dim")
    names = sorted({str(rank.known("device_name")) for rank in report.measured.ranks if rank.known("device_name")})
    if names:
        yield from wrapped(f"Devices: {', '.join(names)}", width, "  ", role="dim")
    yield from wrapped(latest(report), width, "  ")
    for remark in rank_remarks(report):
        yield from wrapped(remark, width, "  ", "    ", role="warning")


def rank_rows(report: Report) -> Iterator[list[Cell]]:
    """Cells of each rank and device, in the order of `COLUMNS`."""
    for rank in report.measured.ranks:
        if not rank.devices:
            yield _row(rank, "none", _no_device)
        for device in rank.devices:
            yield _row(rank, device.device, partial(_account, device))


def late_first(report: Report, rows: Sequence[list[Cell]]) -> tuple[list[list[Cell]], str]:
    """The rows of `rank_rows`, the latest ranks first, and a sentence that says so; unchanged where no rank is late."""
    lags = [arrival.lag_ns if (arrival := rank.known("arrival")) else 0 for rank in rank_of_row(report)]
    if not any(lags):
        return list(rows), ""
    order = sorted(range(len(rows)), key=lambda place: -lags[place])
    return [rows[place] for place in order], "The ranks that arrive latest are first. "


def words(report: Report, rows: Sequence[Sequence[Cell]]) -> str:
    """What the columns mean that any row has a figure in."""
    stepped = any(device.steps for rank in report.measured.ranks for device in rank.devices)
    absent = absent_throughout(rows)
    meant = (_WORDS[column.heading] for i, column in enumerate(COLUMNS) if column.heading in _WORDS and i not in absent)
    text = "; ".join(meant).format(whole="traced steps" if stepped else "recording")
    return f"{text[:1].upper()}{text[1:]}."


def rank_of_row(report: Report) -> list[RankFigures]:
    """The rank that each row of `rank_rows` is about."""
    return [rank for rank in report.measured.ranks for _ in range(max(1, len(rank.devices)))]


def rank_remarks(report: Report) -> Iterator[str]:
    """Ranks whose file broke off, or whose shares are of the whole recording because no step was found."""
    partial_ranks = [rank for rank in report.measured.ranks if rank.partial]
    for rank in partial_ranks[:_AT_MOST]:
        yield f"Rank {rank.rank} is partial: {rank.partial}"
    if len(partial_ranks) > _AT_MOST:
        yield f"{several(len(partial_ranks) - _AT_MOST, 'more rank is', 'more ranks are')} partial."
    whole = [str(rank.rank) for rank in report.measured.ranks if any(not device.steps for device in rank.devices)]
    if whole:
        which = f"rank {whole[0]}" if len(whole) == 1 else f"ranks {', '.join(whole[:_AT_MOST])}"
        more = f" and {len(whole) - _AT_MOST} more" if len(whole) > _AT_MOST else ""
        yield f"No steps were found on {which}{more}: the shares are of the whole recording."


def latest(report: Report) -> str:
    """The rank that the others wait for, called the straggler where the report does; "" where there is only one."""
    named = reported_straggler(report) is not None
    said = straggler(report.measured, named)
    ruled_out = said.startswith(_LATEST) and report.trust.level != "unjudgeable"
    return f"{said} The report does not count it as a straggler." if ruled_out else said


def straggler(measured: Measured, named: bool = True) -> str:
    """The rank that the others wait for, and why; `named`: whether it is late enough to be called the straggler."""
    worst = measured.known("straggler")
    if worst is None:
        return "" if len(measured.ranks) < 2 else f"No straggler identified: {measured.missing['straggler']}."
    arrival = next(rank.arrival for rank in measured.ranks if rank.rank == worst.rank)
    if max(step.lag_ns for step in arrival.steps) < _LEAST_LAG_SHARE * measured.traced_step_ns:
        return f"No rank arrives late by {100 * _LEAST_LAG_SHARE:.0f} % of a step or more."
    of_steps = f"{percent(worst.steps_share)} of {'the steps' if worst.late_share == 1 else 'these'}"
    if worst.steps_share == 1:
        of_steps = "every step" if worst.late_share == 1 else "all of these"
    lag = f"{ns_as_ms(worst.lag_ns)} ms late {worst.when}"
    who = f"{'Straggler' if named else _LATEST}: rank {worst.rank} is {lag} and last to arrive in {of_steps}."
    often = worst.steps_share > _MOST_STEPS
    if not often:
        who = f"No rank arrives last in most steps. The others wait most for rank {worst.rank}, last in {of_steps}."
    said = f"{who} Over all ranks, {percent(worst.waiting_share)} of the time is spent waiting for the last rank."
    if (measured.known("world_size") or 0) > len(measured.ranks):
        said += " Ranks that were not read may be later: these are lower bounds."
    return f"{said} {cause(worst, arrival)}" if worst.lag_ns and often and named else said


def lateness(rank: RankFigures, why: bool = True) -> str:
    """How late one rank comes to collectives; `why`: with what it does meanwhile."""
    arrival = rank.arrival
    if not any(step.lag_ns for step in arrival.steps):
        return f"never: not the last to arrive at any of its {several(arrival.collectives, 'collective')}"
    said = (
        f"{ns_as_ms(arrival.lag_ns)} ms in the median step, last to arrive at {percent(arrival.last_share)} of its "
        f"collectives."
    )
    return f"{said} {meanwhile(arrival)}" if arrival.lag_ns and why else said


def _row(rank: RankFigures, device: str, account: Callable[[], Account]) -> list[Cell]:
    def part(name: str) -> Cell:
        return shown(lambda: account().share(name), percent)

    return [
        str(rank.rank),
        shown(lambda: rank.host),
        device,
        shown(lambda: rank.untraced_median_ns, ns_as_ms),
        part("compute_ns"),
        part("exposed_communication_ns"),
        part("copy_ns"),
        part("idle_ns"),
        shown(lambda: rank.loader_wait_share, percent),
        shown(lambda: rank.arrival.lag_ns, ns_as_ms),
    ]


def _account(device: DeviceFigures) -> Account:
    return device.total if device.steps else device.whole


def _no_device() -> Account:
    raise Missing("the trace holds no device operations of this rank")
