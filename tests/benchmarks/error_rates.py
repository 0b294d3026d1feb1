"""How often `dptune verify` is wrong, and how often it finds what is there: comparisons of sides that are known.

    python tests/benchmarks/error_rates.py                run what is missing, then print the table (make bench-proving)
    python tests/benchmarks/error_rates.py --table        print the table of what there is

Kinds, each of one process and of two ranks over gloo, in shuffled order:
    same        both sides alike: a verdict is false
    10 %        B's steps are made a tenth longer (planted.py): "worse" is right, "better" is false
    5 %         a twentieth longer

A comparison is one call of `dptune verify` with its defaults, and every trial in it a process of its own. It resumes
where it stopped, within a comparison too; raw results stand in results/error_rates.json. The rest of the machine
should be idle.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median, pstdev
from typing import Any

from command_line import main, run
from overhead import commit, machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "error_rates.json"
PLANTED = {"same": 0.0, "10 %": 0.1, "5 %": 0.05}
WANTED = {"same": 16, "10 %": 10, "5 %": 10}  # of each number of ranks
DPTUNE = (sys.executable, "-m", "dptune")


def missing(results: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Kind, ranks and number of the comparisons that were not made, in the order to make them."""
    made = {(one["kind"], one["ranks"], one["number"]) for one in results["comparisons"]}
    wanted = [(kind, ranks, n) for kind, most in WANTED.items() for ranks in (1, 2) for n in range(1, most + 1)]
    random.Random(0).shuffle(wanted)
    return [one for one in wanted if one not in made]


def base(work: Path, ranks: int) -> Path:
    """The recording whose script is compared with itself."""
    place = work / f"ranks-{ranks}"  # a folder of its own: trials run in a copy of it
    folder = place / "run"
    if not (folder / "run.json").exists():
        windows = ("--warmup", "3", "--untraced", "5", "--light", "3", "--detailed", "0", "--no-links")
        several = ("--nproc-per-node", str(ranks)) if ranks > 1 else ()
        place.mkdir(exist_ok=True)
        (place / "planted.py").write_bytes((HERE / "planted.py").read_bytes())
        words = [*DPTUNE, "profile", "-q", "--run-dir", str(folder), *windows, *several, "planted.py"]
        subprocess.run(words, cwd=place, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder


def compared(work: Path, kind: str, ranks: int, number: int) -> dict[str, Any]:
    """One comparison, made or gone on with."""
    settings = (f"env.PLANTED={PLANTED[kind]}", f"env.COMPARISON={number}")  # the second makes it another one
    words = [*DPTUNE, "verify", str(base(work, ranks)), "-q", "--format", "json"]
    for setting in settings:
        words += ["--set", setting]
    done = run(words, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
    proof = json.loads(done.stdout)
    kept = ("outcome", "decided_by", "ended", "ratio", "fast_ratio", "looks")
    trials = [
        {name: one[name] for name in ("side", "status", "began", "seconds", "step_ns", "fast_step_ns")}
        for one in proof["trials"]
    ]
    return {"kind": kind, "ranks": ranks, "number": number, **{name: proof[name] for name in kept}, "trials": trials}


def collect(work: Path) -> dict[str, Any]:
    """Make every comparison that is missing; each is written down as soon as it has ended."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"comparisons": []}
    results.update(machine=machine(), command="python tests/benchmarks/error_rates.py")
    todo = missing(results)
    for i, (kind, ranks, number) in enumerate(todo, 1):
        made = {"commit": commit(), **compared(work, kind, ranks, number)}
        results["comparisons"].append(made)
        RESULTS.write_text(json.dumps(results) + "\n")
        words = f"{kind}, {ranks} ranks: {made['outcome']}, ratio {made['ratio']:.3f}, {len(made['trials'])} trials"
        print(f"{i:4d} of {len(todo)}  {words}", file=sys.stderr, flush=True)
    return results


def spread(comparison: dict[str, Any], steps: str) -> float:
    """How far one side's trials lie apart: the standard deviation of A's, relative to their mean."""
    times = [one[steps] for one in comparison["trials"] if one["side"] == "A" and one["status"] == "ran"]
    return pstdev(times) * len(times) / sum(times)


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    commits = ", ".join(dict.fromkeys(one["commit"] for one in results["comparisons"]))
    lines = [f"machine: {results['machine']}; commits: {commits}", ""]
    lines.append("B against A  ranks  comparisons  better  worse  inconclusive  spread: mean, fast    trials  seconds")
    for kind in WANTED:
        for ranks in (1, 2):
            own = [one for one in results["comparisons"] if (one["kind"], one["ranks"]) == (kind, ranks)]
            if not own:
                continue
            count = {name: sum(one["outcome"] == name for one in own) for name in ("better", "worse", "inconclusive")}
            seconds = [sum(trial["seconds"] for trial in one["trials"]) for one in own]
            spreads = [100 * median(spread(one, steps) for one in own) for steps in ("step_ns", "fast_step_ns")]
            trials = median(len(one["trials"]) for one in own)
            lines.append(
                f"{kind + ('' if kind == 'same' else ' longer'):12s} {ranks:5d} {len(own):12d} {count['better']:7d}"
                f" {count['worse']:6d} {count['inconclusive']:13d} {spreads[0]:15.1f} %"
                f" {spreads[1]:4.1f} % {trials:6.0f} {min(seconds):4.0f} to {max(seconds):.0f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "proving")
