"""What predictions from traces of many GPUs cost: reading and measuring them, the model, changes of it; peak memory.

    python tests/benchmarks/replay_times.py               time what there is, then print the table (minutes)
    python tests/benchmarks/replay_times.py --table       print the table of the results

Eight ranks of nanogpt on H100s, a public trace of ../shared/real_traces, and 64 ranks that tests/simulator draws and
writes. Each is read in a process of its own, ROUNDS times, without a cache; medians. The rest of the machine should
be idle.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from command_line import main
from overhead import commit, machine

from dptune.knobs import Value

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results" / "replay_times.json"
ROUNDS = 3
LEAST_S = 0.01  # of a change that a run has: what it lacks is answered in no time
RANKS, SEED = 64, 7
NANOGPT, SIMULATED = "nanogpt, 8 ranks", f"simulated, {RANKS} ranks"
CHANGES: dict[str, dict[str, Value]] = {  # nanogpt has no DistributedDataParallel, and so no buckets
    "change": {"straggler.removed": True},
    "buckets": {"ddp.bucket_cap_mb": 50.0},
}


def once(folder: str) -> dict[str, Any]:
    """The parts of one prediction, seconds, of the elapsed time; how many items and steps are replayed; memory.

    Garbage is collected as seldom as by the command.
    """
    from dptune.cli import BETWEEN_COLLECTIONS
    from dptune.measure import measure
    from dptune.trace import load
    from dptune.whatif.gpu.program import Program
    from dptune.whatif.run_model import RunModel

    gc.set_threshold(*BETWEEN_COLLECTIONS)
    spent: dict[str, Any] = {}

    def timed(name: str, of: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        found = of()
        spent[name] = time.perf_counter() - started
        return found

    run = timed("read", lambda: load([folder], cached=False))
    measured = timed("measure", lambda: measure(run))
    model = timed("model", lambda: RunModel.of(run, measured))
    for name, change in CHANGES.items():
        timed(name, partial(model.predict, change))
    assert isinstance(model.model, Program)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    steps = len(model.model.steps) // len(run.ranks)
    return {**spent, "items": len(model.model.edges), "steps": steps, "peak_mb": peak_mb}


def collect(work: Path) -> dict[str, Any]:
    """Each run, several times."""
    many = work / "before"
    if not many.exists():
        drawn = ("--seed", str(SEED), "--ranks", str(RANKS), "--change", "ddp.bucket_cap_mb", "-o", str(work))
        words = (sys.executable, "-m", "tests.simulator", *drawn)
        subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    folders = {NANOGPT: ROOT / ".." / "shared" / "real_traces" / "nanogpt_8xh100", SIMULATED: many}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in folders}
    for _ in range(ROUNDS):
        for name, folder in folders.items():
            words = [sys.executable, __file__, "--once", str(folder)]
            rounds[name].append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    results = {"machine": machine(), "commit": commit(), "runs": rounds}
    RESULTS.write_text(json.dumps(results) + "\n")
    return results


def table(results: dict[str, Any]) -> str:
    """The medians as text."""
    lines = [f"machine: {results['machine']}; commit: {results['commit']}; seconds, medians of {ROUNDS} processes", ""]
    heads = f"{'read':>7s}{'measure':>9s}{'model':>7s}{'change':>8s}{'buckets':>9s}{'peak MB':>9s}"
    lines.append(f"{'run':22s}{'steps':>6s}{'items':>10s}{heads}")
    for name, rounds in results["runs"].items():
        of = {key: median(one[key] for one in rounds) for key in rounds[0]}
        times = f"{of['read']:7.2f}{of['measure']:9.2f}{of['model']:7.2f}{of['change']:8.2f}"
        buckets = f"{of['buckets']:9.2f}" if of["buckets"] > LEAST_S else f"{'-':>9s}"
        lines.append(f"{name:22s}{of['steps']:6.0f}{of['items']:10,.0f}{times}{buckets}{of['peak_mb']:9,.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        print(json.dumps(once(sys.argv[2])))
    else:
        main(__doc__, RESULTS, collect, table, "replay-times")
