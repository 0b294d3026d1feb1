"""Exposed communication as evidence."""

from __future__ import annotations

from collections.abc import Iterable

from dptune.advice import Evidence
from dptune.measured import CommunicationFigures
from dptune.rule import RunView


def exposed_rows(run: RunView, rows: Iterable[CommunicationFigures]) -> list[Evidence]:
    """The exposed communication of each row, as a share of the measured time, with its longest stretch as the place."""
    window_ns = run.measured.account.window_ns
    return [
        Evidence(
            label=f"exposed {row.kind.replace('_', '-')}s ({row.known('phase') or 'unknown'} phase)",
            value=row.exposed_transfer_ns / window_ns,
            unit="of a step",
        ).at(row.known("longest"))
        for row in rows
    ]
