"""Mutation fuzzing of whole reports of sets of 2 to 4 ranks: each ends in a report or one sentence, in bounded time.

    python -m tests.fuzz.sets                        20,000 sets (make fuzz-sets); resumes; tests/fuzz/set_results.json
    python -m tests.fuzz.sets --input 4711           make that one again, in ./fuzz-set-4711/, and say what is wrong

Set n depends on the seed and on n alone. A rule or a step model that fails is an internal error, too, though a report
survives it; so is any warning of Python or numpy.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from dptune.advice import Report
from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.errors import DptuneError
from dptune.measure import measure
from dptune.measure.steps.history import step_history
from dptune.measure.straggler_lanes import timeline_steps
from dptune.present import text as as_text
from dptune.present.html import RunDetails, page
from dptune.present.machine import json as as_json
from dptune.trace import load

from . import set_mutations
from .bases import RankSet, bases
from .pieces import ROOT

RESULTS = Path(__file__).parent / "set_results.json"
INPUTS, SEED = 20_000, 1
LIMIT_SECONDS = 20  # of computing
PATIENCE_SECONDS = 600  # of waiting, on a machine that has other work
SAVED_EVERY = 250
ENGINE = ("trace", "measure", "measured", "whatif", "advise", "present")  # what a report goes through
FAILED = {"rule-failed", "model-failed", "rule-pack"}  # findings that a failure of dptune's own leaves behind
_given: dict[str, Any] = {}  # what a process of the pool judges: the sets to mutate, and the seed
_TIMERS = ((signal.ITIMER_PROF, signal.SIGPROF, LIMIT_SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE_SECONDS))


class Hang(BaseException):
    """A set took too long; no handler of the code under test may catch it."""


@dataclass
class Outcome:
    """What one set came to: `level` of trust, else `refusal`; `error` is what must not be."""

    error: str = ""
    hang: bool = False
    level: str = ""
    refusal: str = ""
    advice: int = 0
    ranks: int = 0
    seconds: float = 0.0
    peak_memory_mib: int = 0


@dataclass
class Tally:
    """What all sets came to so far."""

    inputs: int = 0
    internal_errors: int = 0
    hangs: int = 0
    several_ranks: int = 0
    with_advice: int = 0
    levels: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    sets: Counter[str] = field(default_factory=Counter)
    errors: list[dict[str, Any]] = field(default_factory=list)
    slowest_seconds: float = 0.0
    seconds: float = 0.0
    peak_memory_mib: int = 0  # of the process that took most

    def add(self, number: int, kinds: list[str], base: str, outcome: Outcome) -> None:
        """Count one set."""
        self.inputs += 1
        self.internal_errors += bool(outcome.error) and not outcome.hang
        self.hangs += outcome.hang
        self.several_ranks += outcome.ranks > 1
        self.with_advice += outcome.advice > 0
        self.levels[outcome.level or "refused"] += 1
        self.mutations.update(kinds)
        self.sets[base] += 1
        self.seconds += outcome.seconds
        self.slowest_seconds = max(self.slowest_seconds, outcome.seconds)
        self.peak_memory_mib = max(self.peak_memory_mib, outcome.peak_memory_mib)
        if outcome.refusal:
            self.refusals[outcome.refusal] += 1
        if outcome.error and len(self.errors) < 200:
            self.errors.append({"input": number, "set": base, "mutations": kinds, "error": outcome.error})


def made(found: dict[str, RankSet], seed: int, number: int) -> tuple[list[str], str, dict[str, str]]:
    """Set `number`: its mutations, the set it was made of, and the text of each file."""
    random = Random(f"sets:{seed}:{number}")
    base = random.choice(sorted(found))
    draft = set_mutations.Draft(found[base])
    kinds = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        mutate = random.choice(set_mutations.EVENTS if random.random() < 0.7 else set_mutations.SETS)
        mutate(random, draft)
        kinds.append(mutate.__name__)
    return kinds, base, draft.files()


def written(folder: Path, files: dict[str, str]) -> None:
    """Write a set into an empty folder."""
    for file in folder.iterdir():
        file.unlink()
    for name, content in files.items():
        (folder / name).write_text(content)


def judged(folder: Path) -> Outcome:
    """Load, measure, judge, advise on and present the set in a folder."""
    outcome = Outcome()
    began = time.perf_counter()
    try:
        with bounded(), warnings.catch_warnings():
            warnings.simplefilter("error")
            _report(folder, outcome)
    except DptuneError as error:
        outcome.refusal = type(error).__name__
        if not error.message.strip() or "\n" in error.message:
            outcome.error = f"no sentence: {error.message!r}"
    except Hang:
        outcome.error, outcome.hang = f"took more than {LIMIT_SECONDS} s, or did not end", True
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        outcome.error = f"{type(error).__name__}: {error} at {Path(at.filename).name}:{at.lineno}"[:300]
    outcome.seconds = time.perf_counter() - began
    outcome.peak_memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return outcome


def _report(folder: Path, outcome: Outcome) -> None:
    run = load([folder])
    outcome.ranks = len(run.ranks)
    report = build_report(run, measure(run), Settings())
    outcome.level, outcome.advice = report.trust.level, len(report.advice)
    as_text.text(report, 80)
    Report.model_validate_json(as_json.text(report))
    as_text.first_screen(report)
    details = RunDetails(timeline_steps(run, report.measured), step_history(run, report.measured))
    page(report, details)
    failed = [finding.text for finding in report.trust.findings if finding.code in FAILED]
    outcome.error = "; ".join(failed)[:300]


@contextmanager
def bounded() -> Iterator[None]:
    """Raise Hang where it takes too long."""
    before = [signal.signal(number, _hang) for _, number, _ in _TIMERS]
    for timer, _, seconds in _TIMERS:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(_TIMERS, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def _hang(*_: object) -> None:
    raise Hang


def run(found: dict[str, RankSet], numbers: Sequence[int], seed: int, tally: Tally, jobs: int = 1) -> Iterator[Tally]:
    """Judge sets in `jobs` processes, which share the memory of `found`; the tally after each, in order."""
    _begun(found, seed)
    with contextlib.ExitStack() as stack:
        results: Iterator[tuple[list[str], str, Outcome]] = map(_one, numbers)
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(jobs, _begun, (found, seed)))
            results = pool.imap(_one, numbers)
        for number, (kinds, base, outcome) in zip(numbers, results, strict=True):
            tally.add(number, kinds, base, outcome)
            yield tally


def _begun(found: dict[str, RankSet], seed: int) -> None:
    _given.update(found=found, seed=seed)


def _one(number: int) -> tuple[list[str], str, Outcome]:
    kinds, base, files = made(_given["found"], _given["seed"], number)
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), files)
        return kinds, base, judged(Path(folder))


def commit_here() -> str:
    """The commit that is checked out."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def summary(tally: Tally, seed: int, engine: str, commit: str) -> dict[str, Any]:
    """The tally as it is written, with the code and the commit it was begun with."""
    counts = {
        name: dict(value.most_common()) if isinstance(value, Counter) else value for name, value in vars(tally).items()
    }
    return {
        "command": f"python -m tests.fuzz.sets --inputs {INPUTS} --seed {seed}",
        "commit": commit,
        "engine": engine,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "seed": seed,
        **counts,
    }


