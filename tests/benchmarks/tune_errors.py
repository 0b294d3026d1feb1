"""How often `dptune tune` keeps a change without effect, and how much of the possible gain it finds.

    python tests/benchmarks/tune_errors.py                simulate 10,000 searches, then print the table (minutes)
    python tests/benchmarks/tune_errors.py --table        print the table of what there is

The search, its races and its tests are dptune's own; only the trials are simulated. A trial takes the time that the
changes leave, times the noise of real trials: each search draws stretches of the trials of like and planted sides in
results/error_rates.json (72 comparisons on a virtual machine, in their order, each relative to the median of its side).

Scripts, 2,500 searches each, with 4 to 12 candidates, 20 minutes per search:
    healthy     no candidate saves anything; some make steps longer
    one fault   one candidate saves 5 to 70 %
    faults      two to four candidates save 2 to 50 % each; of two for one part of training only the larger one counts
    small       two to four candidates save 1 to 6 % each
Predictions are off by up to half, candidates without effect are predicted to save as much as others, or nothing is
predicted.

A false keep is a change that saved nothing on top of those that were kept before it. The gain found is the saving of
all kept changes over that of the best set. The final figure is the ratio of the final comparison, made of new trials;
its error is relative to the true ratio.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from command_line import main
from overhead import commit

from dptune.prove import sequential
from dptune.prove.sequential import Times
from dptune.tune.candidate import Candidate
from dptune.tune.search import FINAL_PAIRS, Found, search
from dptune.tune.timed import Failed, Timed

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "tune_errors.json"
NOISE = HERE / "results" / "error_rates.json"
KINDS = ("healthy", "one fault", "faults", "small")
SEARCHES = 2500  # of each kind
LIMIT_S = 1200.0
LEAST_TIME = 0.05  # of the original: no set of changes saves more


@dataclass(frozen=True)
class Script:
    """Candidates and what each really saves, as a share of the original time."""

    candidates: Sequence[Candidate]
    saves: dict[str, float]

    def time(self, changes: Sequence[Candidate]) -> float:
        """The time with these changes: of those for one part of training the best one counts."""
        best: dict[frozenset[str], float] = {}
        for change in changes:
            saved = self.saves[change.name]
            best[change.subjects] = max(saved, best.get(change.subjects, saved))
        return max(LEAST_TIME, 1 - sum(best.values()))

    @property
    def best_time(self) -> float:
        return self.time([each for each in self.candidates if self.saves[each.name] > 0])


class Simulated:
    """Trials with known effects and real noise."""

    def __init__(self, script: Script, noise: Iterator[tuple[float, float]]) -> None:
        self.script, self.noise = script, noise

    def run(self, changes: Sequence[Candidate]) -> Timed | Failed:
        factor, seconds = next(self.noise)
        return Timed(self.script.time(changes) * factor, seconds)

    def altered(self, stack: Sequence[Timed], trials: Sequence[Timed], candidate: Candidate) -> str:
        return ""


def stretches() -> list[list[tuple[float, float]]]:
    """Of each comparison that was made, in its order: each trial's mean step over its side's median, and seconds."""
    found = []
    for comparison in json.loads(NOISE.read_text())["comparisons"]:
        ran = [trial for trial in comparison["trials"] if trial["status"] == "ran"]
        middle = {side: median(trial["step_ns"] for trial in ran if trial["side"] == side) for side in "AB"}
        found.append([(trial["step_ns"] / middle[trial["side"]], trial["seconds"]) for trial in ran])
    return found


def noise(draw: random.Random, known: Sequence[Sequence[tuple[float, float]]]) -> Iterator[tuple[float, float]]:
    """Stretches of one comparison after another."""
    while True:
        stretch = draw.choice(known)
        yield from stretch[draw.randrange(len(stretch)) :]


def script(kind: str, draw: random.Random) -> Script:
    """A script of this kind."""
    total = draw.randint(4, 12)
    real = {"healthy": 0, "one fault": 1}.get(kind) if kind in ("healthy", "one fault") else draw.randint(2, 4)
    least, most = {"one fault": (0.05, 0.7), "faults": (0.02, 0.5), "small": (0.01, 0.06)}.get(kind, (0.0, 0.0))
    candidates, saves = [], {}
    for number in range(total):
        name = f"change {number}"
        effect = math.exp(draw.uniform(math.log(least), math.log(most))) if number < (real or 0) else 0.0
        harms = not effect and draw.random() < 0.3
        saves[name] = -draw.uniform(0.01, 0.3) if harms else effect
        claim = effect or draw.uniform(0.01, 0.3)
        predicted = draw.random() < 0.7
        candidates.append(
            Candidate(
                name,
                low_share=claim * draw.uniform(0.5, 1) if predicted else 0.0,
                high_share=min(1.0, claim * draw.uniform(1, 1.5)) if predicted else 0.0,
                basis=draw.choice(("replayed", "bound")) if predicted else "",
                subjects=frozenset({draw.choice("abcdef")}),
            )
        )
    draw.shuffle(candidates)
    return Script(candidates, saves)


def false_keep(script: Script, found: Found) -> bool:
    """Whether some kept change saved nothing on top of those before it."""
    return any(
        script.time(found.stack[: count + 1]) >= script.time(found.stack[:count]) for count in range(len(found.stack))
    )


def final_ratio(runner: Simulated, found: Found, draw: random.Random) -> tuple[float, bool, float]:
    """The measured ratio of the final comparison, whether it was decided as faster, and its seconds."""
    a: list[Times] = []
    b: list[Times] = []
    seconds = 0.0
    for pair in range(1, sequential.LOOKS[-1] + 1):
        for side in draw.sample(("a", "b"), 2):
            timed = runner.run([] if side == "a" else found.stack)
            (a if side == "a" else b).append(Times(timed.time_ns, timed.time_ns))
            seconds += timed.seconds
        look = sequential.look(a, b)
        if look is not None and sequential.decides(look):
            return look.ratio, look.ratio < 1, seconds
        if pair >= FINAL_PAIRS and found.spent_s + seconds > LIMIT_S:
            break
    return sequential.times_as_long([each.mean for each in a], [each.mean for each in b]), False, seconds


def searched(kind: str, number: int, known: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """One search and its final comparison."""
    draw = random.Random(f"{kind} {number}")
    made = script(kind, draw)
    runner = Simulated(made, noise(draw, known))
    found = search(made.candidates, runner, LIMIT_S, number)
    ratio, faster, seconds = final_ratio(runner, found, draw) if found.stack else (1.0, False, 0.0)
    return {
        "kept": len(found.stack),
        "false": false_keep(made, found),
        "ended": found.ended,
        "races": found.races,
        "true_ratio": made.time(found.stack),
        "best_ratio": made.best_time,
        "final_ratio": ratio,
        "final_faster": faster,
        "seconds": found.spent_s + seconds,
    }


def collect(_: Path) -> dict[str, Any]:
    """All searches, in sums per kind."""
    known = stretches()
    results: dict[str, Any] = {"commit": commit(), "searches": SEARCHES, "limit_s": LIMIT_S, "kinds": {}}
    for kind in KINDS:
        made = [searched(kind, number, known) for number in range(SEARCHES)]
        results["kinds"][kind] = summed(made)
        print(f"{kind}: {results['kinds'][kind]}", file=sys.stderr, flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return results


def summed(made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the table shows."""
    possible = [each for each in made if each["best_ratio"] < 1]
    shares = [(1 - each["true_ratio"]) / (1 - each["best_ratio"]) for each in possible]
    kept = [each for each in made if each["kept"]]
    errors = [each["final_ratio"] / each["true_ratio"] - 1 for each in kept]
    minutes = sorted(each["seconds"] / 60 for each in made)
    return {
        "false_keeps": sum(each["false"] for each in made),
        "kept_any": len(kept),
        "gain_found_median": median(shares) if shares else None,
        "gain_found_mean": mean(shares) if shares else None,
        "final_faster": sum(each["final_faster"] for each in kept),
        "final_error_median": median(errors) if errors else None,
        "minutes_median": median(minutes),
        "minutes_most": minutes[-1],
        "ended": dict(Counter(each["ended"] for each in made)),
    }


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    lines = [f"commit {results['commit']}; {results['searches']:,} searches of each kind", ""]
    lines.append(
        "script      false keeps  kept any  found: median, mean       final: faster, error  minutes: median, most"
    )
    for kind, counted in results["kinds"].items():
        false = f"{100 * counted['false_keeps'] / results['searches']:.1f} %"
        gain = (
            "             -          -"
            if counted["gain_found_median"] is None
            else f"{100 * counted['gain_found_median']:15.0f} % {100 * counted['gain_found_mean']:7.0f} %"
        )
        kept = counted["kept_any"]
        final = (
            f"{100 * counted['final_faster'] / kept:11.0f} % {100 * counted['final_error_median']:+6.1f} %"
            if kept
            else " " * 20
        )
        minutes = f"{counted['minutes_median']:14.1f} {counted['minutes_most']:6.1f}"
        lines.append(f"{kind:10s} {false:>12s} {kept:9,d} {gain} {final} {minutes}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "tuning")
