"""Forward, backward and optimizer, and what of the communication each of them hides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.measured import CommunicationFigures, Missing, OverlapFigures, Phase, PhaseFigures
from dptune.present.amounts import Hole, number, percent, shown, times
from dptune.present.lines import Line, heading, wrapped
from dptune.present.table import Cell, Column, table

_PHASES = (
    Column("phase", right=False),
    Column("compute"),
    Column("hidden"),
    Column("exposed"),
    Column("host"),
)
_COMMUNICATION = (
    Column("kind", right=False, least=14),
    Column("group", right=False, least=5),
    Column("phase", right=False),
    Column("calls"),
    Column("hidden"),
    Column("exposed"),
    Column("overlap"),
)
_NAMES: dict[Phase, str] = {
    "forward": "forward and other",
    "backward": "backward",
    "optimizer": "optimizer",
    "unknown": "not known",
}
_AT_MOST = 8
_ISSUERS = {"gradients": "DDP", "sharding": "FSDP"}

_UNLAUNCHED = "launched before the first traced step, or its launch was not recorded"


def phases(report: Report, width: int) -> Iterator[Line]:
    """The phases of a step, then its communication by kind, group and phase."""
    measured = report.measured
    yield from heading("Phases and overlap (shares of the traced steps)", width)
    unknown = ""  # why phases are not known, once it is said
    try:
        found = measured.phases
    except Missing as missing:
        unknown = missing.reason
        yield from wrapped(f"Phases {Hole(unknown)}", width, "  ")
    else:
        host_ns = sum(phase.known("host_ns") or 0 for phase in found)
        yield from table(_PHASES, [_phase(phase, measured.account.window_ns, host_ns) for phase in found], width)
        words = (
            "An operation belongs to the phase in which the host launched it; forward and other: launched in neither "
            "backward nor optimizer. Hidden and exposed: communication with and without overlapping compute; exposed "
            "includes waiting for late ranks. Host: CPU threads in that phase, while the device may be in another."
        )
        yield from wrapped(words, width, "  ", role="dim")
    try:
        overlap = measured.overlap
    except Missing as missing:
        yield from wrapped(f"Overlap {Hole(missing.reason)}", width, "  ")
        return
    steps = sum(max((len(device.steps) for device in rank.devices), default=0) for rank in measured.ranks)
    rows = [
        _communication(row, _kind(row, overlap.rows), measured.account.window_ns, steps)
        for row in overlap.rows[:_AT_MOST]
    ]
    kept = [at for at in range(len(_COMMUNICATION)) if any(row[at] != Hole(unknown) for row in rows)]
    yield from table([_COMMUNICATION[at] for at in kept], [[row[at] for at in kept] for row in rows], width)
    if len(overlap.rows) > _AT_MOST:
        yield from wrapped(f"and {len(overlap.rows) - _AT_MOST} more: see --format json", width, "  ", role="dim")
    yield from wrapped(_together(overlap), width, "  ")


def _phase(phase: PhaseFigures, window_ns: int, host_ns: int) -> list[Cell]:
    return [
        _NAMES[phase.phase],
        percent(phase.compute_ns / window_ns),
        percent(phase.hidden_communication_ns / window_ns),
        percent(phase.exposed_communication_ns / window_ns),
        shown(lambda: phase.host_ns / host_ns, percent),
    ]


def _kind(communication: CommunicationFigures, rows: Sequence[CommunicationFigures]) -> str:
    """The kind, and who issued it where others of the kind in that phase were issued by something else."""
    alike = [
        row
        for row in rows
        if (row.kind, row.known("group"), row.known("phase"))
        == (communication.kind, communication.known("group"), communication.known("phase"))
    ]
    issuer = _ISSUERS.get(communication.known("purpose") or "")
    return f"{communication.kind} ({issuer})" if issuer and len(alike) > 1 else communication.kind


def _communication(row: CommunicationFigures, kind: str, window_ns: int, steps: int) -> list[Cell]:
    return [
        kind,
        shown(lambda: row.group),
        shown(lambda: _NAMES[row.phase]),
        times(row.calls / steps) if row.calls else Hole(_UNLAUNCHED),
        percent(row.hidden_ns / window_ns),
        percent(row.exposed_ns / window_ns),
        percent(row.hidden_ns / row.communication_ns) if row.communication_ns else "",
    ]


def _together(overlap: OverlapFigures) -> str:
    said = f"Compute-to-communication ratio, waiting included: {number(overlap.compute_per_communication)}."
    slowdown = overlap.known("slowdown")
    if slowdown is None:
        return f"{said} Slowdown of compute by communication: {Hole(overlap.missing['slowdown'])}."
    return (
        f"{said} Compute takes {number(slowdown)}x as long when overlapped with communication "
        f"({overlap.slowdown_pairs:,} matched operations)."
    )
