"""Whether advice is right on training scripts that no rule was written from.

    python tests/benchmarks/unseen.py                   run what is missing of the open half, print the table
                                                        (make bench-unseen)
    python tests/benchmarks/unseen.py --half sealed     the other half: to be run when nothing is changed any more
    python tests/benchmarks/unseen.py --half second     a later draw of scripts, sealed as a whole
    python tests/benchmarks/unseen.py --half third      one more draw, sealed as a whole; fourth to fourteenth: others
    python tests/benchmarks/unseen.py --again           read anew what was recorded, with the commit as it is
    python tests/benchmarks/unseen.py --table           print the table of what there is

The scripts in unseen/ are written as people write theirs: loops, Trainer classes, frameworks. unseen/catalogue.py says
what is wrong with each (faults that cost time, faults that put the result at risk, or nothing), what an expert would
advise, and which advice would be false. Each is recorded with `dptune profile` on a quiet machine and on a busy one,
where one process spins for every two cores, and read with `dptune report`. What the change would truly save is measured
in pairs of plain timed runs, with the fault and without it, in turn, under the same load.

Whether advice is right needs a reader: results/unseen_judged.json has a line for each run, to be filled in. `right_at`
is the position of the first advice that is right on the fault (0: none is), `second_at` that on a second fault,
`line_named` whether it names the line (null: as computed), `false_advice` how many say what is not so, `harmful` how
many would do harm. A line is emptied when a run is read anew and its advice is another. It resumes where it stopped, a
run at a time; raw results stand in results/unseen.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overhead import commit, machine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "unseen"))

from catalogue import SCRIPTS, Script, halves, mistakes  # noqa: E402
from catalogue_eighth import EIGHTH  # noqa: E402
from catalogue_eleventh import ELEVENTH  # noqa: E402
from catalogue_fifth import FIFTH  # noqa: E402
from catalogue_fourteenth import FOURTEENTH  # noqa: E402
from catalogue_fourth import FOURTH  # noqa: E402
from catalogue_ninth import NINTH  # noqa: E402
from catalogue_second import SECOND  # noqa: E402
from catalogue_seventh import SEVENTH  # noqa: E402
from catalogue_sixth import SIXTH  # noqa: E402
from catalogue_tenth import TENTH  # noqa: E402
from catalogue_third import THIRD  # noqa: E402
from catalogue_thirteenth import THIRTEENTH  # noqa: E402
from catalogue_twelfth import TWELFTH  # noqa: E402

RESULTS = HERE / "results" / "unseen.json"
JUDGED = HERE / "results" / "unseen_judged.json"
DPTUNE = (sys.executable, "-m", "dptune")
LOADS = ("quiet", "busy")
# after the first one, which has halves
DRAWS = {
    "second": SECOND,
    "third": THIRD,
    "fourth": FOURTH,
    "fifth": FIFTH,
    "sixth": SIXTH,
    "seventh": SEVENTH,
    "eighth": EIGHTH,
    "ninth": NINTH,
    "tenth": TENTH,
    "eleventh": ELEVENTH,
    "twelfth": TWELFTH,
    "thirteenth": THIRTEENTH,
    "fourteenth": FOURTEENTH,
}
ALL = (
    *SCRIPTS,
    *SECOND,
    *THIRD,
    *FOURTH,
    *FIFTH,
    *SIXTH,
    *SEVENTH,
    *EIGHTH,
    *NINTH,
    *TENTH,
    *ELEVENTH,
    *TWELFTH,
    *THIRTEENTH,
    *FOURTEENTH,
)
DRAW_OF = {script.name: name for name, scripts in DRAWS.items() for script in scripts}
DRAW = "first"  # another word draws other sizes and another order
PAIRS = 4
WARMUP, STEPS, LONG_STEPS = 5, 35, 65  # long ones where not all steps have the fault
LONGEST_S = 600
TO_JUDGE = ("right_at", "second_at", "line_named", "false_advice", "harmful", "note")


def half_of(script: Script) -> str:
    """open or sealed of the first draw, else the name of the draw: each of them sealed as a whole."""
    return halves().get(script.name) or DRAW_OF[script.name]


def runs(half: str) -> list[tuple[Script, str]]:
    """Scripts and loads, in a drawn order."""
    chosen = [script for script in ALL if half in ("all", half_of(script))]
    order = [(script, load) for script in chosen for load in LOADS]
    random.Random(DRAW).shuffle(order)
    return order


def collect(work: Path, half: str, again: bool = False, pairs: bool = True) -> dict[str, Any]:
    """What is missing, each written down as soon as it is known.

    `again`: all recordings that are there, read anew; `pairs`: also plain timed runs with the fault and without it.
    """
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}, "pairs": {}}
    results.update(command="python tests/benchmarks/unseen.py")
    for script, load in runs(half):
        name = f"{script.name} {load}"
        place = work / f"{script.name}-{load}"
        known = results["runs"].get(name)
        if known is None or (again and (place / "run").is_dir()):
            how = _facts_of_recording(known) if known and again else _recorded(place, script, load)
            results["runs"][name] = {
                "script": script.name,
                "load": load,
                "commit": commit(),
                "machine": machine(),
                **how,
                **_read(place, script),
            }
            _write(results)
            _to_judge(name, results["runs"][name])
            print(_row(name, results, _judged()), file=sys.stderr, flush=True)
    for script, load in runs(half) if pairs else ():
        if script.kind == "time":
            _pairs(work, results, script, load)
    return results


def _write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _facts_of_recording(run: dict[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in ("machine", "profile_s", "profile_status", "profile_error") if key in run}


@contextlib.contextmanager
def _under(load: str) -> Iterator[None]:
    """One process that spins for every two cores, where the machine is to be busy."""
    count = max(1, (os.cpu_count() or 1) // 2) if load == "busy" else 0
    spin = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # no longer than this process lives
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _environment(**more: str) -> dict[str, str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("UNSEEN_")}
    return {**bare, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "UNSEEN_SEED": DRAW, **more}


def _laid_out(place: Path, script: Script) -> Path:
    """The folder, new, with the script and what it imports."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for file in (script.path, script.path.with_name("drawn.py")):
        shutil.copy(file, place)
    return place


