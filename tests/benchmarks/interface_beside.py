"""How long the full-screen report takes to open, beside another commit of dptune, in turn.

    python tests/benchmarks/interface_beside.py CHECKOUT     run what is missing, then print the table
    python tests/benchmarks/interface_beside.py --table      print the table of what there is

CHECKOUT is a folder of that commit with an environment in `.venv`. The runs, the terminal and how openings are timed
are those of each commit's own interface.py; of the keys, 2 and 3 are pressed. Openings that read anew alternate. Those
from kept columns follow each other for each commit, because each keeps columns that the other cannot read. Seconds.

Raw results: results/interface_beside.json, an opening at a time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from overhead import machine

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "interface_beside.json"
ROUNDS = {"500 MB": 3, "1,000 ranks": 1}
_ONCE = """
import json, sys
sys.path.insert(0, "tests/benchmarks")
import interface
from loading import trace
interface.KEYS = [(key, seen) for key, seen in interface.KEYS if key in "23"]
size, ranks = (500, 1) if sys.argv[1] == "500 MB" else (2, 1000)
paths = [str(trace(size, "offset", rank)) for rank in range(ranks)]
print(json.dumps(interface.once(paths, sys.argv[2] == "cached")))
"""


def opened(checkout: Path, what: str, cached: bool) -> dict[str, Any]:
    """One opening by the dptune of a checkout."""
    words = [str(checkout / ".venv" / "bin" / "python"), "-c", _ONCE, what, "cached" if cached else "anew"]
    done = subprocess.run(words, cwd=checkout, check=True, text=True, stdout=subprocess.PIPE)
    timed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return timed


def collect(other: Path) -> dict[str, Any]:
    """Open what is missing; each opening is written down as soon as it has ended."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"openings": []}
    results.update(machine=machine(), command="python tests/benchmarks/interface_beside.py CHECKOUT")
    checkouts = {"before": other.resolve(), "now": ROOT}

    def add(side: str, what: str, cached: bool) -> None:
        timed = opened(checkouts[side], what, cached)
        row = {"side": side, "what": what, "cached": cached, "commit": commit_of(checkouts[side])}
        results["openings"].append({**row, **timed})
        RESULTS.write_text(json.dumps(results) + "\n")

    def missing(side: str, what: str, cached: bool) -> int:
        return ROUNDS[what] - len(of(results, side, what, cached))

    for what, rounds in ROUNDS.items():
        for _ in range(rounds):
            for side in checkouts:
                if missing(side, what, False) > 0:
                    add(side, what, False)
        for side, checkout in checkouts.items():
            if missing(side, what, True) > 0:
                opened(checkout, what, True)  # which keeps the columns
            for _ in range(missing(side, what, True)):
                add(side, what, True)
    return results


def commit_of(checkout: Path) -> str:
    """The commit that is checked out."""
    words = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def of(results: Mapping[str, Any], side: str, what: str, cached: bool) -> list[dict[str, Any]]:
    """The openings of that kind."""
    return [
        each for each in results["openings"] if (each["side"], each["what"], each["cached"]) == (side, what, cached)
    ]


def table(results: Mapping[str, Any]) -> str:
    """The results as text."""
    commits = {each["side"]: each["commit"] for each in results["openings"]}
    lines = [f"machine: {results['machine']}; seconds until the report, medians", ""]
    lines.append(f"{'opened':20s}  {commits['before']:>8}  {commits['now']:>8}  ratio  rounds")
    for what, cached in dict.fromkeys((each["what"], each["cached"]) for each in results["openings"]):
        sides = [[each["report_s"] for each in of(results, side, what, cached)] for side in ("before", "now")]
        if not all(sides):
            continue
        before, now = map(median, sides)
        name = f"{what}, again" if cached else what
        lines.append(f"{name:20s}  {before:8.2f}  {now:8.2f}  {now / before:5.2f}  {min(map(len, sides)):6d}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, metavar="CHECKOUT")
    parser.add_argument("--table", nargs="?", type=Path, const=RESULTS, metavar="FILE", help="run nothing")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())))
    elif args.checkout is None:
        parser.error("name the checkout of the other commit")
    else:
        print(table(collect(args.checkout)))


if __name__ == "__main__":
    main()
