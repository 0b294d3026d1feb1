"""Stage 1: record one process with all windows; step times, facts and card readings; what recording costs."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu import reports
from tests.gpu.place import SCRIPTS, Place

SMALL = ("--batch", "4", "--tokens", "16", "--width", "32", "--layers", "2", "--heads", "2", "--vocabulary", "64")
PAIRS = 4


def run(place: Place) -> None:
    """Every case of the stage."""
    sizes = (*SMALL, "--workers", "1") if place.small else ()
    steps = "12" if place.small else "60"
    place.case("recording", lambda: _recording(place, sizes))
    place.cases(
        {
            "plain": lambda: _plain(place, sizes, steps),
            "sync_events": lambda: _sync_events(place, sizes),
            "check": lambda: _check(place, place.runs / "capture-all"),
        }
    )
    place.case("overhead", lambda: _overhead(place, sizes, steps))


def _recording(place: Place, sizes: tuple[str, ...]) -> dict[str, Any]:
    folder = place.record("all", "train.py", *sizes, windows=() if place.small else ("--detailed", "3"))
    run = json.loads((folder / "run.json").read_text())
    facts = json.loads((folder / "rank-00000.facts.json").read_text())
    report = place.report(folder)
    windows = {
        window["name"]: {
            "host_ms": _median_ms(window["durations_ns"]),
            "device_ms": _median_ms(window["device_durations_ns"] or []),
            "trace_bytes_per_step": (window["trace_text_bytes"] or 0) / max(1, len(window["durations_ns"])),
        }
        for window in facts["windows"]
    }
    return {
        "ending": run["ending"]["how"],
        "device": facts["device"],
        "unread": facts["unread"],
        "cards": run["cards"],
        "cards_unread": run["cards_unread"],
        "topology": bool(run["topology"]),
        "windows": windows,
        "report": reports.summary(report),
    }


def _plain(place: Place, sizes: tuple[str, ...], steps: str) -> dict[str, Any]:
    """The script alone, timed by its own events: what the untraced window has to agree with."""
    plain = median(place.script("train.py", "--timed", "--steps", steps, *sizes).last_json["steps_ms"])
    windows = place.figures["recording"]["windows"]["untraced"]
    recorded = windows["device_ms"] or windows["host_ms"]
    return {"plain_ms": plain, "untraced_ms": recorded, "ratio": recorded / plain}


def _check(place: Place, folder: Path) -> dict[str, Any]:
    if not place.small:
        place.dptune("report", str(folder), "--no-tui", "--no-cache")
    done = place.dptune("check", str(folder), ok=False)
    return {"status": done.status, "seconds": done.seconds, "last": done.out.strip().splitlines()[-1:]}


def _sync_events(place: Place, sizes: tuple[str, ...]) -> dict[str, Any]:
    """The light window with CUDA's synchronization events beside the one without: their cost and how many there are."""
    folder = place.record("sync-events", "train.py", *sizes, windows=("--sync-events", "--detailed", "0"))
    facts = json.loads((folder / "rank-00000.facts.json").read_text())
    light = next(window for window in facts["windows"] if window["name"] == "light")
    without = place.figures["recording"]["windows"]["light"]
    with_ms = _median_ms(light["device_durations_ns"] or light["durations_ns"])
    without_ms = without["device_ms"] or without["host_ms"]
    with gzip.open(folder / light["trace"], "rt", encoding="utf-8", errors="replace") as source:
        events = source.read().count('"cat": "cuda_sync"')
    return {"with_ms": with_ms, "without_ms": without_ms, "ratio": with_ms / without_ms, "events": events}


def _overhead(place: Place, sizes: tuple[str, ...], steps: str) -> dict[str, Any]:
    """The script bare and under dptune in its untraced window, in turn: what recording costs where it must not."""
    pairs = range(1 if place.small else PAIRS)
    words = ("--timed", "--steps", steps, *sizes)
    bare: list[float] = [place.figures["plain"]["plain_ms"]] if place.small else []
    attached: list[float] = []

    def run_bare() -> None:
        bare.append(median(place.script("train.py", *words).last_json["steps_ms"]))

    def run_attached(number: int) -> None:
        attach = (
            "profile",
            "-q",
            "--continue",
            "--warmup",
            "2",
            "--untraced",
            "100000",
            "--light",
            "0",
            "--detailed",
            "0",
        )
        folder = str(place.out / f"attached-{number}")
        script = (str(SCRIPTS / "train.py"), "--device", place.device, *words)
        done = place.dptune(*attach, "--run-dir", folder, *script, ok=False)
        attached.append(median(done.last_json["steps_ms"]))

    with ThreadPoolExecutor(1 if place.small else 2) as pool:  # the next one starts while this one has the card
        runs = []
        for number in pairs:
            runs += [] if place.small else [pool.submit(run_bare)]
            runs.append(pool.submit(run_attached, number))
        for run in runs:
            run.result()
            place.note("overhead_so_far", {"bare_ms": list(bare), "attached_ms": list(attached)})
    return {"bare_ms": bare, "attached_ms": attached, "ratio": median(attached) / median(bare)}


def _median_ms(durations_ns: list[int]) -> float | None:
    return median(durations_ns) / 1e6 if durations_ns else None
