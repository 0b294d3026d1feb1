"""How long it takes from a clone to the first advice that was proven, step by step.

    python tests/benchmarks/first_use.py           walk it, then print the table (make bench-first-use)
    python tests/benchmarks/first_use.py --table   print the table of what there is

A clone of this repository, in a folder of its own, is set up by `make demo`; then the script of the tutorial is
recorded, the links are measured, the report is read, its first advice is verified, and the recording is checked as CI
does. What each step printed stands in results/first_use.json. Packages come from wherever pip finds them: a slow
network makes the setting up longer, and nothing else. The rest of the machine should be idle.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from command_line import main, run
from overhead import commit, machine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results" / "first_use.json"
STEPS = (
    ("clone", "git clone -q {root} dptune"),
    ("set up, and see the demo", "make -C dptune demo"),
    ("record a script", "dptune/.venv/bin/dptune profile --nproc-per-node 2 train.py"),
    ("measure the links", "dptune/.venv/bin/dptune links"),
    ("read the report", "dptune/.venv/bin/dptune report --no-tui"),
    ("prove its first advice", "dptune/.venv/bin/dptune verify --advice {advice}"),
    ("check it in CI", "dptune/.venv/bin/dptune check --fail-on medium"),
)
ENDS = {"check it in CI": 1}  # for it has advice


def collect(work: Path) -> dict[str, Any]:
    """Walk from the beginning; the folder of a walk before is removed."""
    place = work / "walk"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copy(ROOT / "docs" / "examples" / "train.py", place / "train.py")
    results: dict[str, Any] = {
        "machine": machine(),
        "commit": commit(),
        "command": "python tests/benchmarks/first_use.py",
        "steps": [],
    }
    for name, command in STEPS:
        words = command.format(root=ROOT, advice=results.get("advice"))
        print(f"{name}: {words}", file=sys.stderr, flush=True)
        began = time.monotonic()
        done = run(shlex.split(words), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        seconds = time.monotonic() - began
        if done.returncode != ENDS.get(name, 0):
            raise SystemExit(f"{words}\nended with {done.returncode}:\n{done.stdout}")
        shown = done.stdout.replace(str(place), "PLACE").replace(str(ROOT), "ROOT").splitlines()
        typed = command if name == "clone" else words
        results["steps"].append({"name": name, "command": typed, "seconds": seconds, "printed": shown})
        if name == "read the report":
            results["advice"] = _report(place)["advice"][0]["rule"]
    (proof,) = (place / "dptune-runs").glob("*/verified/*/proof.json")
    results["promised"] = next(one for one in _report(place)["advice"] if one["rule"] == results["advice"])["saves"]
    told = json.loads(proof.read_text())
    results["proof"] = {key: told[key] for key in ("outcome", "decided_by", "ratio", "fast_ratio", "looks")}
    results["proof"]["trials"] = [{key: one[key] for key in ("side", "step_ns", "seconds")} for one in told["trials"]]
    RESULTS.write_text(json.dumps(results) + "\n")
    return results


def _report(place: Path) -> dict[str, Any]:
    words = ("dptune/.venv/bin/dptune", "report", "--format", "json")
    told: dict[str, Any] = json.loads(run(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return told


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    lines = [f"machine: {results['machine']}; commit: {results['commit']}", "", "   s  in all  what"]
    whole = 0.0
    for one in results["steps"]:
        whole += one["seconds"]
        command = one["command"].replace("{root}", "...").replace("dptune/.venv/bin/", "")
        lines.append(f"{one['seconds']:4.0f}  {_clock(whole):>6}  {one['name']}: {command}")
    promised, proof = results["promised"], results["proof"]
    low, high = (100 * promised[f"{end}_share"] for end in ("low", "high"))
    told = f"{low:.0f} to {high:.0f} % ({promised['basis']})"
    measured = f"{proof['outcome']}, {100 * (1 - proof['ratio']):.0f} %"
    lines += ["", f"{results['advice']} promised to save {told}; proven: {measured}, in {len(proof['trials'])} trials"]
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "first-use")
