"""Stage 4: predict changes from one recording, write the predictions down, then run the changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, NamedTuple

from tests.gpu import reports
from tests.gpu.place import Place
from tests.gpu.stages.capture import SMALL
from tests.gpu.stages.planted import timed

# fp32 without TF32, no workers, pageable memory, a list optimizer: each change below mends one of them
BASE = ("--precision", "fp32", "--workers", "0", "--decode-us", "100", "--pageable", "--optimizer", "foreach")

COMPILED = "torch.compile"  # timed by the last stage
SIZES = ("--batch", "16")


class Change(NamedTuple):
    """A change as dptune's knobs say it, and as train.py's options do: added, with those of BASE that go."""

    knobs: tuple[str, ...]
    options: tuple[str, ...]
    samples_times: float = 1.0


def _changes(batch: int) -> dict[str, Change]:
    twice, four = 2 * batch, 4 * batch
    return {
        "batch x2": Change((f"loader.batch_size={twice}",), ("--batch", str(twice)), 2.0),
        "batch x4": Change((f"loader.batch_size={four}",), ("--batch", str(four)), 4.0),
        "TF32": Change(("precision.float32_matmul=high",), ("--precision", "tf32")),
        "bf16 autocast": Change(("precision.autocast=bf16",), ("--precision", "bf16")),
        "fused optimizer": Change(("optimizer.fused=true",), ("--optimizer", "fused")),
        "workers": Change(("loader.num_workers=4",), ("--workers", "4")),
        "pinned and non-blocking": Change(("loader.pin_memory=true", "copies.non_blocking=true"), ("--pinned",)),
        COMPILED: Change((), ("--compile",)),
        "CUDA graphs": Change((), ("--graphs",)),
    }


def run(place: Place) -> None:
    """Record the base, predict, run."""
    sizes = SMALL if place.small else SIZES
    batch = 4 if place.small else 16
    place.case("base", lambda: _base(place, sizes))
    place.case("predicted", lambda: _predicted(place, _changes(batch)))
    place.case("measured", lambda: _measured(place, sizes, _changes(batch)))
    place.case("compared", lambda: _compared(place, _changes(batch)))


def _base(place: Place, sizes: tuple[str, ...]) -> dict[str, Any]:
    return reports.summary(place.report(place.record("base", "train.py", *sizes, *BASE)))


def _predicted(place: Place, changes: dict[str, Change]) -> dict[str, Any]:
    asked = dict(list(changes.items())[:1]) if place.small else changes

    def of(change: Change) -> dict[str, Any]:
        return place.predict(place.runs / "predict-base", *change.knobs) if change.knobs else {"why": "no knob sets it"}

    with ThreadPoolExecutor(1 if place.small else len(asked)) as pool:
        return dict(zip(asked, pool.map(of, asked.values()), strict=True))


def _measured(place: Place, sizes: tuple[str, ...], changes: dict[str, Change]) -> dict[str, Any]:
    base = ["--device", place.device, *sizes, *BASE]
    words = {"base": base}
    for name, change in changes.items():
        if name == COMPILED or (place.small and name not in ("batch x2", "fused optimizer")):
            continue  # compiling takes most of a minute; the others need a card
        kept = [word for word in base if word != "--pageable" or change.options != ("--pinned",)]
        words[name] = [*kept, *(option for option in change.options if option != "--pinned")]
    words["base again"] = base
    return timed(place, words)


def _compared(place: Place, changes: dict[str, Change]) -> dict[str, Any]:
    steps = {name: median(rounds) for name, rounds in place.figures["measured"]["medians_ms"].items() if rounds}
    found = {}
    for name in changes:
        predicted, measured = place.figures["predicted"].get(name), steps.get(name)
        if predicted is None or measured is None:
            continue
        # as a ratio to the base of the same process: recording and variants are different processes
        scaled = measured / steps["base"] * predicted["measured_ms"] if predicted.get("measured_ms") else None
        error = predicted["step_ms"] / scaled - 1 if scaled and predicted.get("step_ms") else None
        found[name] = {
            "measured_ms": measured,
            "times_base": measured / steps["base"],
            "error": error,
            "inside": reports.inside(predicted, scaled) if scaled else None,
        }
    return found
