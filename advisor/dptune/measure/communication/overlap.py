"""Which communication is hidden behind compute: by kind, process group, phase and purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dptune.measure.communication.calls import Collectives
from dptune.measure.communication.purposes import NO_PURPOSE, PURPOSES, UNKNOWN, issuers, purposes
from dptune.measure.communication.slowdown import slowdown
from dptune.measure.device.longest import longer, place
from dptune.measure.device.phases import PHASES, DeviceTimeline, Phased, bounds
from dptune.measure.intervals import Intervals, first_begun
from dptune.measure.steps.windows import OUTSIDE
from dptune.measured import Account, CommunicationFigures, OverlapFigures, Phase, Place, Purpose
from dptune.trace.kernels import Work

NO_COMMUNICATION = "the steps hold no communication"
_NO_GROUP = "the trace does not name the process group"

_Key = tuple[str, str | None, int | None, int]  # kind, group, phase, purpose


def overlap(
    spent: Sequence[DeviceTimeline], ran: Collectives, phased: Phased | str, account: Account
) -> OverlapFigures | None:
    """How compute and communication share the steps; None where nothing is communicated.

    `ran` are the collectives of the devices, `phased` the phases of their operations, or why they are not known.
    """
    if not account.communication_ns:
        return None
    ratio, pairs = slowdown(spent, account.compute_ns)
    return OverlapFigures(
        rows=_rows(spent, ran, phased),
        compute_per_communication=account.compute_ns / account.communication_ns,
        slowdown=None if isinstance(ratio, str) else ratio,
        slowdown_pairs=pairs,
        missing={"slowdown": ratio} if isinstance(ratio, str) else {},
    )


def _rows(spent: Sequence[DeviceTimeline], ran: Collectives, phased: Phased | str) -> list[CommunicationFigures]:
    calls: dict[_Key, int] = {}
    whole: dict[_Key, int] = {}
    hidden: dict[_Key, int] = {}
    waited: dict[_Key, int] = {}
    unknown: dict[_Key, int] = {}
    most: dict[_Key, float] = {}
    transfers: dict[_Key, Place | None] = {}
    exposed: dict[_Key, Place | None] = {}  # with waiting
    for at, (view, device, timeline) in enumerate(spent):
        begin, end = bounds(device.windows)
        columns, operations = view.columns, device.operations
        collectives = operations.work == Work.COMMUNICATION
        launched = device.launched_in[collectives] != OUTSIDE
        phase = None if isinstance(phased, str) else phased.operations[at][collectives]
        purpose = purposes(columns, issuers(view, device)[collectives])
        by_key: dict[_Key, list[int]] = {}
        rows = operations.rows[collectives]
        number_of = {row: number for number, row in enumerate(rows.tolist())}
        for call in ran[view.rank, operations.device]:
            number = number_of[call.row]
            key = call.kind, call.group, None if phase is None else int(phase[number]), int(purpose[number])
            by_key.setdefault(key, []).append(number)
            calls[key] = calls.get(key, 0) + int(launched[number])
        since, until = first_begun(columns.ts_ns[rows], columns.ends(rows))
        for key, numbers in by_key.items():
            pieces = Intervals.union(since[numbers], until[numbers])
            beside = pieces & timeline.classes["compute_ns"]
            waiting = pieces & timeline.classes["exposed_waiting_ns"]
            unsplit = pieces & timeline.classes["exposed_unsplit_ns"]
            whole_ns, hidden_ns, waiting_ns, unsplit_ns = (
                int(intervals.lengths(begin, end).sum()) for intervals in (pieces, beside, waiting, unsplit)
            )
            whole[key] = whole.get(key, 0) + whole_ns
            hidden[key] = hidden.get(key, 0) + hidden_ns
            waited[key] = waited.get(key, 0) + waiting_ns
            unknown[key] = unknown.get(key, 0) + unsplit_ns
            most[key] = max(most.get(key, 0.0), (whole_ns - hidden_ns) / max(1, int((end - begin).sum())))
            transfer = place(view.rank, pieces - beside - waiting, device.windows)
            transfers[key] = longer(transfers.get(key), transfer)
            exposed[key] = longer(exposed.get(key), place(view.rank, pieces - beside, device.windows))
    shown = [key for key in whole if whole[key] or calls[key]]
    figures = [
        _figures(
            *(key, calls[key], whole[key], hidden[key], waited[key], unknown[key], most[key]),
            transfers[key] or exposed[key],
            phased,
        )
        for key in shown
    ]
    return sorted(figures, key=lambda communication: (-communication.exposed_ns, -communication.communication_ns))


def _figures(
    key: _Key,
    calls: int,
    whole_ns: int,
    hidden_ns: int,
    waiting_ns: int,
    unsplit_ns: int,
    most_share: float,
    where: Place | None,
    phased: Phased | str,
) -> CommunicationFigures:
    kind, group, number, at = key
    phase: Phase | None = None if number is None else PHASES[number]
    purpose: Purpose | None = None if at == UNKNOWN else PURPOSES[at]
    figures: dict[str, tuple[Any, str]] = {
        "group": (group, _NO_GROUP),
        "phase": (phase, phased if isinstance(phased, str) else ""),
        "purpose": (purpose, NO_PURPOSE),
        "longest": (where, "all of it is hidden"),
    }
    return CommunicationFigures.of(
        figures,
        kind=kind,
        calls=calls,
        communication_ns=whole_ns,
        hidden_ns=hidden_ns,
        exposed_ns=whole_ns - hidden_ns,
        exposed_transfer_ns=whole_ns - hidden_ns - waiting_ns,
        exposed_unsplit_ns=unsplit_ns,
        most_share=most_share,
    )
