"""Whether a change fits in memory, as rules ask and say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dptune.advice import Evidence
from dptune.knobs import Value
from dptune.rule import RunView


def fits(run: RunView, changes: Mapping[str, Value]) -> bool | None:
    """Whether the predicted peak fits in what a rank may use; None where that is not known."""
    predicted = run.memory_after(changes)
    return None if predicted is None or predicted.fits == "unknown" else predicted.fits == "yes"


def peak_evidence(run: RunView, changes: Mapping[str, Value]) -> Iterator[Evidence]:
    """The peak of a rank now and with the changes; nothing where it is not predicted."""
    predicted = run.memory_after(changes)
    if predicted is not None:
        unit, label = "MiB per rank", "peak memory of tensors"
        yield Evidence(label=label, value=predicted.now_bytes / 2**20, unit=unit)
        yield Evidence(label=f"{label} with the change (predicted)", value=predicted.peak_bytes / 2**20, unit=unit)