def resumed(seed: int, engine: str) -> Tally:
    """The tally of an earlier run of the same seed and the same code; an empty one where there is none."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if known.get("seed") != seed or known.get("engine") != engine:
        return Tally()
    tally = Tally()
    for name, value in vars(tally).items():
        setattr(tally, name, Counter(known[name]) if isinstance(value, Counter) else known[name])
    return tally


def engine_digest() -> str:
    """Which dptune, and which mutations, these are."""
    digest = hashlib.sha256()
    folders = [*(ROOT / "advisor" / "dptune" / name for name in ENGINE), ROOT / "rules"]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    for path in sorted([*sources, *Path(__file__).parent.glob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """Run what is missing, or one set again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--input", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that judge sets at once")
    given = parser.parse_args()
    found = bases()
    if given.input is not None:
        folder = Path(f"fuzz-set-{given.input}")
        folder.mkdir(exist_ok=True)
        kinds, base, files = made(found, given.seed, given.input)
        written(folder, files)
        outcome = judged(folder)
        print(base, kinds, outcome)
        return bool(outcome.error)
    engine, commit = engine_digest(), commit_here()
    tally = resumed(given.seed, engine)
    for each in run(found, range(tally.inputs, given.inputs), given.seed, tally, given.jobs):
        if each.inputs % SAVED_EVERY == 0 or each.inputs == given.inputs:
            RESULTS.write_text(json.dumps(summary(each, given.seed, engine, commit), indent=1) + "\n")
            bad = f"{each.internal_errors} internal errors, {each.hangs} hangs"
            print(f"{each.inputs:,} sets, {bad}", file=sys.stderr, flush=True)
    return bool(tally.internal_errors or tally.hangs)


if __name__ == "__main__":
    sys.exit(main())
