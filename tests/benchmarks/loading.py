"""How fast a trace is read and measured, and in how much memory, beside HTA, json.load and the floor.

    python tests/benchmarks/loading.py                run what is missing, then print the tables (make bench-loading)
    python tests/benchmarks/loading.py --table        print the tables of what there is

Sides, each in a process of its own on the same gz file, in shuffled turn, so that all meet the same machine:
    dptune      load and measure, keeping nothing
    reopened    the same, from the columns that were kept; its ratio is that of loading alone
    hta         TraceAnalysis, then its temporal breakdown, overlap and kernel breakdown
    json        gunzip and json.loads
    floor       gunzip and one pass of msgspec that checks the JSON and keeps nothing
    jobs-1, jobs-2   two such ranks, by one process and by two
    thousand    1,000 ranks of one step each, about 2.7 MB of text: load by two processes, and measure

Seconds are from the end of the imports to the figures; memory is the process's own peak, at the end and when the trace
was loaded: what measuring adds is the difference. Ratios are of medians. Traces
are written by kineto_text.py where they are not there yet. It resumes where it stopped; raw results stand in
results/loading.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from kineto_text import write_trace
from overhead import commit, machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "loading.json"
DATA = Path(tempfile.gettempdir()) / "dptune-benchmark-traces"
TIMES = ("integer", "offset", "fractional")
SIZES_MB = (20, 100, 500, 1500)
ROUNDS = {20: 7, 100: 5, 500: 5, 1500: 3}
SLOW_ROUNDS = {20: 3, 100: 3, 500: 2, 1500: 1}  # of hta and json, which take minutes
SIDES = ("dptune", "reopened", "hta", "json", "floor", "jobs-1", "jobs-2")
THOUSAND = "thousand"
LIMIT_S = 1800


def measure_once(side: str, paths: list[str]) -> dict[str, float]:
    """Seconds that one side takes in this process, imports not counted, of loading, and the peak after loading."""
    if side in ("dptune", "reopened", "jobs-1", "jobs-2", THOUSAND):
        from dptune.measure import measure
        from dptune.trace import load

        begin = time.perf_counter()
        run = load(paths, jobs=2 if side in ("jobs-2", THOUSAND) else 1, cached=side == "reopened")
        loaded, load_peak_bytes = time.perf_counter(), own_peak_bytes()
        if side in ("jobs-1", "jobs-2"):
            assert len(run.ranks) == 2
        elif side == THOUSAND:
            assert len(run.ranks) == len(measure(run).ranks) == 1000
        else:
            assert measure(run).account is not None
    elif side == "hta":
        import logging

        logging.disable(logging.CRITICAL)
        from hta.trace_analysis import TraceAnalysis

        begin = time.perf_counter()
        analysis = TraceAnalysis(trace_files={0: paths[0]}, trace_dir=str(Path(paths[0]).parent))
        loaded, load_peak_bytes = time.perf_counter(), own_peak_bytes()
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)
    elif side == "json":
        import gzip

        begin = time.perf_counter()
        with gzip.open(paths[0]) as file:
            assert json.loads(file.read())["traceEvents"]
        loaded, load_peak_bytes = time.perf_counter(), own_peak_bytes()
    else:
        import msgspec
        from isal import igzip

        class Nothing(msgspec.Struct):
            """Every field is skipped."""

        begin = time.perf_counter()
        with igzip.open(paths[0]) as file:
            msgspec.json.decode(file.read(), type=Nothing)
        loaded, load_peak_bytes = time.perf_counter(), own_peak_bytes()
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "load_seconds": loaded - begin, "load_peak_bytes": load_peak_bytes}


def own_peak_bytes() -> int:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_run(side: str, megabytes: int, times: str) -> dict[str, Any]:
    """Run one side in a process of its own."""
    if side == THOUSAND:
        paths = [str(trace(megabytes, times, rank)) for rank in range(1000)]
    else:
        paths = [str(trace(megabytes, times, rank)) for rank in range(2 if side.startswith("jobs") else 1)]
    if side == "reopened":
        subprocess.run([sys.executable, __file__, "--run", side, *paths], check=True, capture_output=True)
    words = [sys.executable, __file__, "--run", side, *paths]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    begin = time.monotonic()
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0 and time.monotonic() - begin < LIMIT_S:
        time.sleep(0.05)
    if ended[0] == 0:
        process.kill()
        ended = os.wait4(process.pid, 0)
    assert process.stdout is not None
    said = process.stdout.read()
    status = os.waitstatus_to_exitcode(ended[1])
    result = {"side": side, "megabytes": megabytes, "times": times, "status": status, "commit": commit()}
    if status == 0:
        result.update(json.loads(said), peak_bytes=ended[2].ru_maxrss * 1024, text_bytes=sum(map(text_bytes, paths)))
    return result


def trace(megabytes: int, times: str, rank: int) -> Path:
    """The trace of that size; written now if it is not there."""
    path = DATA / f"{times}-{megabytes}-rank{rank}.json.gz"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        partial = path.with_name("writing-" + path.name)
        world_size = 1000 if megabytes == 2 else 8
        size = write_trace(partial, megabytes, times, rank, world_size)  # type: ignore[arg-type]
        path.with_suffix(".bytes").write_text(str(size))
        partial.rename(path)
        os.utime(path, (0, 0))
    return path


def text_bytes(path: str) -> int:
    """How much text a trace holds."""
    return int(Path(path).with_suffix(".bytes").read_text())


def wanted(megabytes: int, times: str) -> dict[str, int]:
    """How often each side is to run on a trace."""
    rounds = {side: (SLOW_ROUNDS if side in ("hta", "json") else ROUNDS)[megabytes] for side in SIDES}
    if megabytes == 1500 and times != "offset":
        rounds.update(hta=0, json=0)  # they take as long as with offsets
    if times != "offset" or megabytes != 500:
        rounds.update({"jobs-1": 0, "jobs-2": 0})
    return rounds


def collect(sizes: list[int], seed: int) -> dict[str, Any]:
    """Run until each side has run often enough; each result is written down as soon as it is there."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}
    results.update(machine=machine(), command="python tests/benchmarks/loading.py")
    order = random.Random(seed)
    for megabytes in sizes:
        for times in TIMES:
            while missing := [
                side
                for side, rounds in wanted(megabytes, times).items()
                if len(of(results, side, megabytes, times, failed=True)) < rounds
            ]:
                order.shuffle(missing)
                for side in missing:
                    results["runs"].append(one_run(side, megabytes, times))
                    RESULTS.write_text(json.dumps(results, indent=0) + "\n")
                    print(results["runs"][-1], file=sys.stderr)
    if not of(results, THOUSAND, 2, "offset"):
        results["runs"].append(one_run(THOUSAND, 2, "offset"))
        RESULTS.write_text(json.dumps(results, indent=0) + "\n")
    return results


