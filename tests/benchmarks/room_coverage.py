"""Line and branch coverage by room, from reports of coverage.py.

    coverage run --branch --parallel-mode --source=advisor/dptune,rules/dptune_rules -m pytest ...
    coverage combine && coverage json -o NOW.json
    python tests/benchmarks/room_coverage.py BEFORE.json NOW.json [ROOM ...]

A room is a package of dptune, with its own modules and packages, or the rule pack. What runs in processes of their own
is counted where coverage.py starts in them (`patch = subprocess` in its settings).
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path, PurePath

KEYS = ("covered_lines", "num_statements", "covered_branches", "num_branches")
Counts = dict[str, list[int]]


def rooms(report: Path) -> Counts:
    """Covered and all lines, covered and all branches of each room."""
    found: Counts = defaultdict(lambda: [0, 0, 0, 0])
    for name, file in json.loads(report.read_text())["files"].items():
        parts = PurePath(name).parts
        if "dptune_rules" in parts:
            room = "rules"
        else:
            inner = parts[parts.index("dptune") + 1 :]
            room = inner[0] if len(inner) > 1 else "(own modules)"
        for at, key in enumerate(KEYS):
            found[room][at] += file["summary"][key]
    return found


def table(before: Counts, now: Counts, names: list[str]) -> str:
    """A line a room that both have: shares of lines and branches."""
    lines = ["room             lines: before     now   branches: before     now   lines now"]
    for room in sorted(now.keys() & before.keys()):
        if not names or room in names:
            shares = [_share(each[at], each[at + 1]) for at in (0, 2) for each in (before[room], now[room])]
            lines.append("{:16s} {:>13s} {:>7s} {:>18s} {:>7s}".format(room, *shares) + f" {now[room][1]:11,d}")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(table(*(rooms(Path(name)) for name in sys.argv[1:3]), sys.argv[3:]))
