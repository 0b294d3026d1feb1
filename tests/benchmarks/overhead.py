"""What recording costs: the steps of a script alone, with dptune attached, and inside the traced windows.

    python tests/benchmarks/overhead.py                run what is missing, then print the table (make bench-overhead)
    python tests/benchmarks/overhead.py --table        print the table of what there is

Sides, each in processes of its own, interleaved in shuffled order:
    bare        the script alone
    attached    under dptune, in a long window without the profiler: what must not differ from `bare`
    traced      under dptune with a light and a detailed window of 20 steps each

One process is one sample. Three figures of its steps: the median of their durations, the fastest tenth of them (which
other work on the machine disturbs less), and the median of their processor time (least of all). The interval is a
bootstrap over processes. It resumes where it stopped; raw results stand in results/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "overhead.json"
WARMUP, UNTRACED, LIGHT, DETAILED = 10, 60, 20, 20
STEPS = WARMUP + UNTRACED + 1 + LIGHT + 1 + DETAILED + 2
SIDES = {
    "bare": None,
    "attached": ("--warmup", WARMUP, "--untraced", STEPS, "--light", 0, "--detailed", 0),
    "traced": ("--warmup", WARMUP, "--untraced", UNTRACED, "--light", LIGHT, "--detailed", DETAILED),
}
# steps of the script, counted from 0, that fall into each window
WINDOWS = {
    "untraced": range(WARMUP, WARMUP + UNTRACED),
    "light": range(WARMUP + UNTRACED + 1, WARMUP + UNTRACED + 1 + LIGHT),
    "detailed": range(WARMUP + UNTRACED + 1 + LIGHT + 1, WARMUP + UNTRACED + 1 + LIGHT + 1 + DETAILED),
}
# the list of a run, and which quantile of it
FIGURES = {"median": ("durations_ns", 0.5), "fastest tenth": ("durations_ns", 0.1), "processor": ("cpu_ns", 0.5)}
ROWS = (("bare", "untraced"), ("attached", "untraced"), ("traced", "light"), ("traced", "detailed"))
FORMER_NAMES = {"light": "lean", "detailed": "rich"}  # of windows, in earlier results


def command(side: str, ranks: int, folder: Path) -> list[str]:
    """How one process of a side is started."""
    script = [str(HERE / "workload.py"), "--steps", str(STEPS)]
    options = SIDES[side]
    if options is None:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        return [sys.executable, *launch, *script]
    words = [str(word) for word in options]
    launch = ["--nproc-per-node", str(ranks)] if ranks > 1 else []
    ours = [
        "-m",
        "dptune",
        "profile",
        "--quiet",
        "--continue",
        "--no-links",
        "--window-time",
        "0",
        "--run-dir",
        str(folder),
    ]
    return [sys.executable, *ours, *words, *launch, *script]


def one_run(side: str, ranks: int) -> dict[str, Any]:
    """Run one process (or group of ranks) of a side; what the script and the run folder say of it."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "run"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        words = command(side, ranks, folder)
        done = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
        told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"durations_ns"')))
        facts = folder / "rank-00000.facts.json"
        windows = json.loads(facts.read_text())["windows"] if facts.exists() else []
        files = {path.name: path.stat().st_size for path in folder.glob("rank-00000.*.gz")} if windows else {}
    return {"side": side, "ranks": ranks, **told, "windows": windows, "files": files}


