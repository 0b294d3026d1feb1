"""How far predictions for GPU steps are from the truth of a simulator that shares no code with the predictor.

    python tests/benchmarks/simulated.py                  predict what is missing of 40 pairs, then print the table
    python tests/benchmarks/simulated.py --pairs 200 --first-seed 5000
    python tests/benchmarks/simulated.py --table [FILE]   print the table of what there is
    python tests/benchmarks/simulated.py --history        print a row for each draw that is kept, and what of it would
                                                          be a range

`tests/simulator` draws a training run and a change from each seed, and writes traces of the run before the change.
`dptune whatif` predicts the step from these alone; the truth is the same steps simulated with the change. Steps are
those with the profiler: a trace alone has no others. It resumes: --work keeps one file for each pair and commit.

A pair is predicted where `whatif` gives a step time; else it may give a range of steps, whose both ends must hold, or
a bound; else it says why it cannot.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean, median
from typing import Any

from overhead import commit, machine

from dptune.cli import main as dptune
from dptune.whatif.ranges import too_far_apart

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.simulator import pairs  # noqa: E402
from tests.simulator.changes import CHANGES  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "simulated.json"
DRAWS = (  # in their order; the one without a number is RESULTS
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth"),
)
CURRENT = "twelfth"
RANKS = (*[2] * 6, *[4] * 6, *[8] * 6, *[16] * 3, 32, 64)  # few of many ranks, which take minutes
LEAST_EFFECT = 0.03  # of the step: a smaller one has no sign that matters


def predicted(folder: Path, setting: str) -> dict[str, Any]:
    """What `dptune whatif` says of the traces in a folder with a change; `seconds` are of the CPU."""
    words = ["whatif", str(folder), "--no-cache", "--set", setting, "--format", "json"]
    started = time.process_time()
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        status = dptune(words)
    seconds = round(time.process_time() - started, 1)
    if status not in (0, 1) or not stdout.getvalue():
        return {"why": stderr.getvalue().partition("\n")[0].removeprefix("dptune: error: "), "seconds": seconds}
    what_if = json.loads(stdout.getvalue())
    first = (what_if["predictions"] or [{}])[0]
    named = ("step_ns", "low_ns", "high_ns")
    missing = first.get("missing", what_if.get("missing", {}))
    return {
        **{name: first.get(name) for name in named},
        "measured_ns": what_if["measured_ns"],
        "why": next((missing[name] for name in named if missing.get(name)), ""),
        "seconds": seconds,
    }


def ranks_of(seed: int, most_ranks: int) -> int:
    """How many ranks the pair of a seed has."""
    return random.Random(f"ranks {seed}").choice([count for count in RANKS if count <= most_ranks])


def judged(seed: int, work: Path, most_ranks: int) -> dict[str, Any]:
    """One pair: drawn, simulated, predicted and measured."""
    names, ranks = list(CHANGES), ranks_of(seed, most_ranks)
    pair = pairs.drawn(seed, ranks, names[seed % len(names)])
    folder = work / f"pair-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    before = pairs.simulated(pair.before, traced=True)
    pairs.write_traces(pair.before, before, folder)
    result = {
        "seed": seed,
        "ranks": ranks,
        "change": pair.change.name,
        "value": pair.value,
        "before_ns": pairs.mean_step_ns(before),
        "after_ns": pairs.mean_step_ns(pairs.simulated(pair.after, traced=True)),
        "predicted": predicted(folder, f"{pair.change.name}={pair.value}"),
    }
    shutil.rmtree(folder)
    return result


def collect(work: Path, seeds: Sequence[int], most_ranks: int, jobs: int, out: Path) -> dict[str, Any]:
    """Judge the pairs that were not yet judged at this commit, by `out` or before; `out` gets all so far.

    Those of few ranks first, which take seconds.
    """
    measured = commit()
    kept = work / measured
    kept.mkdir(parents=True, exist_ok=True)
    before = json.loads(out.read_text()) if out.exists() else {}
    for result in before.get("pairs", ()) if before.get("commit") == measured else ():
        (kept / f"{result['seed']}.json").write_text(json.dumps(result) + "\n")
    results = _results(kept, measured, seeds, most_ranks)
    missing = [seed for seed in seeds if not (kept / f"{seed}.json").exists()]
    missing.sort(key=lambda seed: ranks_of(seed, most_ranks))
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(judged, seed, work, most_ranks) for seed in missing]):
            result = done.result()
            (kept / f"{result['seed']}.json").write_text(json.dumps(result) + "\n")
            words = f"{result['seed']}: {result['change']}={result['value']}, {result['ranks']} ranks"
            print(words, file=sys.stderr, flush=True)
            results = _results(kept, measured, seeds, most_ranks)
            out.write_text(json.dumps(results) + "\n")
    return results


def _results(kept: Path, measured: str, seeds: Sequence[int], most_ranks: int) -> dict[str, Any]:
    """Those of the pairs that are judged."""
    files = [path for seed in seeds if (path := kept / f"{seed}.json").exists()]
    return {
        "machine": machine(),
        "commit": measured,
        "command": f"python tests/benchmarks/simulated.py --pairs {len(seeds)} --first-seed {seeds[0]} "
        f"--most-ranks {most_ranks}",
        "pairs": [json.loads(path.read_text()) for path in files],
    }


def _is_inside(result: dict[str, Any]) -> bool:
    """Whether the interval or range holds the true step, brought to how dptune measured the unchanged one.

    The simulator's step is the mean of all recorded steps and ranks, dptune's the median of ranks: 0.1 % apart.
    """
    told = result["predicted"]
    true_ns = result["after_ns"] * told["measured_ns"] / result["before_ns"]
    return bool(told["low_ns"] - 1 <= true_ns <= told["high_ns"] + 1)


def _holds(result: dict[str, Any]) -> bool:
    """Whether the true step is in a range, or no shorter than a bound."""
    told = result["predicted"]
    return _is_inside(result) if told.get("high_ns") else bool(result["after_ns"] >= told["low_ns"])


def _error(result: dict[str, Any]) -> float:
    return abs(float(result["predicted"]["step_ns"] / result["after_ns"]) - 1)


def _figures(results: Sequence[dict[str, Any]]) -> str:
    """One row: how near the predicted ones are, and what was said of the others."""
    steps = [result for result in results if result["predicted"].get("step_ns")]
    bounds = [result for result in results if result not in steps and result["predicted"].get("low_ns")]
    held = sum(map(_holds, bounds))
    row = f"{len(results):6d} {len(steps):5d}"
    if steps:
        errors = [_error(result) for result in steps]
        inside = [_is_inside(result) for result in steps]
        widths = [
            (result["predicted"]["high_ns"] - result["predicted"]["low_ns"]) / result["after_ns"] for result in steps
        ]
        signs = [
            (result["predicted"]["step_ns"] > result["before_ns"]) == (result["after_ns"] > result["before_ns"])
            for result in steps
            if abs(result["after_ns"] / result["before_ns"] - 1) > LEAST_EFFECT
        ]
        row += f" {100 * mean(errors):6.1f} {100 * max(errors):6.1f} {sum(inside):5d}/{len(inside):<3d}"
        row += f" {100 * median(widths):6.1f} {sum(signs):4d}/{len(signs):<3d}"
    else:
        row += f" {'':6s} {'':6s} {'':9s} {'':6s} {'':8s}"
    row += f" {f'{held}/{len(bounds)}' if bounds else '':>7s}"
    return f"{row} {len(results) - len(steps) - len(bounds):5d}"


def table(results: dict[str, Any]) -> str:
    """The results as text: errors and widths in percent of the true step."""
    judged_pairs = results["pairs"]
    head = "pairs steps   mean  worst  inside     width  sign   bounds  none"
    lines = [f"{'change':28s} {head}"]
    for name in CHANGES:
        found = [result for result in judged_pairs if result["change"] == name]
        if found:
            lines.append(f"{name:28s}{_figures(found)}")
    lines.append(f"{'all':28s}{_figures(judged_pairs)}")
    effects = [abs(result["after_ns"] / result["before_ns"] - 1) for result in judged_pairs]
    lines += [
        "",
        f"no change at all: mean {100 * mean(effects):.1f} %, worst {100 * max(effects):.1f} % off",
        "steps: pairs with a predicted step; mean, worst: its error; inside: of the interval; width: its median;",
        f"sign: right where the effect is above {100 * LEAST_EFFECT:.0f} %; bounds: and ranges, that hold; "
        "none: not predicted",
    ]
    reasons = sorted(
        {
            (result["change"], result["predicted"]["why"])
            for result in judged_pairs
            if not result["predicted"].get("low_ns")
        }
    )
    lines += ["", *(f"{name}: {why}" for name, why in reasons)] if reasons else []
    return "\n".join(line.rstrip() for line in lines)


def history() -> str:
    """A row of Markdown for each draw of which results are kept."""
    head = (
        *("draw", "frozen at", "first seed", "ranks", "judged of", "predicted", "mean error", "worst", "inside"),
        *("median width", "signs", "bounds"),
    )
    rows = [head, ("---", "---", *["--:"] * (len(head) - 2))]
    rows += [(draw, *_of_draw(results)) for draw, results in _draws()]
    return _in_markdown(rows)


def ranges() -> str:
    """A row of Markdown for each draw: the predicted steps whose ends are so far apart that a range is given today."""
    head = ("draw", "steps", "ranges", "hold", "of precision", "worst in them", "steps left", "mean error", "worst")
    rows = [head, ("---", *["--:"] * (len(head) - 1))]
    for draw, results in _draws():
        steps = [result for result in results["pairs"] if result["predicted"].get("step_ns")]
        wide = [each for each in steps if too_far_apart(each["predicted"]["low_ns"], each["predicted"]["high_ns"])]
        left = [_error(result) for result in steps if result not in wide]
        figures = max(map(_error, wide), default=0.0), mean(left), max(left)
        counts = (
            *(len(steps), len(wide), sum(map(_is_inside, wide))),
            sum(result["change"].startswith("precision.") for result in wide),
        )
        worst, *of_left = (f"{100 * figure:.1f} %" for figure in figures)
        rows.append((draw, *map(str, counts), worst, str(len(left)), *of_left))
    return _in_markdown(rows)


def _draws() -> Iterator[tuple[str, dict[str, Any]]]:
    """The draws of which results are kept, in their order."""
    for draw in DRAWS:
        file = RESULTS if draw == CURRENT else RESULTS.with_name(f"simulated_{draw}.json")
        if file.exists():
            yield draw, json.loads(file.read_text())


def _in_markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _of_draw(results: dict[str, Any]) -> tuple[str, ...]:
    words = results["command"].split()
    given = dict(zip(words[2::2], words[3::2], strict=False))
    judged_pairs = results["pairs"]
    _, steps, mean_error, worst, inside, width, signs, *others = _figures(judged_pairs).split()
    bounds = others[0] if "/" in others[0] else "-"
    ranks = sorted({pair["ranks"] for pair in judged_pairs})
    return (
        results["commit"],
        given["--first-seed"],
        f"{ranks[0]} to {ranks[-1]}",
        f"{len(judged_pairs)} of {given['--pairs']}",
        steps,
        *(f"{figure} %" for figure in (mean_error, worst)),
        inside,
        f"{width} %",
        signs,
        bounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = Path(tempfile.gettempdir()) / "dptune-benchmark-simulated"
    parser.add_argument("--pairs", type=int, default=40, metavar="N", help="how many to draw (default: 40)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="seed of the first (default: 0)")
    parser.add_argument(
        "--most-ranks", type=int, default=max(RANKS), metavar="N", help="of a pair (default: all sizes)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="pairs judged at once (default: 1)")
    parser.add_argument("--work", type=Path, default=kept, help="where judged pairs are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help="raw results")
    parser.add_argument("--table", nargs="?", type=Path, const=RESULTS, metavar="FILE", help="run nothing")
    parser.add_argument("--history", action="store_true", help="run nothing: rows for each draw")
    args = parser.parse_args()
    if args.history:
        print(f"{history()}\n\n{ranges()}")
        return
    if args.table:
        if not args.table.exists():
            parser.error(f"there are no results yet: {args.table}")
        print(table(json.loads(args.table.read_text())))
        return
    seeds = range(args.first_seed, args.first_seed + args.pairs)
    results = collect(args.work, seeds, args.most_ranks, args.jobs, args.out)
    args.out.write_text(json.dumps(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
