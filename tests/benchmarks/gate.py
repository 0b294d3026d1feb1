"""Whether the gate holds and lets through as it should: commits that are known, judged by `dptune check`.

    python tests/benchmarks/gate.py                run what is missing, then print the table (make bench-gate)
    python tests/benchmarks/gate.py --table        print the table of what there is

Each is a repository of its own with two commits of planted.py: the second changes a comment (`same`), or makes every
step a tenth longer (`10 % longer`), on one process and on two ranks over gloo, in shuffled order. One call of `dptune
check --script` with its defaults judges the second against the first: more than 5 % longer is to fail. It resumes
where it stopped, within a call too; raw results stand in results/gate.json. The rest of the machine should be idle.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from command_line import main, run
from overhead import commit, machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gate.json"
KINDS = {"same": "0", "10 % longer": "0.1"}
EACH = 6  # of each kind and number of ranks
DPTUNE = (sys.executable, "-m", "dptune")
PLANTED = 'os.environ.get("PLANTED", "0")'


def missing(results: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Kind, ranks and number of those that were not judged, in the order to do so."""
    made = {(one["kind"], one["ranks"], one["number"]) for one in results["judged"]}
    wanted = [(kind, ranks, n) for kind in KINDS for ranks in (1, 2) for n in range(EACH)]
    random.Random(0).shuffle(wanted)
    return [one for one in wanted if one not in made]


def repository(place: Path, planted: str) -> None:
    """Two commits of the script."""
    script = (HERE / "planted.py").read_text()
    assert PLANTED in script
    place.mkdir()
    git = ("git", "-C", str(place), "-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run([*git, "init", "-q"], check=True)
    for text, words in ((script, "before"), (f"# after\n{script.replace(PLANTED, repr(planted))}", "after")):
        (place / "planted.py").write_text(text)
        subprocess.run([*git, "add", "planted.py"], check=True)
        subprocess.run([*git, "commit", "-qm", words], check=True)


def judged(work: Path, kind: str, ranks: int, number: int) -> dict[str, Any]:
    """One call of `dptune check`, made or gone on with."""
    place = work / f"{kind.split()[0]}-{ranks}-{number}"
    if not place.exists():
        repository(place, KINDS[kind])
    several = ("--nproc-per-node", str(ranks)) if ranks > 1 else ()
    words = (*DPTUNE, "check", "--script", "planted.py", "--baseline", "HEAD~1", "--format", "json", *several)
    began = time.monotonic()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run(words, cwd=place, stdout=subprocess.PIPE, env=env)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}")
    told = json.loads(done.stdout)
    return {
        **{"kind": kind, "ranks": ranks, "number": number, "status": done.returncode, "outcome": told["outcome"]},
        **{"regression": told["regression"], "seconds": time.monotonic() - began},
    }


def collect(work: Path) -> dict[str, Any]:
    """Judge what was not judged; each is written down as soon as it has ended."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"judged": []}
    results.update(machine=machine(), command="python tests/benchmarks/gate.py")
    todo = missing(results)
    for i, one in enumerate(todo, 1):
        made = {"commit": commit(), **judged(work, *one)}
        results["judged"].append(made)
        RESULTS.write_text(json.dumps(results) + "\n")
        print(f"{i:4d} of {len(todo)}  {one}: {made['outcome']}", file=sys.stderr, flush=True)
    return results


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    commits = ", ".join(dict.fromkeys(one["commit"] for one in results["judged"]))
    lines = [f"machine: {results['machine']}; commits: {commits}; more than 5 % longer is to fail", ""]
    lines.append("the second commit is  ranks  judged  failed  passed  inconclusive  B / A           seconds")
    for kind in KINDS:
        for ranks in (1, 2):
            own = [one for one in results["judged"] if (one["kind"], one["ranks"]) == (kind, ranks)]
            if own:
                told = Counter(one["outcome"] for one in own)
                ratios = [one["regression"]["ratio"] for one in own]
                seconds = [one["seconds"] for one in own]
                lines.append(
                    f"{kind:20s}  {ranks:5d}  {len(own):6d}  {told['failed']:6d}  {told['passed']:6d}"
                    f"  {told['inconclusive']:12d}  {min(ratios):.3f} to {max(ratios):.3f}"
                    f"  {min(seconds):.0f} to {max(seconds):.0f}"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "gate")
