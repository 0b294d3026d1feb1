"""Whether the gate holds and lets through as it should: commits that are known, judged by `dptune check`.

    python tests/benchmarks/gate.py                run what is missing, then print the table (make bench-gate)
    python tests/benchmarks/gate.py --table        print the table of what there is

Each is a repository of its own with two commits of gated.py: the second changes a comment (`same`), or makes every
step a tenth longer (`10 % longer`), on one process and on two ranks over gloo, in shuffled order. One call of `dptune
check --script` judges the second against the first: more than 5 % longer is to fail. Another, of the same trials, is
told that what it cannot judge is to fail. It resumes where it stopped, within a call too; raw results stand in
results/gate.json. The rest of the machine should be idle.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import log
from pathlib import Path
from statistics import stdev
from typing import Any

from command_line import main, run
from overhead import commit, machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gate.json"
KINDS = {"same": "0", "10 % longer": "0.1"}
EACH = 5  # of each kind and number of ranks
GATE = ("--max-regression", "time_per_sample=5%", "--repeat", "35")
DPTUNE = (sys.executable, "-m", "dptune")
SCRIPT = "gated.py"
PLANTED = 'os.environ.get("PLANTED", "0")'
STATUS = {"passed": (0, 0), "failed": (1, 1), "inconclusive": (0, 1), "unjudgeable": (2, 2)}  # and where that fails


def missing(results: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Kind, ranks and number of those that were not judged, in the order to do so."""
    made = {(one["kind"], one["ranks"], one["number"]) for one in results["judged"]}
    wanted = [(kind, ranks, n) for kind in KINDS for ranks in (1, 2) for n in range(EACH)]
    random.Random(0).shuffle(wanted)
    return [one for one in wanted if one not in made]


def repository(place: Path, planted: str) -> None:
    """Two commits of the script, made whole or not at all."""
    script, half = (HERE / SCRIPT).read_text(), place.with_suffix(".half")
    assert PLANTED in script
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    git = ("git", "-C", str(half), "-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    git = (*git, "-c", "commit.gpgsign=false", "-c", f"core.hooksPath={os.devnull}")
    subprocess.run([*git, "init", "-q"], check=True)
    for text, words in ((script, "before"), (f"# after\n{script.replace(PLANTED, repr(planted))}", "after")):
        (half / SCRIPT).write_text(text)
        subprocess.run([*git, "add", SCRIPT], check=True)
        subprocess.run([*git, "commit", "-qm", words], check=True)
    half.rename(place)


def judged(work: Path, kind: str, ranks: int, number: int) -> dict[str, Any]:
    """One comparison, made or gone on with, and judged both ways."""
    place = work / f"{kind.split()[0]}-{ranks}-{number}"
    if not place.exists():
        repository(place, KINDS[kind])
    several = ("--nproc-per-node", str(ranks)) if ranks > 1 else ()
    words = (*DPTUNE, "check", "--script", SCRIPT, "--baseline", "HEAD~1", "--format", "json", *GATE, *several)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run(words, cwd=place, stdout=subprocess.PIPE, env=env)
    if done.returncode not in (0, 1, 2) or not done.stdout:
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}")
    strict = run((*words, "--inconclusive", "fail", "-q"), cwd=place, stdout=subprocess.PIPE, env=env)
    told = json.loads(done.stdout)
    (made,) = (place / "dptune-runs" / "compared").glob("*/proof.json")
    trials = json.loads(made.read_text())["trials"]
    return {
        **{"kind": kind, "ranks": ranks, "number": number, "outcome": told["outcome"]},
        **{"statuses": [done.returncode, strict.returncode], "regression": told["regression"]},
        **{"seconds": sum(one["seconds"] for one in trials)},
        "step_ns": {
            side: [one["step_ns"] for one in trials if one["side"] == side and not one["set_aside"]] for side in "AB"
        },
    }


def collect(work: Path) -> dict[str, Any]:
    """Judge what was not judged; each is written down as soon as it has ended."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"judged": []}
    results.update(machine=machine(), command="python tests/benchmarks/gate.py")
    todo = missing(results)
    for i, one in enumerate(todo, 1):
        made = {"commit": commit(), **judged(work, *one)}
        results["judged"].append(made)
        half = RESULTS.with_suffix(".half")
        half.write_text(json.dumps(results) + "\n")
        half.replace(RESULTS)
        print(f"{i:4d} of {len(todo)}  {one}: {made['outcome']}", file=sys.stderr, flush=True)
    return results


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    commits = ", ".join(dict.fromkeys(one["commit"] for one in results["judged"]))
    lines = [f"machine: {results['machine']}; commits: {commits}; more than 5 % longer is to fail", ""]
    heads = "the second commit is  ranks  judged  failed  passed  inconclusive  B / A           trials  spread  seconds"
    lines.append(heads)
    for kind in KINDS:
        for ranks in (1, 2):
            own = [one for one in results["judged"] if (one["kind"], one["ranks"]) == (kind, ranks)]
            if own:
                lines.append(f"{kind:20s}  {ranks:5d}  {_row(own)}")
    return "\n".join([*lines, "", *_held(results["judged"])])


def _row(own: list[dict[str, Any]]) -> str:
    told = Counter(one["outcome"] for one in own)
    ratios = [one["regression"]["ratio"] for one in own if one["regression"]["ratio"] is not None]
    trials = [len(one["step_ns"]["A"]) for one in own]
    spreads = sorted(_spread([step for step in one["step_ns"]["A"] if step]) for one in own)
    seconds = [one["seconds"] for one in own]
    return (
        f"{len(own):6d}  {told['failed']:6d}  {told['passed']:6d}  {told['inconclusive']:12d}"
        f"  {min(ratios):.3f} to {max(ratios):.3f}  {min(trials):2d}-{max(trials):2d}  "
        f" {100 * spreads[len(spreads) // 2]:4.1f} %  {min(seconds):.0f} to {max(seconds):.0f}"
    )


def _spread(steps: list[int]) -> float:
    """Standard deviation of the logarithm of like trials' steps."""
    return stdev(map(log, steps)) if len(steps) > 1 else 0.0


def _held(judged: list[dict[str, Any]]) -> Iterator[str]:
    """What was to be shown, and whether it was."""
    of = {kind: Counter(one["outcome"] for one in judged if one["kind"] == kind) for kind in KINDS}
    same, longer = of["same"], of["10 % longer"]
    statuses = sum(tuple(one["statuses"]) == STATUS[one["outcome"]] for one in judged)
    for text, holds in (
        (f"of {same.total()} that are the same at most one fails: {same['failed']}", same["failed"] <= 1),
        (
            f"of {longer.total()} that are 10 % longer all but one in ten fail: {longer['failed']}",
            longer["failed"] >= 0.9 * longer.total(),
        ),
        (
            f"exit status by outcome, and by --inconclusive: {statuses} of {len(judged)} as they should be",
            statuses == len(judged),
        ),
    ):
        yield f"{text}: {'yes' if holds else 'NO'}"


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "gate")
