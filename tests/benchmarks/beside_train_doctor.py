"""`dptune tune` beside `train-doctor fix`: minutes, saving and false keeps on the one-process scripts of tuning.py.

    python tests/benchmarks/beside_train_doctor.py       run what is missing, then print the table (make bench-beside;
                                                         four hours on an idle machine; resumes)
    python tests/benchmarks/beside_train_doctor.py --minutes 15   15 minutes of it; the same command continues
    python tests/benchmarks/beside_train_doctor.py --only plain_reads --time-limit 2m --rounds 1     one, to try it
    python tests/benchmarks/beside_train_doctor.py --table                     print the table of what there is

train-doctor is installed into an environment of its own, and starts the scripts with the Python of this one. Both tools
have their defaults; dptune has a limit of 15 minutes, and train-doctor patches a copy of the script (--keep).
Both search each script, in random order. Then four versions run in turn, as in tuning.py: as it is, with
dptune's settings, with train-doctor's patch, and without its faults. All are timed by the same recordings. Minutes are
those of the whole command.

A false keep: something was changed, and the version with it is not faster in most rounds.

To run it in pieces: as tuning.py. A search of train-doctor that is interrupted starts again, and takes a few minutes.

Raw results: results/beside_train_doctor.json, a script at a time.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from command_line import PieceEndedError, Results, run
from overhead import commit, machine
from tuning import SCRIPTS, SEED, Script, is_faster, laid_out, main, missing, percent_of, saved, timed, tuned

from dptune.runfile import json_files

RESULTS = Path(__file__).parent / "results" / "beside_train_doctor.json"
PEER = "train-doctor"
RELEASE = "0.2.0"
VERSIONS = {"tuned": "dptune", PEER: PEER}  # with the tool that made each


def installed(work: Path) -> Path:
    """The train-doctor command, in an environment below the folder."""
    folder = work / "environment"
    if not (folder / "bin" / PEER).exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", f"{PEER}=={RELEASE}"], check=True)
    return folder / "bin" / PEER


def fixed_by_peer(command: Path, folder: Path, until: float) -> dict[str, Any]:
    """What train-doctor came to; its patch is applied to the script in the folder."""
    words = [str(command), "fix", "--keep", "--no-card", "--json", "--", sys.executable, "train.py"]
    done = run(words, until, cwd=folder, stdout=subprocess.PIPE)
    if done.returncode or not done.stdout:
        return {"failed": done.returncode or "no output"}
    found = json.loads(done.stdout)
    if found.get("error"):
        return {"failed": found["headline"]}
    proven = found.get("proven") or {}
    return {
        "headline": found["headline"],
        "kept": [proven["describe"]] if proven else [],
        "ratio": proven.get("ratio"),
        "patch": found.get("patch"),
        "applied": found.get("applied"),
        "candidates": found.get("candidates", []),
        "changed": bool(found.get("applied")),
    }


def collect(work: Path, only: str, time_limit: str, rounds: int, results: Path, until: float) -> None:
    """Searches and runs that are missing, written down one by one; those that there is time for."""
    found: Results = json.loads(results.read_text()) if results.exists() else {"scripts": {}}
    found.update(seed=SEED, time_limit=time_limit, rounds=rounds, release=RELEASE)
    work.mkdir(parents=True, exist_ok=True)
    command = installed(work)
    for script in SCRIPTS:
        if script.ranks > 1 or (only and script.name != only):
            continue
        row = found["scripts"].setdefault(script.name, {"faults": [*script.fixes], "tools": {}, "runs": []})
        place = laid_out(work / script.name, script)
        _search(script, row, place, command, time_limit, until, lambda: _write(results, found))
        for version in missing(_versions(script, row), script, row, rounds):
            folder = place / {"fixed": "fixed", PEER: PEER}.get(version, "planted")
            settings = row["tools"]["dptune"].get("settings", {}) if version == "tuned" else {}
            row["runs"].append({"version": version, **timed(folder, script, settings, until)})
            _write(results, found)
            print(f"{script.name}, {version}: {row['runs'][-1]}", file=sys.stderr, flush=True)


def _search(
    script: Script,
    row: dict[str, Any],
    place: Path,
    command: Path,
    time_limit: str,
    until: float,
    write: Callable[[], None],
) -> None:
    """Both tools, one after the other; what they came to and the seconds that they took.

    Those of a search of dptune that continued are of all its pieces.
    """
    tools = [*VERSIONS.values()]
    random.Random(f"{script.name} tools").shuffle(tools)
    for tool in tools:
        if tool in row["tools"]:
            continue
        begin, earlier_s = time.monotonic(), row.get("pieces_s", 0.0) if tool != PEER else 0.0
        try:
            if tool == PEER:
                (place / PEER).mkdir(exist_ok=True)
                (place / PEER / "train.py").write_text(script.text())
                made = fixed_by_peer(command, place / PEER, until)
            else:
                made = tuned(place / "planted", script, time_limit, until)
        except PieceEndedError:
            if tool != PEER:
                row["pieces_s"] = earlier_s + time.monotonic() - begin
                write()
            raise
        wall_s = earlier_s + time.monotonic() - begin
        row["tools"][tool] = {"wall_s": wall_s, "first": tool == tools[0], **made}
        row.update(commit=commit(), machine=machine())
        write()


def _versions(script: Script, row: Mapping[str, Any]) -> list[str]:
    changed = {"tuned": row["tools"]["dptune"].get("settings"), PEER: row["tools"][PEER].get("changed")}
    return [
        "as it is",
        *(version for version in VERSIONS if changed[version]),
        *(["fixed"] if script.fixes else []),
    ]


def _write(results: Path, found: Results) -> None:
    json_files.put(results, json.dumps(found, indent=1) + "\n")


def table(found: Results) -> str:
    """A row for each script and tool, and the false keeps."""
    lines = ["| script | faults | fixed script saves | tool | minutes | kept | saved |", "| --- " * 7 + "|"]
    false = dict.fromkeys(VERSIONS, 0)
    rows = {name: row for name, row in found["scripts"].items() if len(row["tools"]) == len(VERSIONS)}
    for name, row in rows.items():
        for version, tool in VERSIONS.items():
            made = row["tools"][tool]
            kept = f"failed: {made['failed']}" if "failed" in made else ", ".join(made.get("kept", ())) or "nothing"
            share = saved(row, version) if made.get("kept") else 0.0
            false[version] += bool(made.get("kept")) and not is_faster(row, version)
            minutes = f"{made.get('wall_s', 0) / 60:.1f}"
            cells = [name, ", ".join(row["faults"]), percent_of(saved(row, "fixed")), tool, minutes, kept]
            lines.append(f"| {' | '.join([*cells, percent_of(share)])} |")
    count = len(rows)
    words = ", ".join(f"{tool} {false[version]}" for version, tool in VERSIONS.items())
    return "\n".join([*lines, "", f"False keeps of {count} searches: {words}. train-doctor {found['release']}."])


if __name__ == "__main__":
    main(__doc__, "dptune-benchmark-beside", RESULTS, collect, table)
