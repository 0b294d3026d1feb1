"""How far the steps of public GPU traces are from each other, as replayed, and what `dptune whatif` says of two pairs.

    python tests/benchmarks/real_replays.py               replay them, then print the table (make bench-replays)
    python tests/benchmarks/real_replays.py --table       print the table of what there is

Each run of ../shared/real_traces with two whole steps or more is replayed unchanged: `off` is how far any item of it
comes to pass from when it was recorded; `halves` how far the mean steps of one half are from those of the other. The
traces stand beside the repository, not in it.

A pair is the same training before and after a change; what is predicted is so from the first alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import main
from overhead import commit, machine

from dptune.errors import DptuneError
from dptune.measure import measure
from dptune.measured import Missing
from dptune.trace import load
from dptune.trace.run import Run
from dptune.whatif.gpu.program import Program
from dptune.whatif.run_model import RunModel

HERE = Path(__file__).parent
TRACES = HERE.parents[1] / ".." / "shared" / "real_traces"
RESULTS = HERE / "results" / "real_replays.json"
LOADER = "kineto_resnet50_loader/{}.pt.trace.json.gz"
HOOK = "nanogpt_adam_hook_h100/{}_modded-nanogpt-hook-gpu-rank-00-chrome-trace.json.gz"
PAIRS = {  # title: before, after, and the change; none where no knob says it
    "0 to 4 workers": (LOADER.format("4a9c9ae_worker0"), LOADER.format("234cf25_worker0.1623212756351"), "num_workers"),
    "optimizer in hooks": (HOOK.format("3f01a7c"), HOOK.format("3608dcf"), ""),
}


def runs() -> Iterator[tuple[str, Run]]:
    """Each folder that is one run, else each of its files; by name."""
    for folder in sorted(path for path in TRACES.iterdir() if path.is_dir() and path.name != "damaged"):
        try:
            yield folder.name, load([folder])
        except DptuneError:
            for path in sorted(folder.glob("*.json*")):
                try:
                    yield f"{folder.name}/{path.name}", load([path])
                except DptuneError:
                    continue


def replayed(run: Run) -> dict[str, Any] | None:
    """How the replay of a run fares; None where it has fewer than two whole steps of GPUs."""
    try:
        ground = RunModel.of(run, measure(run))
    except Missing:
        return None
    made = ground.model
    if not isinstance(made, Program) or min(_steps(made).values()) < 2:
        return None
    off = max(abs(at - recorded) for at, recorded in zip(made.run(), made.recorded_ns, strict=True))
    return {
        "ranks": len(run.ranks),
        "steps": min(_steps(made).values()),
        "items": len(made.recorded_ns),
        "step_ns": made.step_ns(),
        "off_ns": off,
        "halves_share": ground.variation_share,
    }


def _steps(made: Program) -> dict[int, int]:
    return {one.rank: sum(other.rank == one.rank for other in made.steps) for one in made.steps}


def paired(before: str, after: str, knob: str) -> dict[str, Any]:
    """The steps of a pair, and the step with the change as it is predicted from the first alone."""
    steps = [measure(load([TRACES / path])).step.time_ns for path in (before, after)]
    predicted = None
    if knob:
        run = load([TRACES / before])
        found = RunModel.of(run, measure(run)).predict({f"loader.{knob}": 4})
        predicted = [found.step_ns, found.low_ns, found.high_ns]
    return {"before_ns": steps[0], "after_ns": steps[1], "predicted_ns": predicted}


def collect(_: Path) -> dict[str, Any]:
    """Replay all of them: it takes a minute."""
    results: dict[str, Any] = {
        "machine": machine(),
        "commit": commit(),
        "command": "python tests/benchmarks/real_replays.py",
    }
    results["runs"] = {name: found for name, run in runs() if (found := replayed(run)) is not None}
    results["pairs"] = {title: paired(*pair) for title, pair in PAIRS.items()}
    RESULTS.write_text(json.dumps(results) + "\n")
    return results


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    lines = ["run                                            ranks  steps   items  step ms  off ns   halves"]
    for name, one in results["runs"].items():
        lines.append(
            f"{name[:46]:46s} {one['ranks']:5d} {one['steps']:6d} {one['items']:7d} {one['step_ns'] / 1e6:8.1f}"
            f" {one['off_ns']:7.0f} {100 * one['halves_share']:6.1f} %"
        )
    lines += ["", "pair                  before ms  after ms  whatif"]
    for title, one in results["pairs"].items():
        predicted = "not predicted"
        if one["predicted_ns"] is not None:
            step, low, high = ("-" if ns is None else f"{ns / 1e6:.1f}" for ns in one["predicted_ns"])
            predicted = f"{step} ({low} to {high}) ms"
        lines.append(f"{title:20s} {one['before_ns'] / 1e6:10.1f} {one['after_ns'] / 1e6:9.1f}  {predicted}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "replays")