def _recorded(place: Path, script: Script, load: str) -> dict[str, Any]:
    """How long the recording took, and how it ended."""
    _laid_out(place, script)
    ranks = ["--nproc-per-node", str(script.ranks)] if script.ranks > 1 else []
    words = [*DPTUNE, "profile", "-q", "--run-dir", "run", *ranks, script.path.name]
    with _under(load):
        begun = time.monotonic()
        status, error = _run(words, place, _environment())
        told = {"profile_s": round(time.monotonic() - begun, 1), "profile_status": status}
    return told if not status else {**told, "profile_error": error[-2000:]}


def _run(words: list[str], place: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and stderr; what runs past the limit is ended with all that it started."""
    with subprocess.Popen(
        words, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            error = process.communicate(timeout=LONGEST_S)[1]
        except subprocess.TimeoutExpired:
            process.terminate()
            return 124, process.communicate()[1]
        return process.returncode, error


def _read(place: Path, script: Script) -> dict[str, Any]:
    """The raw essentials of the report."""
    words = [*DPTUNE, "report", "run", "--format", "json", "--no-cache"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"report_error": done.stderr[-2000:], "verdict": "", "trust": "", "advice": []}
    report = json.loads(done.stdout)
    step = report["measured"].get("step") or {}
    return {
        "verdict": report["headline"]["verdict"],
        "next": report["headline"]["next"],
        "trust": report["trust"]["level"],
        "step_ms": (step.get("time_ns") or 0) / 1e6,
        "advice": [_essentials(advice, script) for advice in report["advice"]],
        "together": report.get("together", []),
    }


def _essentials(advice: dict[str, Any], script: Script) -> dict[str, Any]:
    kept = ("rule", "slug", "kind", "title", "why", "impact", "confidence", "saves", "changes", "remedy", "evidence")
    return {**{key: advice.get(key) for key in kept}, "lines": sorted(_lines_named(advice, script))}


def _lines_named(advice: Any, script: Script) -> set[int]:
    """Lines of the script that stand anywhere in the advice, as `script.py:12` or as a location."""
    text = json.dumps(advice)
    named = {int(line) for line in re.findall(re.escape(script.path.name) + r":(\d+)", text)}
    place = r'"file": "[^"]*' + re.escape(script.path.name) + r'", "line": (\d+)'
    return named | {int(line) for line in re.findall(place, text)}


def _pairs(work: Path, results: dict[str, Any], script: Script, load: str) -> None:
    """Step times with the fault and without it, in turn; where there are two faults also with the other one alone."""
    sides = {"fault": "", "mended": "1"}
    if len(script.faults) > 1:
        sides.update({f"only {at}": f"only {at}" for at in range(1, len(script.faults) + 1)})
    kept = results["pairs"].setdefault(f"{script.name} {load}", {side: [] for side in sides})
    for pair in range(PAIRS):
        for side in sides if pair % 2 == 0 else reversed(sides):
            if len(kept[side]) <= pair:
                kept[side].append(_timed(work / f"{script.name}-timed", script, load, sides[side]))
                _write(results)
                print(f"{script.name} {load} {side} {kept[side][-1]:.1f} ms", file=sys.stderr, flush=True)


def _timed(place: Path, script: Script, load: str, side: str) -> float:
    """Milliseconds of a step in one plain run."""
    times = _laid_out(place, script) / "times.json"
    steps = STEPS if script.figure == "median" else LONG_STEPS
    more = {"UNSEEN_STEPS": str(steps + 1), "UNSEEN_TIMES": str(times), "UNSEEN_MENDED": side}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(script.ranks)]
    words = [sys.executable, *(launch if script.ranks > 1 else []), script.path.name]
    with _under(load):
        status, error = _run(words, place, _environment(**more))
    if not times.exists():
        raise SystemExit(f"{script.name} ({side or 'fault'}) ended with {status}:\n{error[-4000:]}")
    durations = json.loads(times.read_text())["durations_ns"][WARMUP:]
    figure = statistics.median if script.figure == "median" else statistics.fmean
    return float(figure(durations)) / 1e6


def _true_saving(pairs: dict[str, list[float]] | None, fault: int) -> tuple[float, float, float] | None:
    """Share of the step that mending this fault saves: median, least and most of the pairs; None before it is known."""
    side = f"only {fault}" if pairs and f"only {fault}" in pairs else "mended"
    if not pairs or len(pairs[side]) < PAIRS or len(pairs["fault"]) < PAIRS:
        return None
    shares = [1 - after / before for before, after in zip(pairs["fault"], pairs[side], strict=False)]
    return statistics.median(shares), min(shares), max(shares)


def _judged() -> dict[str, Any]:
    return json.loads(JUDGED.read_text()) if JUDGED.exists() else {}


def _to_judge(name: str, run: dict[str, Any]) -> None:
    """A line for the reader; emptied where the advice is another than that judged."""
    judged = _judged()
    advice = [f"{one['rule']} {one['slug']}" for one in run["advice"]]
    if name not in judged or judged[name]["advice"] != advice:
        judged[name] = {"advice": advice, **dict.fromkeys(TO_JUDGE)}
        JUDGED.write_text(json.dumps(dict(sorted(judged.items())), indent=1) + "\n")


def line_at(run: dict[str, Any], script: Script, fault: int, near: bool = False) -> int:
    """Position of the first advice that names the line of a fault, or `near`: one that leads to it; 0: none does."""
    markers = script.faults[fault - 1].markers
    wanted = {line for marker in (markers if near else markers[:1]) for line in script.lines(marker)}
    return next((at for at, one in enumerate(run["advice"], 1) if wanted & set(one["lines"])), 0)


def line_named(run: dict[str, Any], script: Script, judged: dict[str, Any]) -> bool | None:
    """Whether the right advice names the line of the first fault; None before a reader has said which one is right."""
    if judged.get("line_named") is not None:
        return bool(judged["line_named"])
    if judged.get("right_at") is None:
        return None
    if not judged["right_at"]:
        return False
    right = run["advice"][judged["right_at"] - 1]
    return bool(set(script.lines(script.faults[0].markers[0])) & set(right["lines"]))


def inside(run: dict[str, Any], at: int | None, truth: tuple[float, float, float] | None) -> bool | None:
    """Whether what is truly saved lies in the interval of the advice at this position; None where either is unknown."""
    saves = run["advice"][at - 1]["saves"] if at else None
    if truth is None or saves is None:
        return None
    least = 0.0 if saves["basis"] == "bound" else float(saves["low_share"])
    return bool(least <= max(truth[0], 0.0) <= saves["high_share"])


def _row(name: str, results: dict[str, Any], judged: dict[str, Any]) -> str:
    run, said = results["runs"][name], judged.get(name, {})
    script = next(script for script in ALL if script.name == run["script"])
    head = f"{script.name:22s} {run['load']:5s} {script.ranks} {script.kind:4s} {run['profile_s']:5.0f} s"
    first = ", ".join(f"{one['rule']} {one['impact'][0]}" for one in run["advice"][:4]) or "no advice"
    false = f"false {_or_dash(said.get('false_advice'))} harmful {_or_dash(said.get('harmful'))}"
    if not script.faults:
        return f"{head}  {'':42s} {false}  {first}"
    truth = _true_saving(results["pairs"].get(name), 1)
    at = said.get("right_at")
    saves = run["advice"][at - 1]["saves"] if at else None
    told = f"{100 * saves['low_share']:.0f}-{100 * saves['high_share']:.0f} %" if saves else "-"
    true = f"{100 * truth[0]:.0f} %" if truth else "-"
    lines = f"line at {line_at(run, script, 1)}/{line_at(run, script, 1, near=True)}"
    return f"{head}  right at {_or_dash(at)} {lines:12s} saves {told:9s} true {true:5s} {false}  {first}"


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)


def table(results: dict[str, Any], judged: dict[str, Any], half: str, rows: bool = True) -> str:
    """The results as text, joined with what a reader judged; `rows`: with a row for each run."""
    scripts = {script.name: script for script in ALL if half in ("all", half_of(script))}
    names = [name for name, run in results["runs"].items() if run["script"] in scripts]
    names.sort(key=lambda name: (scripts[results["runs"][name]["script"]].kind, name))
    commits = ", ".join(dict.fromkeys(results["runs"][name]["commit"] for name in names))
    machines = ", ".join(dict.fromkeys(results["runs"][name]["machine"] for name in names))
    told = [f"machine: {machines}; commits: {commits}; half: {half}"]
    told += [_row(name, results, judged) for name in names if rows]
    for load in LOADS:
        told += _summary(load, [n for n in names if results["runs"][n]["load"] == load], scripts, results, judged)
    return "\n".join(told)


def _summary(
    load: str, names: list[str], scripts: dict[str, Script], results: dict[str, Any], judged: dict[str, Any]
) -> list[str]:
    """What is counted of the runs under one load."""
    if not names:
        return []
    rows = []
    for kind in ("time", "risk"):
        of_kind = [n for n in names if scripts[results["runs"][n]["script"]].kind == kind]
        read = [n for n in of_kind if judged.get(n, {}).get("right_at") is not None]
        first = sum(judged[n]["right_at"] == 1 for n in read)
        some = sum(0 < judged[n]["right_at"] <= 3 for n in read)
        exact = [line_named(results["runs"][n], scripts[results["runs"][n]["script"]], judged[n]) for n in read]
        near = [line_at(results["runs"][n], scripts[results["runs"][n]["script"]], 1, near=True) for n in of_kind]
        rows.append(
            f"{load}: of {len(of_kind)} with a fault of {kind}: {len(read)} judged, right first {first}, "
            f"among the first three {some}, "
            f"its line named {sum(map(bool, exact))}; some advice names a line of the fault or one that leads to it "
            f"{sum(map(bool, near))}"
        )
        if kind == "time":
            rows.append(f"{load}: {_intervals(read, results, judged)}")
    healthy = [n for n in names if scripts[results["runs"][n]["script"]].kind == "none"]
    loud = sum(any(one["impact"] != "low" for one in results["runs"][n]["advice"]) for n in healthy)
    false = sum(bool(judged.get(n, {}).get("false_advice")) for n in names)
    harm = sum(bool(judged.get(n, {}).get("harmful")) for n in names)
    took = statistics.median(results["runs"][n]["profile_s"] for n in names)
    rows.append(
        f"{load}: of {len(healthy)} healthy: {loud} with advice of medium or high impact; of all {len(names)} runs: "
        f"{false} with false advice, {harm} with harmful advice; a recording takes {took:.0f} s (median)"
    )
    return rows


def _intervals(read: list[str], results: dict[str, Any], judged: dict[str, Any]) -> str:
    """How often the saving that is stated holds what is truly saved, over both faults where there are two."""
    held = []
    for name in read:
        for fault, field in ((1, "right_at"), (2, "second_at")):
            truth = _true_saving(results["pairs"].get(name), fault)
            held.append(inside(results["runs"][name], judged[name].get(field), truth))
    known = [one for one in held if one is not None]
    return f"of {len(known)} right advice with a saving, the interval holds what is truly saved in {sum(known)}"


def main() -> None:
    """Collect what is missing, then print the table; with --table only that."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = Path(tempfile.gettempdir()) / "dptune-benchmark-unseen"
    parser.add_argument("--work", type=Path, default=kept, help="where recordings lie")
    parser.add_argument("--half", choices=("open", "sealed", *DRAWS, "all"), default="open", help="of the scripts")
    parser.add_argument("--again", action="store_true", help="read the recordings anew")
    parser.add_argument("--recordings", action="store_true", help="without the pairs that measure what is truly saved")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--summary", action="store_true", help="with --table: only what is counted")
    parser.add_argument("--earlier", metavar="NAME", help="with --table: of results/unseen_NAME.json")
    args = parser.parse_args()
    if wrong := mistakes(ALL):
        parser.error("the catalogue is not right: " + "; ".join(wrong))
    if args.table:
        kept_in = RESULTS.with_name(f"unseen_{args.earlier}.json") if args.earlier else RESULTS
        if not kept_in.exists():
            parser.error(f"there are no results yet: {kept_in}")
        results = json.loads(kept_in.read_text())
        if args.earlier:
            text = kept_in.with_name(f"unseen_{args.earlier}_judged.json").read_text()
            print(table(results, json.loads(text), args.half, rows=not args.summary))
            return
    else:
        args.work.mkdir(parents=True, exist_ok=True)
        results = collect(args.work, args.half, args.again, not args.recordings)
    print(table(results, _judged(), args.half, rows=not args.summary))


if __name__ == "__main__":
    main()
