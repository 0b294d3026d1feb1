"""Mutation fuzzing of the trace reader: what it reads is right, or it says so, in bounded time and memory.

    python -m tests.fuzz.mutate                      100,000 inputs (make fuzz); resumes; tests/fuzz/results.json
    python -m tests.fuzz.mutate --input 4711         make that one again, in ./fuzz-4711.json, and say what is wrong

Input n depends on the seed and on n alone. A third of them are read in blocks of 4 kB, so that a piece has many.
One in five is a planted figure: one digit of a sound trace is changed, and dptune has to read exactly that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from dptune.trace.kineto import body, text

from . import mutations
from .judge import Outcome, judged
from .pieces import ROOT, damaged, pieces

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
INPUTS, SEED = 100_000, 1
LARGEST_BYTES = 2_000_000  # packed, of the files that pieces are cut of
MEMORY_BYTES = 6 * 2**30  # of address space; an input that wants more fails
SAVED_EVERY = 1000
SMALL_BLOCKS = 4096


@dataclass
class Source:
    """What inputs are made of: sound pieces and damaged ones."""

    sound: list[bytes]
    broken: list[bytes]

    @classmethod
    def cut(cls, largest_bytes: int, every: int = 1) -> Source:
        """From the real traces and the samples; those of other tools count as broken."""
        found = pieces(largest_bytes, every)
        foreign = [data for name, data in sorted(found.items()) if "not_torch" in name]
        sound = [data for name, data in sorted(found.items()) if "not_torch" not in name]
        return cls(sound, [data for _, data in sorted(damaged().items()) if data] + foreign)

    def made(self, seed: int, number: int) -> tuple[str, bytes, bytes]:
        """Input `number`: its kind, its bytes, and the sound piece it was made of (b"" where it was none)."""
        random = Random(f"{seed}:{number}")
        if random.random() < 0.2:
            base = random.choice(self.sound)
            return "planted", mutations.figure(random, base), base
        base = random.choice(self.sound) if random.random() < 0.75 else b""
        data = base or random.choice(self.broken)
        names = []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            if not data:
                break
            if random.random() < 0.08:
                data, name = mutations.splice(random, data, random.choice(self.sound)), "splice"
            else:
                damage = random.choice(mutations.DAMAGES)
                data, name = damage(random, data), damage.__name__
            names.append(name)
        shell = random.random()
        if shell < 0.15:
            data = mutations.packing(random, data)
            names.append("packing")
        elif shell < 0.18:
            data = mutations.encoding(random, data)
            names.append("encoding")
        return "+".join(names), data, base


@dataclass
class Tally:
    """What all inputs came to so far."""

    done: int = 0
    decoded: int = 0
    partial: int = 0
    planted: int = 0
    compared_inputs: int = 0
    compared_cells: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    wrong_inputs: int = 0
    slowest: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, number: int, kind: str, size: int, outcome: Outcome) -> None:
        """Count one input."""
        self.done += 1
        self.decoded += outcome.events > 0
        self.partial += outcome.partial
        self.planted += kind == "planted"
        self.compared_inputs += outcome.compared > 0
        self.compared_cells += outcome.compared
        self.seconds += outcome.seconds
        self.mutations.update(kind.split("+"))
        if outcome.refusal:
            self.refusals[outcome.refusal] += 1
        if outcome.seconds > self.slowest.get("seconds", 0):
            self.slowest = {"input": number, "kind": kind, "bytes": size, "seconds": round(outcome.seconds, 3)}
        if outcome.wrong:
            self.wrong_inputs += 1
            if len(self.wrong) < 200:
                self.wrong.append({"input": number, "kind": kind, "wrong": outcome.wrong[:3]})


@contextmanager
def small_blocks(wanted: bool) -> Iterator[None]:
    """Blocks of 4 kB for a while."""
    places = [(text, "BLOCK_BYTES"), (text, "_PACKED_BYTES"), (body, "BLOCK_BYTES")] if wanted else []
    before = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, SMALL_BLOCKS)
    try:
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


def run(source: Source, numbers: range, seed: int, path: Path, tally: Tally) -> Iterator[Tally]:
    """Judge inputs; the tally after each."""
    for number in numbers:
        kind, data, base = source.made(seed, number)
        with small_blocks(number % 3 == 0):
            outcome = judged(path, data, kind, base)
        tally.add(number, kind, len(data), outcome)
        yield tally


def summary(tally: Tally, seed: int, engine: str) -> dict[str, Any]:
    """The tally as it is written."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "command": f"python -m tests.fuzz.mutate --inputs {INPUTS} --seed {seed}",
        "commit": commit.stdout.strip(),
        "engine": engine,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "seed": seed,
        "inputs": tally.done,
        "inputs_with_something_wrong": tally.wrong_inputs,
        "decoded_past_the_header": tally.decoded,
        "decoded_share": round(tally.decoded / max(tally.done, 1), 4),
        "said_to_be_partial": tally.partial,
        "planted_figures": tally.planted,
        "compared_with_a_plain_reading": tally.compared_inputs,
        "cells_compared": tally.compared_cells,
        "refusals": dict(tally.refusals.most_common()),
        "mutations": dict(tally.mutations.most_common()),
        "slowest": tally.slowest,
        "seconds_in_dptune": round(tally.seconds, 1),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "memory_limit_mib": MEMORY_BYTES // 2**20,
        "wrong": tally.wrong,
    }


def resumed(seed: int, engine: str) -> Tally:
    """The tally of an earlier run of the same seed and the same reader; an empty one where there is none."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if known.get("seed") != seed or known.get("engine") != engine:
        return Tally()
    return Tally(
        done=known["inputs"],
        decoded=known["decoded_past_the_header"],
        partial=known["said_to_be_partial"],
        planted=known["planted_figures"],
        compared_inputs=known["compared_with_a_plain_reading"],
        compared_cells=known["cells_compared"],
        refusals=Counter(known["refusals"]),
        mutations=Counter(known["mutations"]),
        wrong=known["wrong"],
        wrong_inputs=known["inputs_with_something_wrong"],
        slowest=known["slowest"],
        seconds=known["seconds_in_dptune"],
    )


def engine_digest() -> str:
    """Which reader this is."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "advisor" / "dptune" / "trace").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """Run what is missing, or one input again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--input", type=int)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    source = Source.cut(LARGEST_BYTES)
    if given.input is not None:
        kind, data, base = source.made(given.seed, given.input)
        with small_blocks(given.input % 3 == 0):
            outcome = judged(Path(f"fuzz-{given.input}.json"), data, kind, base)
        print(kind, outcome)
        return bool(outcome.wrong)
    engine = engine_digest()
    tally = resumed(given.seed, engine)
    with tempfile.TemporaryDirectory() as folder:
        for each in run(source, range(tally.done, given.inputs), given.seed, Path(folder) / "t.json", tally):
            if each.done % SAVED_EVERY == 0 or each.done == given.inputs:
                RESULTS.write_text(json.dumps(summary(each, given.seed, engine), indent=1) + "\n")
                print(f"{each.done:,} inputs, {each.wrong_inputs} wrong", file=sys.stderr, flush=True)
    return bool(tally.wrong_inputs)


if __name__ == "__main__":
    sys.exit(main())
