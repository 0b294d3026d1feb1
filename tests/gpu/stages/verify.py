"""Stage 8, with the time that is left: `dptune verify` on a planted fault, and torch.compile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gpu.place import CommandError, Place
from tests.gpu.stages.planted import timed
from tests.gpu.stages.predict import BASE, COMPILED, SIZES

_COMPILING_S = 40.0  # for torch.compile, after the verdict


def run(place: Place) -> None:
    """TF32 for a script that multiplies in fp32; without a card, workers for the starved loader."""
    if place.small:
        knob = "loader.num_workers=1"
        place.case(knob, lambda: _verified(place, place.runs / "planted-starved-loader", knob))
        return
    knob = "precision.float32_matmul=high"
    place.case(knob, lambda: _verified(place, _recorded(place), knob))
    base = ["--device", place.device, *SIZES, *BASE]
    place.case(COMPILED, lambda: timed(place, {"base": base, COMPILED: [*base, "--compile"]}, rounds=1))


def _recorded(place: Place) -> Path:
    """A small batch, without data workers: a trial lasts seconds, most of which go into starting it."""
    return place.record("fp32", "train.py", "--batch", "8", "--precision", "fp32", "--workers", "0")


def _verified(place: Place, folder: Path, knob: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise CommandError(f"there is no recording {folder.name}")
    limit_s = 3.0 if place.small else place.left_s - _COMPILING_S
    if limit_s < 1:
        raise CommandError("no time left for trials")
    words = ("verify", "-q", str(folder), "--set", knob, "--time-limit", f"{limit_s:.0f}", "--format", "json")
    done = place.dptune(*words, "--seconds", "1", ok=False)
    if not done.out.startswith("{"):
        raise CommandError(done.err or f"exit status {done.status}")
    proof = json.loads(done.out)
    kept = ("outcome", "reason", "ratio", "low_ratio", "high_ratio", "a_step_ns", "b_step_ns")
    return {"status": done.status, "trials": len(proof.get("trials", [])), **{key: proof.get(key) for key in kept}}
