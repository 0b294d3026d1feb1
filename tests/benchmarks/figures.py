"""Whether two commits measure the same: all figures of runs, read by each, compared one by one.

    python tests/benchmarks/figures.py collect FILE RUN...   measure each run with the dptune that is imported
    python tests/benchmarks/figures.py compare BEFORE AFTER  print what differs

A run is a folder of one recording, or a trace. `collect` also runs with an older dptune: only `load` and `measure` are
asked of it. Keys and words that are called otherwise since are in RENAMED and MOVED. A figure is compared where both
commits have it. The reasons of missing figures are sentences: they are left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RENAMED = {"lean": "light", "rich": "detailed", "unprofiled": "untraced"}  # part of a key, or a word: that of now
MOVED = {"step.median_ns": "step.time_ns"}  # the same of paths
LISTED = 5  # runs that are named for a figure that differs


def collect(file: Path, names: list[str]) -> None:
    """Write the figures of each run, or the error that its reading ends in, after each run: what is there is kept."""
    from dptune.errors import DptuneError
    from dptune.measure import measure
    from dptune.trace import load

    found = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        if name in found:
            continue
        try:
            found[name] = measure(load([Path(name)])).model_dump(mode="json")
        except DptuneError as error:
            found[name] = {"error": str(error)}
        file.write_text(json.dumps(found))


def figures(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Each number, word or truth value with its path: `ranks[0].account.compute_ns`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            now = "_".join(RENAMED.get(part, part) for part in key.split("_"))
            if key != "missing":
                yield from figures(inner, f"{at}.{now}" if at else now)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from figures(inner, f"{at}[{number}]")
    else:
        yield MOVED.get(at, at), RENAMED.get(value, value) if isinstance(value, str) else value


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The figures that both have: how many are equal, and each kind that differs, with its runs and an example."""
    equal, only = 0, Counter[str]()
    differing: dict[str, list[tuple[str, str, Any, Any]]] = defaultdict(list)
    runs = sorted(before.keys() & after.keys())
    for run in runs:
        was, is_now = dict(figures(before[run])), dict(figures(after[run]))
        only["before"] += len(was.keys() - is_now.keys())
        only["after"] += len(is_now.keys() - was.keys())
        for path in was.keys() & is_now.keys():
            if was[path] == is_now[path]:
                equal += 1
            else:
                differing[re.sub(r"\[\d+\]", "", path)].append((run, path, was[path], is_now[path]))
    lines = [
        f"{len(runs)} runs: {equal:,} figures equal, {sum(map(len, differing.values())):,} differ, "
        f"{only['before']:,} only before, {only['after']:,} only after"
    ]
    for kind, places in sorted(differing.items(), key=lambda item: -len(item[1])):
        named = sorted({Path(run).name for run, *_ in places})
        _, path, was_value, now_value = places[0]
        more = f" and {len(named) - LISTED} more" if len(named) > LISTED else ""
        lines += [
            f"{kind}: {len(places)} in {len(named)} runs: {', '.join(named[:LISTED])}{more}",
            f"    {path}: {was_value!s:.60} -> {now_value!s:.60}",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"] and len(sys.argv) > 3:
        collect(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        print(compare(*(json.loads(Path(name).read_text()) for name in sys.argv[2:])))
    else:
        sys.exit(__doc__)