def collect(processes: int, seed: int) -> dict[str, Any]:
    """Run until every side has so many processes; each is written down as soon as it has ended."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}
    results.update(machine=machine(), command="python tests/benchmarks/overhead.py")
    order = random.Random(seed)
    while missing := [
        (side, ranks)
        for ranks in (1, 2)
        for side in SIDES
        if sum((run["side"], run["ranks"]) == (side, ranks) for run in results["runs"]) < processes
    ]:
        order.shuffle(missing)
        for side, ranks in missing:
            results["runs"].append({"commit": commit(), **one_run(side, ranks)})
            RESULTS.write_text(json.dumps(results) + "\n")
            print(f"{len(results['runs']):4d}  {side}, {ranks} ranks", file=sys.stderr)
    return results


def samples(results: dict[str, Any], side: str, ranks: int, window: str, figure: str) -> np.ndarray:
    """Shape (processes,), ns: a figure of each process' steps at the places of that window."""
    runs = [run for run in results["runs"] if (run["side"], run["ranks"]) == (side, ranks)]
    steps, quantile = FIGURES[figure]
    return np.array([np.quantile(np.array(run[steps])[WINDOWS[window]], quantile) for run in runs])


def ratio(over: np.ndarray, under: np.ndarray, rounds: int = 10_000) -> tuple[float, float, float]:
    """The ratio of two sides' medians over processes, with its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(side, (rounds, len(side))), axis=1) for side in (over, under)]
    low, high = np.percentile(drawn[0] / drawn[1], [2.5, 97.5])
    return float(np.median(over) / np.median(under)), float(low), float(high)


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    commits = ", ".join(dict.fromkeys(run["commit"] for run in results["runs"]))
    lines = [f"machine: {results['machine']}; commits: {commits}", ""]
    heads = "".join(f"{figure:>24s}" for figure in FIGURES)
    lines += [f"{'':42s}ratio to bare (95 % interval)", f"ranks  window                 step ms{heads}   processes"]
    for ranks in (1, 2):
        for side, window in ROWS:
            ratios = ""
            for figure in FIGURES:
                ours = samples(results, side, ranks, window, figure)
                middle, low, high = ratio(ours, samples(results, "bare", ranks, window, figure))
                ratios += f"{f'{middle:.3f} ({low:.3f} to {high:.3f})':>24s}"
            median_ms = np.median(samples(results, side, ranks, window, "median")) / 1e6
            name = side if side == "bare" else f"{side}: {window}"
            lines.append(f"{ranks:5d}  {name:20s} {median_ms:9.2f}{ratios}{len(ours):12d}")
    lines += ["", "ranks  window    trace text per step   gzip per step   writing it   peak memory of the process"]
    for ranks in (1, 2):
        runs = [run for run in results["runs"] if (run["side"], run["ranks"]) == ("traced", ranks)]
        bare = [run for run in results["runs"] if (run["side"], run["ranks"]) == ("bare", ranks)]
        bare_peak = np.median([run["peak_bytes"] for run in bare])
        peak = np.median([run["peak_bytes"] for run in runs]) - bare_peak
        for window in ("light", "detailed"):
            names = (window, FORMER_NAMES[window])
            seen = [(run, next(w for w in run["windows"] if w["name"] in names)) for run in runs]
            text = np.median([w["trace_text_bytes"] / len(w["durations_ns"]) for _, w in seen])
            packed = np.median([run["files"][w["trace"]] / len(w["durations_ns"]) for run, w in seen])
            saving = np.median([w["saving_ns"] for _, w in seen])
            lines.append(
                f"{ranks:5d}  {window:8s} {text / 1e6:12.2f} MB {packed / 1e6:16.3f} MB {saving / 1e9:10.2f} s"
                f"   +{peak / 1e6:.0f} MB over bare, both windows"
            )
    return "\n".join(lines)


def machine() -> str:
    """The processor and how many of it, without the machine's name."""
    with open("/proc/cpuinfo", encoding="utf-8") as source:
        model = next((line.partition(":")[2].strip() for line in source if line.startswith("model name")), "unknown")
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def commit() -> str:
    """The commit that was measured."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    """Collect, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=12, help="per side (default: 12)")
    parser.add_argument("--seed", type=int, default=0, help="of the order they run in")
    parser.add_argument("--table", action="store_true", help="run nothing")
    args = parser.parse_args()
    print(table(json.loads(RESULTS.read_text()) if args.table else collect(args.processes, args.seed)))


if __name__ == "__main__":
    main()