def of(results: dict[str, Any], side: str, megabytes: int, times: str, failed: bool = False) -> list[dict[str, Any]]:
    """The runs of a side on a trace; those that failed too, if asked."""
    key = (side, megabytes, times)
    runs = [run for run in results["runs"] if (run["side"], run["megabytes"], run["times"]) == key]
    return [run for run in runs if failed or run["status"] == 0]


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    commits = ", ".join(dict.fromkeys(run["commit"] for run in results["runs"]))
    lines = [f"machine: {results['machine']}; commits: {commits}", ""]
    lines += ["  MB  times        dptune s    hta / dptune   json / dptune   dptune / floor   load / reopen"]
    several = [""]
    memory = ["", "  MB  times        peak memory / text:  dptune     hta    json"]
    measuring = ["", "  MB  times        measuring / loading:    time   peak memory"]
    for megabytes in SIZES_MB:
        for times in TIMES:
            seconds, loading, peaks = {}, {}, {}
            for side in SIDES:
                if runs := of(results, side, megabytes, times):
                    seconds[side] = median(run["seconds"] for run in runs)
                    loading[side] = median(run["load_seconds"] for run in runs)
                    peaks[side] = median(run["peak_bytes"] / run["text_bytes"] for run in runs)
            if "dptune" not in seconds:
                continue

            def ratio(over: str, under: str, seconds: dict[str, float] = seconds) -> str:
                return f"{seconds[over] / seconds[under]:.1f}" if {over, under} <= set(seconds) else "-"

            lines.append(
                f"{megabytes:4d}  {times:10s} {seconds['dptune']:10.2f} {ratio('hta', 'dptune'):>15s}"
                f" {ratio('json', 'dptune'):>15s} {ratio('dptune', 'floor'):>16s}"
                f" {ratio('dptune', 'reopened', loading):>15s}"
            )
            shares = "".join(
                f"{peaks[side]:8.2f}" if side in peaks else "       -" for side in ("dptune", "hta", "json")
            )
            memory.append(f"{megabytes:4d}  {times:10s}                       {shares}")
            own = of(results, "dptune", megabytes, times)
            spent = median((run["seconds"] - run["load_seconds"]) / run["load_seconds"] for run in own)
            more = median(run["peak_bytes"] / run["load_peak_bytes"] for run in own)
            measuring.append(f"{megabytes:4d}  {times:10s}                       {spent:8.2f} {more:13.2f}")
            if "jobs-2" in seconds:
                faster = ratio("jobs-1", "jobs-2")
                several.append(f"two ranks of {megabytes} MB: {faster} times as fast by two processes as by one")
    for run in of(results, THOUSAND, 2, "offset"):
        text, peak = run["text_bytes"] / 1e9, run["peak_bytes"] / 1e9
        several += [f"1,000 ranks, {text:.1f} GB of text: {run['seconds']:.0f} s by two processes, peak {peak:.1f} GB"]
    return "\n".join([*lines, *memory, *measuring, *several])


def main() -> None:
    """Collect, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES_MB, default=list(SIZES_MB), metavar="MB")
    parser.add_argument("--seed", type=int, default=0, help="of the order they run in")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--run", choices=(*SIDES, THOUSAND), help="one side in this process, on PATH")
    parser.add_argument("paths", nargs="*", metavar="PATH")
    args = parser.parse_args()
    if args.run:
        print(json.dumps(measure_once(args.run, args.paths)))
    else:
        print(table(json.loads(RESULTS.read_text()) if args.table else collect(args.sizes, args.seed)))


if __name__ == "__main__":
    main()
