"""Stage 7, with the time that is left: torch.compile, and `dptune verify` on a planted fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gpu.place import CommandError, Place
from tests.gpu.stages.planted import timed
from tests.gpu.stages.predict import BASE, COMPILED, SIZES

_ENDING_S = 8.0  # the last trial, and the verdict


def run(place: Place) -> None:
    """TF32 for the script that multiplies in fp32; without a card, workers for the starved loader."""
    run_name, knob = "planted-fp32-without-TF32", "precision.float32_matmul=high"
    if place.small:
        run_name, knob = "planted-starved-loader", "loader.num_workers=1"
    else:
        base = ["--device", place.device, *SIZES, *BASE]
        place.case(COMPILED, lambda: timed(place, {"base": base, COMPILED: [*base, "--compile"]}, rounds=1))
    place.case(knob, lambda: _verified(place, place.runs / run_name, knob))


def _verified(place: Place, folder: Path, knob: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise CommandError(f"stage planted has left no recording {folder.name}")
    limit_s = 3.0 if place.small else place.left_s - _ENDING_S
    if limit_s < 1:
        raise CommandError("no time left for trials")
    words = ("verify", "-q", str(folder), "--set", knob, "--time-limit", f"{limit_s:.0f}", "--format", "json")
    done = place.dptune(*words, ok=False)
    if not done.out.startswith("{"):
        raise CommandError(done.err or f"exit status {done.status}")
    proof = json.loads(done.out)
    kept = ("outcome", "reason", "ratio", "low_ratio", "high_ratio", "a_step_ns", "b_step_ns")
    return {"status": done.status, "trials": len(proof.get("trials", [])), **{key: proof.get(key) for key in kept}}
