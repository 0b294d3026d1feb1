"""How good `dptune whatif` is: changes predicted from a recording, written down, and only then run by `dptune verify`.

    python tests/benchmarks/predictions.py                predict and run what is missing, print the table
    python tests/benchmarks/predictions.py --commit       the same; each prediction is committed before it is run
    python tests/benchmarks/predictions.py --table        print the table of what there is (or of FILE)

Two ranks of on_the_wire.py, a core each: over 200 Mbit/s and 1 ms, over 1 Gbit/s and 0.1 ms (tests/testbed/network.py,
as root), and unshaped on one host; models of many small layers, of few large ones, and a small transformer; some from
bad settings; and some of four ranks, who share the two cores, apart from the others. A script is recorded and timed in
three further processes (of four ranks in one), a change is predicted from it and written down, and then run at once:
the quicker, the less the machine has become another one meanwhile. Where trials of the script as it is took a tenth
more or less than it was recorded to take, it has: the script is recorded, predicted and run again, whatever the change
did, and what was found before stands beside it (`moved`).

`before` and `after` are medians of steps, as a recording tells them, over the trials of each side. `off` is how far the
predicted step is from the measured one, `effect` the same of after / before, which is taken within pairs of trials;
`replay` how far the unchanged replay is off the recording, `others` off the trials without the change, which are
processes of their own, and later. Trials go on until it is proven which side is quicker, or for 100 s.
It resumes where it stopped; raw results stand in results/predictions.json. The rest of the machine should be idle.

The C library is told to keep memory that is freed. Else it gives it back to the system after a step, or not, by how
large its largest piece was: a change of that is worth 4 to 5 ms of a step of few large layers, and no prediction's.

Rounds before (results/predictions_first.json to predictions_eighth.json) are what the model was mended by: other
models, other changes. The fourth to eighth were broken off, when they were seen to go wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from command_line import main
from overhead import commit as commit_of_code
from overhead import machine
from wired import (
    DPTUNE,
    FAST,
    SLOW,
    Node,
    medians,
    ranks_a_node,
    recorded,
    settle,
    shaped,
    swept,
    times_as_long,
    verified,
)

RESULTS = Path(__file__).parent / "results" / "predictions.json"
WIRES = {"200 Mbit/s": SLOW, "1 Gbit/s": FAST, "unshaped": None}
SHAPED = ("200 Mbit/s", "1 Gbit/s")
WINDOWS = ("--warmup", "5", "--light", "20", "--detailed", "0")
UNTRACED = {"200 Mbit/s": "50"}  # steps; of quicker ones 120
FURTHER = {2: "3", 4: "1"}  # processes in which a recorded script of so many ranks is timed
IN_A_ROW = 4  # changes over one wire, before the next has its turn
LIMIT_S = {"200 Mbit/s": "240"}  # of a comparison; over quicker wires 100
KEEPING = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}  # bytes
MOVED, AGAIN = 0.10, 2  # of the script as it is, from its recording to its trials; how often it is recorded again
LARGE, CLEAR = 0.10, 0.05  # effects: of so many there are to be enough, and of these the sign is to be right


class Case(NamedTuple):
    """Options of the script, what is set on both sides, what in B alone, and how a prediction speaks of that."""

    options: str
    both: str
    b: str
    predicted: str = ""
    ranks: int = 2
    wires: tuple[str, ...] = tuple(WIRES)


SCALES, SLABS = "--model scales --batch 144", "--model slabs --batch 448"
POET, SMALL_SLABS = "--model poet --batch 24", "--model slabs --batch 192"
CASES = {  # IN_A_ROW of them, by wire, share recordings
    "scales, bucket 0.2": Case(SCALES, "", "ddp.bucket_cap_mb=0.2"),
    "scales, batch x2": Case(SCALES, "", "loader.batch_size=288"),
    "scales, fp16": Case(SCALES, "", "ddp.comm_hook=fp16", wires=SHAPED),
    "scales, bucket 0.06": Case(SCALES, "", "ddp.bucket_cap_mb=0.06", wires=SHAPED),
    "slabs, bf16": Case(SLABS, "", "ddp.comm_hook=bf16"),
    "slabs, bucket 2": Case(SLABS, "", "ddp.bucket_cap_mb=2"),
    "slabs, PowerSGD": Case(SLABS, "", "ddp.comm_hook=powersgd", wires=SHAPED),
    "slabs, from 100 to 1.5": Case(SLABS, "ddp.bucket_cap_mb=100", "ddp.bucket_cap_mb=1.5", wires=SHAPED),
    "poet, bucket 0.15": Case(POET, "", "ddp.bucket_cap_mb=0.15"),
    "poet, bf16": Case(POET, "", "ddp.comm_hook=bf16", wires=SHAPED),
    "poet, no_sync of 3": Case(f"{POET} --accumulate 3", "", "ddp.no_sync=true"),
    "poet, from batch 4 to 16": Case("--model poet --batch 4", "", "loader.batch_size=16", wires=SHAPED),
    "scales, from 0.05 to default": Case(SCALES, "ddp.bucket_cap_mb=0.05", "ddp.bucket_cap_mb=default", wires=SHAPED),
    "scales, no straggler": Case(SCALES, "env.STRAGGLE_MS=30", "env.STRAGGLE_MS=0", "straggler.removed=true"),
    "slabs, 2 workers": Case(f"{SMALL_SLABS} --load-ms 60", "", "loader.num_workers=2"),
    "slabs, no_sync of 2": Case(f"{SMALL_SLABS} --accumulate 2", "", "ddp.no_sync=true", wires=SHAPED),
    "4 ranks, scales, bucket 0.25": Case(SCALES, "", "ddp.bucket_cap_mb=0.25", ranks=4, wires=SHAPED[:1]),
    "4 ranks, slabs, bf16": Case(SMALL_SLABS, "", "ddp.comm_hook=bf16", ranks=4, wires=SHAPED[:1]),
    "4 ranks, poet, no_sync of 2": Case(f"{POET} --accumulate 2", "", "ddp.no_sync=true", ranks=4, wires=SHAPED[:1]),
}


class Round(NamedTuple):
    """Cases by title, where their raw results stand, and the command that makes them."""

    cases: dict[str, Case]
    results: Path
    command: str


ROUND = Round(CASES, RESULTS, "python tests/benchmarks/predictions.py")


def predicted(folder: Path, links: Path, case: Case) -> dict[str, Any]:
    """What whatif says from the recording."""
    words = [*DPTUNE, "whatif", str(folder), "--links", str(links), "--format", "json", "--no-cache"]
    done = subprocess.run([*words, *_settings(case.predicted or case.b)], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
    told = json.loads(done.stdout)
    kept = {name: told[name] for name in ("measured_ns", "replayed_ns", "error_share", "held_out_share")}
    (one,) = told["predictions"]
    return {**kept, **{name: one[name] for name in ("step_ns", "low_ns", "high_ns", "missing")}}


def _settings(words: str) -> list[str]:
    return [word for setting in words.split() for word in ("--set", setting)]


def collect(work: Path, commit: bool, of: Round = ROUND) -> dict[str, Any]:
    """A few at a time, wire after wire: predict what was not predicted, and run it."""
    results = json.loads(of.results.read_text()) if of.results.exists() else {"cases": {}}
    results.update(machine=machine(), command=of.command)
    for wire, titles in _portions(of):
        _portion(work, wire, titles, results, commit, of)
    return results


def _portions(of: Round) -> Iterator[tuple[str, list[str]]]:
    """Wires in turn, with the next few cases of each; those of four ranks come last."""
    by_wire = {wire: [title for title, case in of.cases.items() if wire in case.wires] for wire in WIRES}
    for first in range(0, max(map(len, by_wire.values())), IN_A_ROW):
        for wire, titles in by_wire.items():
            yield wire, titles[first : first + IN_A_ROW]


def _portion(work: Path, wire: str, titles: list[str], results: dict[str, Any], commit: bool, of: Round) -> None:
    cases = results["cases"]
    for one in cases.values():
        if _times(one) is None:
            one.pop("found", None)  # it ran out of time before both sides had run
    todo = [title for title in titles if "found" not in cases.get(f"{wire}: {title}", {})]
    with _nodes(wire, todo) as nodes:
        for title in todo:
            case, name = of.cases[title], f"{wire}: {title}"
            place = _place(work, wire) / titles[0].replace(",", "").replace(" ", "-")
            while "found" not in cases.get(name, {}):
                if name not in cases or "predicted" not in cases[name]:
                    links = swept(nodes, _place(work, wire) / f"{case.ranks}-ranks", case.ranks // 2)
                    told = predicted(_recorded(place, case, wire), links, case)
                    cases.setdefault(name, {}).update(commit=commit_of_code(), predicted=told)
                    _keep(results, of)
                    if commit:
                        _commit(f"What {title} does over {wire} is written down, before it is run", of)
                recording = _recorded(place, case, wire)
                limit = ("--time-limit", LIMIT_S.get(wire, "100"))
                cases[name]["found"] = verified(recording, *_settings(case.b), *limit)
                print(f"{name}: {_row(cases[name])}", file=sys.stderr, flush=True)
                earlier = cases[name].get("moved", [])
                if _moved(cases[name]) and len(earlier) < AGAIN:
                    folder = recording.parent
                    folder.rename(folder.with_name(f"{folder.name}-{title}-{len(earlier)}"))
                    cases[name].pop("moved", None)
                    cases[name] = {"moved": [*earlier, cases[name]]}
                _keep(results, of)


def _keep(results: dict[str, Any], of: Round) -> None:
    of.results.write_text(json.dumps(results) + "\n")


def _commit(said: str, of: Round) -> None:
    subprocess.run(["git", "add", str(of.results)], check=True)
    subprocess.run(["git", "commit", "-q", "--no-verify", "-m", said, "--", str(of.results)], check=True)


def _moved(one: dict[str, Any]) -> bool:
    """Whether the machine became another between the recording and the trials, by what the script takes as it is."""
    times = _times(one)
    return times is not None and abs(times[0] / one["predicted"]["measured_ns"] - 1) > MOVED


def _place(work: Path, wire: str) -> Path:
    return work / wire.replace(" ", "-").replace("/", "-")


@contextlib.contextmanager
def _nodes(wire: str, todo: list[str]) -> Iterator[Sequence[Node]]:
    """What ranks run on, if anything is to run."""
    between = WIRES[wire] if todo else None
    with shaped(between) if between else contextlib.nullcontext([]) as nodes:
        settle(nodes)
        os.environ.update(KEEPING)
        yield nodes


def _recorded(place: Path, case: Case, wire: str) -> Path:
    """A case's recording, made now or before: it may be another's, too."""
    ranks_a_node(case.ranks // 2)
    name = "_".join(f"{case.ranks} {case.options} {case.both}".replace("-", "").split())
    windows = (*WINDOWS, "--untraced", UNTRACED.get(wire, "120"), "--repeat", FURTHER[case.ranks])
    return recorded(place / name, case.options, case.both, windows)


class Error(NamedTuple):
    """How far a predicted step is from the measured one, as a share of that; whether its interval holds that."""

    share: float
    inside: bool
    width: float


def _times(one: dict[str, Any]) -> tuple[float, float] | None:
    """The step before and after: of each side the median over the trials that count."""
    return medians(one.get("found", {}))


def _error(one: dict[str, Any], drifting: bool) -> Error | None:
    """Of the step with the change; `drifting`: by what the change does, after / before, whatever a step takes by then.

    Between a recording and its trials a machine may have become slower, for the script as it is, too.
    """
    told, found = one["predicted"], _times(one)
    if not told["step_ns"] or found is None:
        return None
    unit, took = (told["measured_ns"], _effect(one)) if drifting else (1, found[1])
    step, low, high = (told[name] / unit for name in ("step_ns", "low_ns", "high_ns"))
    return Error(step / took - 1, low <= took <= high, (high - low) / took)


def _row(one: dict[str, Any]) -> str:
    told = one["predicted"]
    before, after = _times(one) or (None, None)
    ms = [f"{value / 1e6:7.1f}" if value else "      -" for value in (before, after, told["step_ns"])]
    between = f"{told['low_ns'] / 1e6:.1f} to {told['high_ns'] / 1e6:.1f}" if told["step_ns"] else "-"
    errors = [_error(one, drifting) for drifting in (False, True)]
    off, effect = ("-" if error is None else f"{100 * error.share:+.1f} %" for error in errors)
    replay = "-" if told["error_share"] is None else f"{100 * told['error_share']:.1f} %"
    others = f"{100 * (told['replayed_ns'] / before - 1):+.1f} %" if told["replayed_ns"] and before else "-"
    return f"{ms[0]} {ms[1]} {ms[2]}  {between:14s} {off:>8s} {effect:>8s} {replay:>7s} {others:>8s}"


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    cases = {name: one for name, one in results["cases"].items() if "predicted" in one}
    made = [one["commit"] for one in cases.values()]
    lines = [f"machine: {results['machine']}; commits: {made[0]} to {made[-1]}", ""]
    heads = f"{'before':>7s} {'after':>7s} {'told':>7s}  {'from to':14s} {'off':>8s} {'effect':>8s}"
    heads += f" {'replay':>7s} {'others':>8s}"
    lines.append(f"{'case':40s}{heads}")
    for name, one in cases.items():
        lines += [f"{name:40s}{_row(earlier)}  (the machine became another)" for earlier in one.get("moved", [])]
        lines.append(f"{name:40s}{_row(one)}")
    for ranks in (2, 4):
        own = [one for name, one in cases.items() if _ranks(name) == ranks]
        told = [one for one in own if _error(one, False) is not None]
        if told:
            lines += ["", f"of {ranks} ranks, {len(told)} cases:", *_figures(told)]
    return "\n".join(lines)


def _ranks(name: str) -> int:
    """Of a case, which may be one of another round."""
    return 4 if ": 4 ranks" in name else 2


def _figures(told: list[dict[str, Any]]) -> Iterator[str]:
    """How far predictions were off, and how wide their intervals; and what of that was aimed at."""
    nothing = [abs(1 / effect - 1) for effect in map(_effect, told)]
    yield f"no change at all: error {_spread(nothing)}"
    for name, drifting in (("off", False), ("effect", True)):
        errors = [error for one in told if (error := _error(one, drifting)) is not None]
        shares, inside = [abs(error.share) for error in errors], mean(error.inside for error in errors)
        width = median(error.width for error in errors)
        yield (
            f"{name}: error {_spread(shares)}; inside the interval {100 * inside:.0f} %, "
            f"median width {100 * width:.1f} % of the step"
        )
        bars = {
            "median error at most 6 %": median(shares) <= 0.06,
            "worst at most 20 %": max(shares) <= 0.20,
            "80 to 97 % inside": 0.80 <= inside <= 0.97,
            "median width at most 10 %": width <= 0.10,
        }
        yield "  " + "; ".join(f"{bar}: {'yes' if met else 'NO'}" for bar, met in bars.items())
    yield _effects(told)


def _spread(shares: list[float]) -> str:
    average, middle, worst = (100 * of(shares) for of in (mean, median, max))
    return f"mean {average:.1f} %, median {middle:.1f} %, worst {worst:.1f} %"


def _effect(one: dict[str, Any]) -> float:
    """After / before, as measured within pairs of trials."""
    return times_as_long(one.get("found", {})) or 1.0


def _signs(told: list[dict[str, Any]]) -> list[bool]:
    """Of the changes with an effect that is clear: whether it was predicted which way it goes."""
    signs = []
    for one in told:
        effect = _effect(one) - 1
        predicted = one["predicted"]["step_ns"] / one["predicted"]["measured_ns"] - 1
        if abs(effect) > CLEAR:
            signs.append((effect > 0) == (predicted > 0))
    return signs


def _effects(told: list[dict[str, Any]]) -> str:
    """How large the effects were, and whether their signs were predicted."""
    effects = [_effect(one) - 1 for one in told]
    clear = _signs(told)
    return (
        f"effects of more than 10 %: {sum(abs(one) > LARGE for one in effects)}, that hurt: "
        f"{sum(one > CLEAR for one in effects)}; signs of those of more than 5 %: {sum(clear)} of {len(clear)} right"
    )


def run(doc: str | None, of: Round, name: str) -> None:
    """The command line of a round."""
    switches = {"commit": "commit each prediction, before it is run"}
    main(doc, of.results, partial(collect, of=of), table, name, switches)


if __name__ == "__main__":
    run(__doc__, ROUND, "predictions")
