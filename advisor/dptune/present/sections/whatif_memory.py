"""Peak memory after changes, and whether it fits, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dptune.knobs import Value, written
from dptune.predicted import NOT_TRACKED, Fits, MemoryPrediction, WhatIf
from dptune.present.amounts import Hole, data
from dptune.present.lines import BLANK, Line, Role, labelled
from dptune.present.table import Cell, Column, table

_COLUMNS = (
    Column("with", right=False),
    Column("peak"),
    Column("from"),
    Column("to"),
    Column("now"),
    Column("fits", right=False),
)
FITS: dict[Fits, str] = {"yes": "fits", "no": "does not fit", "unknown": "unknown"}
_ROLES: dict[Fits, Role] = {"yes": "good", "no": "error", "unknown": "warning"}
_OF_FIGURES = 46  # columns that the table takes beside the name of a set of changes


def memory(whatif: WhatIf, width: int) -> Iterator[Line]:
    """The peak with each set of changes; of a single one also what it consists of."""
    predictions = whatif.memory
    known = [prediction for prediction in predictions if prediction.known("peak_bytes") is not None]
    if not predictions:
        return
    yield BLANK
    if not known:
        yield from _tracked(predictions, width)
        for why in dict.fromkeys(prediction.missing["peak_bytes"] for prediction in predictions):
            yield from labelled("Memory", f"Not predicted: {why}.", width, role="dim")
        return
    yield from labelled("Memory", "Peak tensor memory of a rank, with the prediction interval.", width)
    names = _names(predictions, width)
    yield from table(_COLUMNS, [_row(*both) for both in zip(names, predictions, strict=True)], width)
    for label, settings in zip(names, map(_of, predictions), strict=True):
        if label != settings:
            yield from labelled(label.capitalize(), settings, width)
    if len(predictions) == 1:
        parts = sorted(known[0].components, key=lambda part: -part.then_bytes)
        rows = [[part.name, data(part.then_bytes), data(part.now_bytes)] for part in parts]
        yield from table(_parts(known[0]), rows, width)
    yield from _capacity(known[0], width)
    yield from _tracked(predictions, width)


def _parts(prediction: MemoryPrediction) -> tuple[Column, ...]:
    """The columns of what a peak consists of, with the phase of each peak."""
    then, now = (
        f" in {phase}" if phase else "" for phase in (prediction.known("phase"), prediction.known("now_phase"))
    )
    if then == now:
        return Column(f"at the peak{then}", right=False), Column("then"), Column("now")
    return Column("at the peak", right=False), Column(f"then{then}"), Column(f"now{now}")


def _tracked(predictions: Sequence[MemoryPrediction], width: int) -> Iterator[Line]:
    """What torch's tracker counts, if it was asked."""
    names = _names(predictions, width)
    for name, prediction in zip(names, predictions, strict=True):
        size, now = prediction.known("tracked_bytes"), prediction.known("tracked_now_bytes")
        if size is not None:
            unchanged = "" if now is None else f" (now {data(now)})"
            words = (
                f"{name}: {data(size)}{unchanged}, by torch's memory tracker; tensors outside the model not counted."
            )
            yield from labelled("Tracker", words, width)
        elif prediction.missing["tracked_bytes"] != NOT_TRACKED:
            yield from labelled(
                "Tracker", f"{name}: unknown: {prediction.missing['tracked_bytes']}.", width, role="dim"
            )


def sentence(prediction: MemoryPrediction) -> tuple[str, Role]:
    """The peak and whether it fits, in a line."""
    if prediction.known("peak_bytes") is None:
        return f"not predicted: {prediction.missing['peak_bytes']}", "dim"
    interval = f"{data(prediction.low_bytes)} to {data(prediction.high_bytes)}"
    words = (
        f"peak {data(prediction.peak_bytes)} ({interval}), now {data(prediction.now_bytes)}: {FITS[prediction.fits]}"
    )
    return words, _ROLES[prediction.fits]


def _of(prediction: MemoryPrediction) -> str:
    return _settings(prediction.changes)


def _names(predictions: Sequence[MemoryPrediction], width: int) -> list[str]:
    """The settings of each, or its number where they are too long for the table."""
    names = [_of(prediction) for prediction in predictions]
    if max(map(len, names)) <= width - _OF_FIGURES:
        return names
    return [f"set {number}" for number in range(1, len(names) + 1)]


def _settings(changes: Mapping[str, Value]) -> str:
    return ", ".join(f"{knob}={written(value)}" for knob, value in changes.items())


def _row(name: str, prediction: MemoryPrediction) -> list[Cell]:
    if prediction.known("peak_bytes") is None:
        hole = Hole(prediction.missing["peak_bytes"], "not predicted")
        return [name, hole, hole, hole, hole, hole]
    sizes = (prediction.peak_bytes, prediction.low_bytes, prediction.high_bytes, prediction.now_bytes)
    return [name, *map(data, sizes), FITS[prediction.fits]]


def _capacity(prediction: MemoryPrediction, width: int) -> Iterator[Line]:
    capacity = prediction.known("capacity_bytes")
    if capacity is None:
        yield from labelled("Fits", f"Unknown: {prediction.missing['capacity_bytes']}.", width, role="dim")
        return
    overhead = prediction.known("overhead_bytes")
    more = f" Context, libraries and unused reserved memory take {data(overhead)} on top." if overhead else ""
    yield from labelled("Fits", f"If a rank uses at most 90 % of its {data(capacity)}.{more}", width, role="dim")
