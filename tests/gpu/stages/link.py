"""Stage 7: DDP over a link whose alpha and beta are set: predicted and measured steps of four bucket sizes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from tests.gpu import reports
from tests.gpu.place import SCRIPTS, Place

SIZES = ("1", "5", "25", "100")
_SMALL = ("--batch", "8", "--width", "64", "--layers", "3")


def run(place: Place) -> None:
    """Record at DDP's default size, predict the others, then time all."""
    sizes = _SMALL if place.small else ()
    asked = SIZES[:2] if place.small else SIZES
    place.case("recording", lambda: reports.summary(place.report(_record(place, sizes))))
    place.case("predicted", lambda: _predicted(place, asked))
    place.case("measured", lambda: _measured(place, sizes, asked))
    place.case("compared", lambda: _compared(place))


def _record(place: Place, sizes: tuple[str, ...]) -> Any:
    return place.record("default", "link.py", *sizes, windows=("--nproc-per-node", "1"))


def _predicted(place: Place, asked: tuple[str, ...]) -> dict[str, Any]:
    def of(size: str) -> dict[str, Any]:
        return place.predict(place.runs / "link-default", f"ddp.bucket_cap_mb={size}")

    with ThreadPoolExecutor(1 if place.small else len(asked)) as pool:
        return dict(zip(asked, pool.map(of, asked), strict=True))


def _measured(place: Place, sizes: tuple[str, ...], asked: tuple[str, ...]) -> dict[str, Any]:
    steps = "8" if place.small else "30"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    script = [str(SCRIPTS / "link.py"), "--device", place.device, *sizes, "--steps", steps]
    done = place.run([*torchrun, *script, "--sizes", ",".join(asked)], partial=True)
    found: dict[str, Any] = done.last_json
    return {**found, "cut_off": done.cut_off}


def _compared(place: Place) -> dict[str, Any]:
    steps = {size: median(rounds) for size, rounds in place.figures["measured"]["medians_ms"].items()}
    predicted = place.figures["predicted"]
    return {
        size: {
            "measured_ms": ms,
            "error": predicted[size]["step_ms"] / ms - 1 if predicted[size].get("step_ms") else None,
            "inside": reports.inside(predicted[size], ms),
        }
        for size, ms in steps.items()
    }
