"""Whether a report names the rank that stalls, and the function and line in which it does.

    python tests/benchmarks/stragglers.py            run what is missing, then print the table (make bench-stragglers)
    python tests/benchmarks/stragglers.py --again    read anew what was recorded, with the commit as it is
    python tests/benchmarks/stragglers.py --table    print the table of what there is

scripts/late.py on 2 and on 4 gloo ranks, with a stall on one of them in a backward hook, a collate function, a wrapper
of a collective, a collection of garbage, a loop of `.item()` or a transform; which rank and how long draws a seed. And
healthy runs of it. Each is recorded with `dptune profile` and read with `dptune report`. It resumes where it stopped, a
run at a time; raw results stand in results/stragglers.json.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_line import main
from overhead import commit, machine

from dptune.advice import FORMER_SEVERITY

HERE = Path(__file__).parent
SCRIPT = HERE / "scripts" / "late.py"
RESULTS = HERE / "results" / "stragglers.json"
FUNCTIONS = {
    "hook": "on_gradient",
    "collate": "collated",
    "collective": "mean_over_ranks",
    "gc": "collect_garbage",
    "item": "read_back",
    "transform": "augmented",
}
DRAW = "third"  # another word draws other ranks and stalls; results/stragglers_*.json are the draws before
ROUNDS = 4  # of each kind, on 2 and 4 ranks in turn
HEALTHY = 10
WINDOWS = ("--warmup", "3", "--untraced", "5", "--light", "5", "--detailed", "3", "--no-links")
DPTUNE = (sys.executable, "-m", "dptune")
LONGEST_S = 180


def runs() -> list[dict[str, Any]]:
    """What is to be run: each kind in turn, and every third run a healthy one."""
    planted = [
        {"name": f"{kind}-{at}", "kind": kind, "ranks": 2 + 2 * (at % 2)} for at in range(ROUNDS) for kind in FUNCTIONS
    ]
    healthy = [{"name": f"healthy-{at}", "kind": "", "ranks": 2 + 2 * (at % 2)} for at in range(HEALTHY)]
    for one in planted:
        draw = random.Random(f"{DRAW} {one['name']}")
        one.update(late_rank=draw.randrange(one["ranks"]), stall_ms=draw.randrange(30, 81))
    mixed = []
    while planted or healthy:
        mixed += planted[:2] + healthy[:1]
        del planted[:2], healthy[:1]
    return mixed


def collect(work: Path, again: bool = False) -> dict[str, Any]:
    """What is missing, each written down as soon as it is known; `again`: all recordings that are there, read anew."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    results.update(machine=machine(), command="python tests/benchmarks/stragglers.py")
    for one in runs():
        recording = work / one["name"] / "run"
        if (again and recording.is_dir()) or one["name"] not in results["runs"]:
            recording = recording if again and recording.is_dir() else _recorded(work, one)
            results["runs"][one["name"]] = {**one, "commit": commit(), **_told(recording)}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(_row(results["runs"][one["name"]]), file=sys.stderr, flush=True)
    return results


def _recorded(work: Path, one: dict[str, Any]) -> Path:
    place = work / one["name"]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copy(SCRIPT, place / "train.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "STALL": one["kind"]}
    if one["kind"]:
        env.update(LATE_RANK=str(one["late_rank"]), STALL_MS=str(one["stall_ms"]))
    words = [*DPTUNE, "profile", "-q", *WINDOWS, "--run-dir", "run", "--nproc-per-node", str(one["ranks"]), "train.py"]
    subprocess.run(words, cwd=place, env=env, check=True, timeout=LONGEST_S)
    return place / "run"


def _told(folder: Path) -> dict[str, Any]:
    """What the report says of the straggler."""
    words = [*DPTUNE, "report", str(folder), "--format", "json", "--no-cache"]
    report = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    late = report["measured"]["straggler"]
    return {
        "verdict": report["headline"]["verdict"],
        "straggler": late,
        "step_ms": report["measured"]["step"]["time_ns"] / 1e6,
        "late_advice": [one for one in report["advice"] if one["rule"] in ("DP701", "DP702")],
        "skipped": {one["rule"]: one["reason"] for one in report["skipped"] if one["rule"] in ("DP701", "DP702")},
    }


def rank_right(one: dict[str, Any]) -> bool:
    """Whether the rank that stalls is the straggler."""
    return one["straggler"] is not None and one["straggler"]["rank"] == one["late_rank"]


def cause_right(one: dict[str, Any]) -> bool:
    """Whether what explains most of its lag is the function in which it stalls, with its line."""
    first = next(iter((one["straggler"] or {}).get("differences", [])), None)
    if first is None or not rank_right(one):
        return False
    name = FUNCTIONS[one["kind"]]
    line = next(at for at, text in enumerate(SCRIPT.read_text().splitlines(), 1) if text.startswith(f"def {name}("))
    return first["name"] == name and first["at"] == f"train.py:{line}"


def _names_a_rank(one: dict[str, Any]) -> bool:
    """Whether the verdict or advice above a note says that a rank holds up the others, in older words too."""
    loud = any(each["rule"] == "DP701" and _impact(each) != "low" for each in one["late_advice"])
    return loud or one["verdict"].startswith(("Straggler: rank", "Held up by rank"))


def _impact(advice: dict[str, Any]) -> str:
    """Its impact; rows of before have a severity."""
    return str(advice.get("impact") or FORMER_SEVERITY[advice["severity"]])


def _row(one: dict[str, Any]) -> str:
    said = ", ".join(f"{each['rule']} {_impact(each)}" for each in one["late_advice"]) or "no advice"
    if not one["kind"]:
        return f"{one['name']:14s} {one['ranks']} ranks  {said:16s} {one['verdict']}"
    first = next(iter((one["straggler"] or {}).get("differences", [])), {})
    found = f"{first.get('name')} ({first.get('at')}) {100 * first.get('share', 0):.0f} %"
    right = "right" if cause_right(one) else "rank only" if rank_right(one) else "WRONG"
    planted = f"{one['name']:14s} {one['ranks']} ranks  {one['stall_ms']} ms on {one['late_rank']}"
    return f"{planted}  {right:9s} {found:40s} {said}"


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    ran = list(results["runs"].values())
    planted, healthy = [one for one in ran if one["kind"]], [one for one in ran if not one["kind"]]
    named = [one for one in healthy if _names_a_rank(one)]
    uneven = [one for one in healthy if any(each["rule"] == "DP702" for each in one["late_advice"])]
    return "\n".join(
        [
            f"machine: {results['machine']}; commits: {', '.join(dict.fromkeys(one['commit'] for one in ran))}",
            *map(_row, planted),
            *map(_row, healthy),
            f"of {len(planted)} planted stalls: rank right {sum(map(rank_right, planted))}, "
            f"cause and line right {sum(map(cause_right, planted))}, "
            f"DP701 {sum(bool(one['late_advice']) for one in planted)}",
            f"of {len(healthy)} healthy runs: a rank named {len(named)}, uneven ranks (DP702) {len(uneven)}",
        ]
    )


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "stragglers", {"again": "read the recordings anew"})
