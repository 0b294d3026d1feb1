"""What moves, A against B: collectives by kind, copies by direction and memory; traced times, per rank and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dptune.compare.result import TrafficDifference
from dptune.compare.sides import ReadRun, Sides
from dptune.measured import CollectiveFigures, CopyFigures, Missing

_Moved = TypeVar("_Moved", CollectiveFigures, CopyFigures)
_PINNED = {True: " pinned", False: " pageable", None: ""}


def collectives(sides: Sides) -> tuple[list[TrafficDifference] | None, str]:
    """One record per kind, and why there is none."""
    return _differences(sides, lambda run: run.measured.collectives, lambda row: row.kind, _message_bytes)


def copies(sides: Sides) -> tuple[list[TrafficDifference] | None, str]:
    """One record per direction and kind of host memory, and why there is none."""
    return _differences(sides, lambda run: run.measured.copies, _direction, _copied_bytes)


def _differences(
    sides: Sides,
    read: Callable[[ReadRun], Sequence[_Moved]],
    kind_of: Callable[[_Moved], str],
    bytes_of: Callable[[_Moved], float],
) -> tuple[list[TrafficDifference] | None, str]:
    try:
        kinds = {kind_of(row) for _, run in sides.runs for row in read(run)}
    except Missing as missing:
        return None, missing.reason

    def difference(kind: str) -> TrafficDifference:
        def alike(run: ReadRun) -> list[_Moved]:
            return [row for row in read(run) if kind_of(row) == kind]

        return TrafficDifference(
            kind=kind,
            calls_per_step=sides.pair(lambda run: sum(row.calls_per_step for row in alike(run))),
            time_ns=sides.pair(lambda run: sum(row.total_ns / _steps(row) for row in alike(run))),
            moved_bytes=sides.pair(lambda run: sum(bytes_of(row) for row in alike(run))),
        )

    return sorted(
        map(difference, kinds), key=lambda traffic: (-abs(traffic.time_ns.known("difference") or 0.0), traffic.kind)
    ), ""


def _steps(row: CollectiveFigures | CopyFigures) -> float:
    """Steps of all ranks together: calls are counted over them, and given per one of them."""
    if row.calls <= 0 or row.calls_per_step <= 0:
        raise Missing("it is counted in no step")
    return row.calls / row.calls_per_step


def _message_bytes(row: CollectiveFigures) -> float:
    return row.message_bytes * row.calls_per_step


def _copied_bytes(row: CopyFigures) -> float:
    return row.total_bytes / _steps(row)


def _direction(row: CopyFigures) -> str:
    return f"{row.direction}{_PINNED[row.known('pinned')]}"
