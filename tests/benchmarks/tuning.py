"""How much of what an expert would save `dptune tune` saves, and whether it leaves healthy scripts alone.

    python tests/benchmarks/tuning.py                    run what is missing, then print the table (make bench-tuning;
                                                         five hours on an idle machine; resumes)
    python tests/benchmarks/tuning.py --minutes 15       15 minutes of it; the same command continues
    python tests/benchmarks/tuning.py --only plain_reads --time-limit 2m --rounds 1     one script, to try it
    python tests/benchmarks/tuning.py --table            print the table of what there is

To run it in pieces: repeat the second command whenever the machine is idle, and commit results/tuning.json after each.
A search under way is interrupted, and continues with its trials (`dptune tune --resume`), so keep the folder --work;
without it, or at a commit of other candidates, that search starts again. Another --time-limit or --rounds is a try-out:
its results are in the folder --work.

The scripts in reach/ are written as people write theirs. Eight have one fault or two that cost time; `SCRIPTS` has the
lines without them, as an expert would write them. Six are healthy. Their sizes are drawn by SEED from the values named
beside them, before anything is run.

Each script is searched once: `dptune tune --time-limit 15m`, with its defaults. Then three versions run in turn, in
random order, ROUNDS times each: as it is, with the kept settings, and without its faults. Each run is a recording of 30
untraced steps in a new process; kept settings are set from outside (`dptune profile --set`), those that only a patch
sets by tuned.patch. A version's time is the median over its runs of the mean step. Saved: 1 - time / time as it is.
Reached: what the kept settings save, as a share of what the fixed script saves; 0 if the script does not run with them.
A false keep: a change is kept, and the version with it is not faster in most rounds.

Raw results: results/tuning.json, a script at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from command_line import PieceEndedError, Results, run
from overhead import commit, machine

from dptune.knobs import is_patched, written
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.tune.options import OPTIONS

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "tuning.json"
DPTUNE = (sys.executable, "-m", "dptune")
SEED = "reach 1"
ROUNDS = 4
TIME_LIMIT = "15m"
WINDOWS = ("--warmup", "5", "--untraced", "30", "--light", "0", "--detailed", "0", "--no-links")
VERSIONS = ("as it is", "tuned", "fixed")
_DRAWN = re.compile(r"^(\w+ = )[\d.]+(  # drawn: )(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """A script of reach/. `fixes`: of each fault the text on its marked line that is wrong, and what it should be."""

    name: str
    ranks: int = 1
    fixes: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def text(self, fixed: bool = False) -> str:
        """The script with its drawn sizes, and without its faults."""
        draw = random.Random(f"{SEED} {self.name}")
        source = (HERE / "reach" / f"{self.name}.py").read_text()
        text = _DRAWN.sub(lambda line: f"{line[1]}{draw.choice(line[3].split(', '))}", source)
        for fault, (wrong, right) in self.fixes.items():
            (line,) = (line for line in text.splitlines() if line.endswith(f"# FAULT {fault}"))
            assert wrong in line, f"{self.name}: {line}"
            text = text.replace(line, line.replace(wrong, right) if fixed else line).replace(f"  # FAULT {fault}", "")
        return text


_WORKERS = "num_workers=2, persistent_workers=True)"
SCRIPTS = (
    Script("plain_reads", fixes={"reads": ("batch_size=16)", f"batch_size=16, {_WORKERS}")}),
    Script(
        "plain_accumulates",
        2,
        {"reduces": ("loss =", "model.require_backward_grad_sync = micro == ACCUMULATE - 1; loss =")},
    ),
    Script("plain_threads", fixes={"threads": (', "1")', ', "2")')}),
    Script(
        "class_many_tensors",
        fixes={"decodes": ("=batch_size)", f"=batch_size, {_WORKERS}"), "updates": ("lr=1e-3", "lr=1e-3, fused=True")},
    ),
    Script(
        "class_buckets",
        2,
        {"searches": ("find_unused_parameters=True", "find_unused_parameters=False"), "small": ("=0.05", "=25")},
    ),
    Script(
        "hf_sequences",
        fixes={
            "tokenizes": ("num_workers=0", "num_workers=2"),
            "recomputes": ("checkpointing=True", "checkpointing=False"),
        },
    ),
    Script("lightning_images", fixes={"augments": ("batch_size=12)", f"batch_size=12, {_WORKERS}")}),
    Script(
        "fsdp_gathers",
        2,
        {
            "reshards": ("reshard_after_forward=True", "reshard_after_forward=False"),
            "synchronizes": ("loss =", "model.set_requires_gradient_sync(micro == 1); loss ="),
        },
    ),
    Script("good_plain"),
    Script("good_class"),
    Script("good_ddp", 2),
    Script("good_hf"),
    Script("good_lightning"),
    Script("good_fsdp", 2),
)


def collect(work: Path, only: str, time_limit: str, rounds: int, results: Path, until: float) -> None:
    """Searches and runs that are missing, written down one by one; those that there is time for."""
    found: Results = json.loads(results.read_text()) if results.exists() else {"scripts": {}}
    found.update(command="python tests/benchmarks/tuning.py", seed=SEED, time_limit=time_limit, rounds=rounds)
    for script in SCRIPTS:
        if only and script.name != only:
            continue
        row = found["scripts"].setdefault(script.name, {"ranks": script.ranks, "faults": [*script.fixes], "runs": []})
        place = laid_out(work / script.name, script)
        if "settings" not in row.get("tune", {}):  # also where it failed
            made = tuned(place / "planted", script, time_limit, until)
            row.update(commit=commit(), machine=machine(), tune=made)
            _write(results, found)
        for version in _missing(script, row, rounds):
            folder = place / ("fixed" if version == "fixed" else "planted")
            kept = row["tune"].get("settings", {}) if version == "tuned" else {}
            row["runs"].append({"version": version, **timed(folder, script, kept, until)})
            _write(results, found)
            print(f"{script.name}, {version}: {row['runs'][-1]}", file=sys.stderr, flush=True)


def _write(results: Path, found: Results) -> None:
    json_files.put(results, json.dumps(found, indent=1) + "\n")


def laid_out(place: Path, script: Script) -> Path:
    for name in ("planted", "fixed"):
        (place / name).mkdir(parents=True, exist_ok=True)
        (place / name / "train.py").write_text(script.text(fixed=name == "fixed"))
    return place


def _ranks(script: Script) -> tuple[str, ...]:
    return ("--nproc-per-node", str(script.ranks)) if script.ranks > 1 else ()


def tuned(folder: Path, script: Script, time_limit: str, until: float) -> dict[str, Any]:
    """What a search came to. One that was interrupted continues; where it cannot, it starts again with a recording."""
    words = [*DPTUNE, "tune", "-q", "--time-limit", time_limit, "-o", "tuned"]
    done = None
    if (folder / "tuned" / OPTIONS).exists():
        done = run([*words, "--resume"], until, cwd=folder)
    if done is None or done.returncode:
        shutil.rmtree(folder / "tuned", ignore_errors=True)
        done = run([*words, *_ranks(script), "train.py"], until, cwd=folder)
    if done.returncode:
        return {"failed": done.returncode}
    found = json.loads((folder / "tuned" / "tuning.json").read_text())
    kept = ("outcome", "reason", "ended", "seconds", "kept", "settings", "final", "by_hand", "patched", "environment")
    tried = ("name", "result", "rounds", "gain_share", "low_ratio", "high_ratio", "reason")
    return {name: found[name] for name in kept} | {
        "tried": [{name: row[name] for name in tried} for row in found["tried"]]
    }


def _missing(script: Script, row: Mapping[str, Any], rounds: int) -> Iterator[str]:
    """Versions to run, a round after another; those that are the script as it is are left out."""
    differ = zip(VERSIONS, (True, row["tune"].get("settings"), script.fixes), strict=True)
    yield from missing([name for name, differs in differ if differs], script, row, rounds)


def missing(versions: Sequence[str], script: Script, row: Mapping[str, Any], rounds: int) -> Iterator[str]:
    """Those of these versions that have not run in a round, in its random order; none where there is one version."""
    for number in range(rounds if len(versions) > 1 else 0):
        order = [*versions]
        random.Random(f"{script.name} {number}").shuffle(order)
        for version in order:
            if sum(made["version"] == version for made in row["runs"]) <= number:
                yield version


def timed(folder: Path, script: Script, settings: Mapping[str, Any], until: float) -> dict[str, Any]:
    """The mean untraced step of a new process, of the script in a folder with these settings."""
    if any(is_patched(name, value) for name, value in settings.items()):
        folder = _patched(folder)
    shutil.rmtree(folder / "timed", ignore_errors=True)
    outside = {name: value for name, value in settings.items() if not is_patched(name, value)}
    words = [word for name, value in outside.items() for word in ("--set", f"{name}={written(value)}")]
    words = [*DPTUNE, "profile", "-q", *WINDOWS, "--run-dir", "timed", *words]
    done = run([*words, *_ranks(script), "train.py"], until, cwd=folder)
    facts = [json_files.read(path, Facts) for path in sorted((folder / "timed").glob("rank-*.facts.json"))]
    windows = [window for rank in facts if (window := rank.window("untraced")) is not None and window.durations_ns]
    if done.returncode or len(windows) < script.ranks:
        return {"failed": done.returncode or "no steps"}
    return {"step_ms": max(fmean(window.durations_ns) for window in windows) / 1e6}


def _patched(folder: Path) -> Path:
    """The script with the patch that its search wrote, in a folder beside it."""
    place = folder.with_name("patched")
    place.mkdir(exist_ok=True)
    shutil.copy2(folder / "train.py", place)
    with (folder / "tuned" / "tuned.patch").open() as patch:
        subprocess.run(["patch", "-p1", "-s"], stdin=patch, cwd=place, check=True)
    return place


def step_ms(row: Mapping[str, Any], version: str) -> list[float]:
    return [made["step_ms"] for made in row["runs"] if made["version"] == version and "step_ms" in made]


def saved(row: Mapping[str, Any], version: str) -> float | None:
    """The share of the step that a version saves."""
    before, after = step_ms(row, VERSIONS[0]), step_ms(row, version)
    return 1 - median(after) / median(before) if before and after else None


def is_false(row: Mapping[str, Any]) -> bool:
    """Whether changes were kept that do not make most rounds faster."""
    return bool(row["tune"].get("kept")) and not is_faster(row, "tuned")


def is_faster(row: Mapping[str, Any], version: str) -> bool:
    """Whether a version is faster than the script as it is in most rounds."""
    pairs = list(zip(step_ms(row, VERSIONS[0]), step_ms(row, version), strict=False))
    return 2 * sum(after < before for before, after in pairs) > len(pairs)


def _has_no_tuned_version(row: Mapping[str, Any]) -> bool:
    """Whether nothing was kept, or the script did not run with what was."""
    return not row["tune"].get("kept") or any(made["version"] == "tuned" for made in row["runs"])


def table(found: Results) -> str:
    """A row for each script, and what they come to."""
    lines = ["| script | ranks | faults | minutes | kept | saved | fixed script saves | reached |", "| --- " * 8 + "|"]
    reached = []
    for name, row in found["scripts"].items():
        tuned, fixed = saved(row, "tuned"), saved(row, "fixed")
        tuned = 0.0 if tuned is None and _has_no_tuned_version(row) else tuned
        share = tuned / fixed if row["faults"] and tuned is not None and fixed and fixed > 0 else None
        reached += [] if share is None else [share]
        minutes = f"{row['tune'].get('seconds', 0) / 60:.1f}"
        kept = ", ".join(row["tune"].get("kept", ())) or "nothing"
        cells = [
            name,
            str(row["ranks"]),
            ", ".join(row["faults"]),
            minutes,
            kept,
            *map(percent_of, (tuned, fixed, share)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rows = found["scripts"].values()
    healthy = [row for row in rows if not row["faults"]]
    kept = sum(bool(row["tune"].get("kept")) for row in healthy)
    lines += [
        "",
        f"Reached of the fixed script's saving: median {percent_of(median(reached) if reached else None)} "
        f"of {len(reached)} scripts. Healthy scripts with a kept change: {kept} of {len(healthy)}. "
        f"False keeps: {sum(map(is_false, rows))} of {len(rows)} searches.",
    ]
    return "\n".join(lines)


def percent_of(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def main(text: str, folder: str, results: Path, collect: Callable[..., None], table: Callable[[Results], str]) -> None:
    """Collect, then print; `folder`: the name of that below the folder of temporary files."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = Path(tempfile.gettempdir()) / folder
    parser.add_argument("--work", type=Path, default=kept, help=f"where scripts and recordings lie (default: {kept})")
    parser.add_argument("--only", default="", metavar="SCRIPT", help="one script")
    parser.add_argument("--time-limit", default=TIME_LIMIT, help=f"of a search (default: {TIME_LIMIT})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of timed runs (default: {ROUNDS})")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="stop after M minutes")
    parser.add_argument("--results", type=Path, help=f"another file for the results (default: {results.name})")
    parser.add_argument("--table", action="store_true", help="run nothing")
    args = parser.parse_args()
    if (args.time_limit, args.rounds) != (TIME_LIMIT, ROUNDS):  # a try-out: nothing of it counts
        args.work = args.work / f"{args.time_limit}-{args.rounds}"
        results = args.work / results.name
    results = args.results or results
    args.work.mkdir(parents=True, exist_ok=True)
    if args.table and not results.exists():
        parser.error(f"there are no results yet: {results}")
    if not args.table:
        with contextlib.suppress(PieceEndedError):
            collect(args.work, args.only, args.time_limit, args.rounds, results, time.monotonic() + 60 * args.minutes)
    print(table(json.loads(results.read_text())) if results.exists() else f"no results yet: {results}")


if __name__ == "__main__":
    main(__doc__, "dptune-benchmark-tuning", RESULTS, collect, table)
