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
    return _differences(sides, lambda run: run.measured.collectives, lambda one: one.kind, _message_bytes)


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
        kinds = {kind_of(one) for _, run in sides.runs for one in read(run)}
    except Missing as missing:
        return None, missing.reason

    def difference(kind: str) -> TrafficDifference:
        def alike(run: ReadRun) -> list[_Moved]:
            return [one for one in read(run) if kind_of(one) == kind]

        return TrafficDifference(
            kind=kind,
            calls_per_step=sides.pair(lambda run: sum(one.calls_per_step for one in alike(run))),
            time_ns=sides.pair(lambda run: sum(one.total_ns / _steps(one) for one in alike(run))),
            moved_bytes=sides.pair(lambda run: sum(bytes_of(one) for one in alike(run))),
        )

    return sorted(map(difference, kinds), key=lambda one: (-abs(one.time_ns.known("difference") or 0.0), one.kind)), ""


def _steps(one: CollectiveFigures | CopyFigures) -> float:
    """Steps of all ranks together: calls are counted over them, and given per one of them."""
    if one.calls <= 0 or one.calls_per_step <= 0:
        raise Missing("it is counted in no step")
    return one.calls / one.calls_per_step


def _message_bytes(row: CollectiveFigures) -> float:
    return row.message_bytes * row.calls_per_step


def _copied_bytes(one: CopyFigures) -> float:
    return one.total_bytes / _steps(one)


def _direction(one: CopyFigures) -> str:
    return f"{one.direction}{_PINNED[one.known('pinned')]}"
