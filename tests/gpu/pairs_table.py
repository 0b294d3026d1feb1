"""The table of changes that a card measured, as tests/benchmarks/GPU.md holds it: `python -m tests.gpu.pairs_table`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from tests.gpu.keeping import RESULTS
from tests.gpu.stages.pairs import CHANGES


def rounds() -> dict[str, list[float]]:
    """Median steps of the later rank, ms, by change; one for each round."""
    found: dict[str, list[float]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        pairs = json.loads(path.read_text())["stages"].get("pairs", {}).get("figures", {})
        for name, each in pairs.get("measured", {}).get("medians_ms", {}).items():
            found.setdefault(name, []).extend(map(max, each))
    return found


def rows() -> Iterator[str]:
    """A line per change: the steps of each round, and their median as a multiple of the base's, that run again too."""
    steps = rounds()
    yield f"{'change':25s} {'steps, ms':>14s}   times base"
    for name, each in steps.items():
        base = CHANGES[name].base
        usual = median([*steps[base], *steps.get(f"{base} again", [])])
        shown = " ".join(f"{step:6.1f}" for step in each)
        yield f"{name:25s} {shown:>14s}   {median(each) / usual:10.2f}"


if __name__ == "__main__":
    print("\n".join(rows()))
