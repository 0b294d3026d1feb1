"""Stage 3: planted faults, each recorded and reported: is the first advice right, and is what it promises true?"""

from __future__ import annotations

import json
import sys
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tests.gpu import reports
from tests.gpu.place import SCRIPTS, Place
from tests.gpu.stages.capture import SMALL


class Fault(NamedTuple):
    """Options of train.py that plant a fault, those that mend it, and the rules of which one has to speak first."""

    planted: tuple[str, ...]
    mended: tuple[str, ...]
    rules: tuple[str, ...]
    also: tuple[str, ...] = ()  # of both sides


_COPIES = ("--features-kb", "1024", "--workers", "8")  # fewer workers would starve the step instead
FAULTS = {
    "starved loader": Fault(
        ("--workers", "0", "--decode-us", "800"), ("--workers", "8", "--decode-us", "800"), ("DP501",)
    ),
    "pageable copies": Fault(("--pageable",), (), ("DP503",), _COPIES),
    "fp32 without TF32": Fault(("--precision", "fp32"), ("--precision", "tf32"), ("DP401",)),
    "tiny optimizer kernels": Fault(
        ("--optimizer", "loop"), ("--optimizer", "fused"), ("DP603", "DP601"), ("--batch", "2")
    ),
    "item in every layer": Fault(("--item",), (), ("DP606", "DP601"), ("--batch", "4")),
    "fp64": Fault(("--precision", "fp64"), ("--precision", "tf32"), ("DP402",), ("--batch", "4")),
    "empty_cache in every step": Fault(("--empty-cache",), (), ("DP801",)),
    "naive attention": Fault(("--attention", "naive"), ("--attention", "sdpa"), ()),
}
# Without a card: one fault whose advice a CPU gives, too, and all of them as variants of a few steps.
_REHEARSED = ("starved loader",)


def run(place: Place) -> None:
    """Record and report every fault; then time all pairs in one process; then hold promises against them."""
    sizes = SMALL if place.small else ()
    place.cases(
        {
            name: partial(_asked, place, name, fault, sizes)
            for name, fault in FAULTS.items()
            if not place.small or name in _REHEARSED
        }
    )
    place.case("pairs", lambda: _pairs(place, sizes))
    place.case("kept", lambda: _kept(place))


def _asked(place: Place, name: str, fault: Fault, sizes: tuple[str, ...]) -> dict[str, Any]:
    folder = place.record(name.replace(" ", "-"), "train.py", *sizes, *fault.also, *fault.planted)
    found = reports.summary(place.report(folder))
    rules = [one["rule"] for one in found["advice"]]
    first = bool(rules) and rules[0] in fault.rules if fault.rules else None
    place_of = next((number for number, rule in enumerate(rules, 1) if rule in fault.rules), None)
    return {"expected": list(fault.rules), "first_is_right": first, "at": place_of, **found}


def _pairs(place: Place, sizes: tuple[str, ...]) -> dict[str, Any]:
    """The median step with each fault and without it, in turn."""
    chosen = {name: fault for name, fault in FAULTS.items() if not place.small or name in (*_REHEARSED, "fp64")}
    words = {}
    for name, fault in chosen.items():
        words[f"{name}: planted"] = [*_shared(place, sizes), *fault.also, *fault.planted]
        words[f"{name}: mended"] = [*_shared(place, sizes), *fault.also, *fault.mended]
    return timed(place, words)


def timed(place: Place, words: dict[str, list[str]], rounds: int = 2) -> dict[str, Any]:
    """Median steps of variants of train.py, ms, over rounds in one process; `cut_off` where time was over before."""
    usual = ("--rounds", str(rounds), "--warmup", "4", "--steps", "12")
    amount = ("--rounds", "1", "--warmup", "1", "--steps", "3") if place.small else usual
    done = place.run([sys.executable, str(SCRIPTS / "variants.py"), *amount, json.dumps(words)], partial=True)
    found: dict[str, Any] = done.last_json
    return {**found, "cut_off": done.cut_off}


def _shared(place: Place, sizes: tuple[str, ...]) -> list[str]:
    return ["--device", place.device, *sizes, *(("--workers", "1") if place.small else ())]


def _kept(place: Place) -> dict[str, Any]:
    """For each fault what was saved, of the step with it, and whether that lies in what the expected rule promised."""
    steps = place.figures["pairs"]["medians_ms"]
    found = {}
    for name, fault in FAULTS.items():
        asked, planted, mended = (place.figures.get(name), *(steps.get(f"{name}: {s}") for s in ("planted", "mended")))
        if not asked or not planted or not mended:
            continue
        saved = 1 - median(mended) / median(planted)
        promise = next((one["saves"] for one in asked["advice"] if one["rule"] in fault.rules), None)
        kept = promise and promise["low_share"] <= saved <= promise["high_share"]
        found[name] = {"saved_share": saved, "promised": promise, "kept": kept}
    return found
