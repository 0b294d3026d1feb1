"""How good `dptune whatif` is: changes predicted from a recording, written down, and only then run by `dptune verify`.

    python tests/benchmarks/predictions.py                predict and run what is missing, print the table
    python tests/benchmarks/predictions.py --table        print the table of what there is

Two ranks of on_the_wire.py, a core each: over 200 Mbit/s and 1 ms, over 1 Gbit/s and 0.1 ms (tests/testbed/network.py,
as root), and unshaped on one host; models of many small layers, of few large ones, and a small transformer; some from
bad settings; and some of four ranks, who share the two cores, apart from the others. A case is recorded and predicted
by itself; all predictions are written down before the first of the changes is run. `off` is how far the predicted step
is from the measured one, `effect` the same of after / before; `replay` how far the unchanged replay is off the
recording, `others` off the trials without the change, which are processes of their own, and later.
It resumes where it stopped; raw results stand in results/predictions.json. The rest of the machine should be idle.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from command_line import main
from overhead import commit, machine
from wired import DPTUNE, FAST, SLOW, Node, ranks_a_node, recorded, settle, shaped, swept, verified

RESULTS = Path(__file__).parent / "results" / "predictions.json"
WIRES = {"200 Mbit/s": SLOW, "1 Gbit/s": FAST, "unshaped": None}
SOME_ON = "200 Mbit/s"  # where those cases are tried that are not tried on every wire
WINDOWS = ("--warmup", "5", "--unprofiled", "100", "--lean", "20", "--rich", "0")
LARGE, CLEAR = 0.10, 0.05  # effects: of so many there are to be enough, and of these the sign is to be right


class Case(NamedTuple):
    """Options of the script, what is set on both sides, what in B alone, and how a prediction speaks of that."""

    options: str
    both: str
    b: str
    predicted: str = ""
    ranks: int = 2
    everywhere: bool = True


CASES = {
    "bucket 0.05": Case("--model plain", "", "ddp.bucket_cap_mb=0.05"),
    "fp16": Case("--model plain", "", "ddp.comm_hook=fp16"),
    "no_sync of 4": Case("--model plain --accumulate 4", "", "ddp.no_sync=true"),
    "2 workers": Case("--model plain --load-ms 60", "", "loader.num_workers=2"),
    "no straggler": Case("--model plain", "env.STRAGGLE_MS=50", "env.STRAGGLE_MS=0", "straggler.removed=true"),
    "many, bucket 0.1": Case("--model many", "", "ddp.bucket_cap_mb=0.1"),
    "many, batch x2": Case("--model many", "", "loader.batch_size=128"),
    "large, bf16": Case("--model large --batch 256", "", "ddp.comm_hook=bf16"),
    "large, no_sync of 2": Case("--model large --accumulate 2", "", "ddp.no_sync=true"),
    "transformer, bucket 0.1": Case("--model transformer", "", "ddp.bucket_cap_mb=0.1"),
    "transformer, fp16": Case("--model transformer", "", "ddp.comm_hook=fp16"),
    "from 0.05 to default": Case("--model plain", "ddp.bucket_cap_mb=0.05", "ddp.bucket_cap_mb=default"),
    "PowerSGD": Case("--model plain", "", "ddp.comm_hook=powersgd", everywhere=False),
    "transformer, from batch 8 to 32": Case(
        "--model transformer --batch 8", "", "loader.batch_size=32", everywhere=False
    ),
    "4 ranks, bucket 0.05": Case("--model plain", "", "ddp.bucket_cap_mb=0.05", ranks=4, everywhere=False),
    "4 ranks, fp16": Case("--model plain", "", "ddp.comm_hook=fp16", ranks=4, everywhere=False),
    "4 ranks, no_sync of 4": Case("--model plain --accumulate 4", "", "ddp.no_sync=true", ranks=4, everywhere=False),
    "from 100 to 0.5": Case("--model transformer --batch 256", "ddp.bucket_cap_mb=100", "ddp.bucket_cap_mb=0.5"),
}


def predicted(folder: Path, links: Path, case: Case) -> dict[str, Any]:
    """What whatif says from the recording."""
    words = [*DPTUNE, "whatif", str(folder), "--links", str(links), "--format", "json", "--no-cache"]
    done = subprocess.run([*words, "--set", case.predicted or case.b], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
    told = json.loads(done.stdout)
    kept = {name: told[name] for name in ("measured_ns", "replayed_ns", "error_share", "held_out_share")}
    (one,) = told["predictions"]
    return {**kept, **{name: one[name] for name in ("step_ns", "low_ns", "high_ns", "missing")}}


def collect(work: Path) -> dict[str, Any]:
    """Predict what was not predicted, on all wires, and then run what was not run."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    results.update(machine=machine(), command="python tests/benchmarks/predictions.py")
    cases = results["cases"]
    for wire in WIRES:
        todo = [title for title in _of(wire) if f"{wire}: {title}" not in cases]
        with _nodes(wire, todo) as nodes:
            for title in todo:
                case, place = CASES[title], _place(work, wire)
                links = swept(nodes, place / f"{case.ranks}-ranks", case.ranks // 2)
                told = predicted(_recorded(place, title), links, case)
                cases[f"{wire}: {title}"] = {"commit": commit(), "predicted": told}
                RESULTS.write_text(json.dumps(results) + "\n")
    for wire in WIRES:
        todo = [title for title in _of(wire) if "found" not in cases[f"{wire}: {title}"]]
        with _nodes(wire, todo):
            for title in todo:
                one = cases[f"{wire}: {title}"]
                one["found"] = verified(_recorded(_place(work, wire), title), "--set", CASES[title].b)
                RESULTS.write_text(json.dumps(results) + "\n")
                print(f"{wire}: {title}: {_row(one)}", file=sys.stderr, flush=True)
    return results


def _of(wire: str) -> list[str]:
    return [title for title, case in CASES.items() if case.everywhere or wire == SOME_ON]


def _place(work: Path, wire: str) -> Path:
    return work / wire.replace(" ", "-").replace("/", "-")


@contextlib.contextmanager
def _nodes(wire: str, todo: list[str]) -> Iterator[Sequence[Node]]:
    """What ranks run on, if anything is to run."""
    between = WIRES[wire] if todo else None
    with shaped(between) if between else contextlib.nullcontext([]) as nodes:
        settle(nodes)
        yield nodes


def _recorded(place: Path, title: str) -> Path:
    """A case's recording, made now or before."""
    case = CASES[title]
    ranks_a_node(case.ranks // 2)
    return recorded(place / str(list(CASES).index(title)), case.options, case.both, WINDOWS)


class Error(NamedTuple):
    """How far a predicted step is from the measured one, as a share of that; whether its interval holds that."""

    share: float
    inside: bool
    width: float


def _error(one: dict[str, Any], drifting: bool) -> Error | None:
    """Of the step with the change; `drifting`: by what the change does, after / before, whatever a step takes by then.

    Between a recording and its trials a machine may have become slower, for the script as it is, too.
    """
    told, found = one["predicted"], one.get("found", {})
    after, before = found.get("b_step_ns"), found.get("a_step_ns")
    if not told["step_ns"] or not after:
        return None
    times = before / told["measured_ns"] if drifting else 1.0
    step, low, high = (times * told[name] for name in ("step_ns", "low_ns", "high_ns"))
    return Error(step / after - 1, low <= after <= high, (high - low) / after)


def _row(one: dict[str, Any]) -> str:
    told, found = one["predicted"], one.get("found", {})
    before, after = found.get("a_step_ns"), found.get("b_step_ns")
    ms = [f"{value / 1e6:7.1f}" if value else "      -" for value in (before, after, told["step_ns"])]
    between = f"{told['low_ns'] / 1e6:.1f} to {told['high_ns'] / 1e6:.1f}" if told["step_ns"] else "-"
    errors = [_error(one, drifting) for drifting in (False, True)]
    off, effect = ("-" if error is None else f"{100 * error.share:+.1f} %" for error in errors)
    replay = "-" if told["error_share"] is None else f"{100 * told['error_share']:.1f} %"
    others = f"{100 * (told['replayed_ns'] / before - 1):+.1f} %" if told["replayed_ns"] and before else "-"
    return f"{ms[0]} {ms[1]} {ms[2]}  {between:14s} {off:>8s} {effect:>8s} {replay:>7s} {others:>8s}"


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    cases = results["cases"]
    commits = ", ".join(dict.fromkeys(one["commit"] for one in cases.values()))
    lines = [f"machine: {results['machine']}; commits: {commits}", ""]
    heads = f"{'before':>7s} {'after':>7s} {'told':>7s}  {'from to':14s} {'off':>8s} {'effect':>8s}"
    heads += f" {'replay':>7s} {'others':>8s}"
    lines.append(f"{'case':40s}{heads}")
    lines += [f"{name:40s}{_row(one)}" for name, one in cases.items()]
    for ranks in (2, 4):
        own = [one for name, one in cases.items() if CASES[name.partition(": ")[2]].ranks == ranks]
        told = [one for one in own if _error(one, False) is not None]
        if told:
            lines += ["", f"of {ranks} ranks, {len(told)} cases:", *_figures(told)]
    return "\n".join(lines)


def _figures(told: list[dict[str, Any]]) -> Iterator[str]:
    """How far predictions were off, and how wide their intervals; and what of that was aimed at."""
    nothing = [abs(one["found"]["a_step_ns"] / one["found"]["b_step_ns"] - 1) for one in told]
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


def _signs(told: list[dict[str, Any]]) -> list[bool]:
    """Of the changes with an effect that is clear: whether it was predicted which way it goes."""
    signs = []
    for one in told:
        effect = one["found"]["b_step_ns"] / one["found"]["a_step_ns"] - 1
        predicted = one["predicted"]["step_ns"] / one["predicted"]["measured_ns"] - 1
        if abs(effect) > CLEAR:
            signs.append((effect > 0) == (predicted > 0))
    return signs


def _effects(told: list[dict[str, Any]]) -> str:
    """How large the effects were, and whether their signs were predicted."""
    effects = [one["found"]["b_step_ns"] / one["found"]["a_step_ns"] - 1 for one in told]
    clear = _signs(told)
    return (
        f"effects of more than 10 %: {sum(abs(one) > LARGE for one in effects)}, that hurt: "
        f"{sum(one > CLEAR for one in effects)}; signs of those of more than 5 %: {sum(clear)} of {len(clear)} right"
    )


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "predictions")
