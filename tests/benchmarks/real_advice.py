"""What every rule says of public traces: read through for plausibility.

    python tests/benchmarks/real_advice.py               report on them, then print the table (make bench-rules)
    python tests/benchmarks/real_advice.py --table       print the table of what there is

Each run of ../shared/real_traces that can be judged is reported on, alone. The share is what the advice can save at
most. The traces stand beside the repository, not in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_line import main
from overhead import commit, machine
from real_replays import runs

from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.measure import measure

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "real_advice.json"


def collect(_: Path) -> dict[str, Any]:
    """Report on all of them: it takes some minutes."""
    results: dict[str, Any] = {
        "machine": machine(),
        "commit": commit(),
        "command": "python tests/benchmarks/real_advice.py",
        "runs": {},
    }
    for name, run in runs():
        report = build_report(run, measure(run), Settings())
        results["runs"][name] = {
            "level": report.trust.level,
            "step_ns": report.measured.step.known("time_ns"),
            "verdict": report.headline.verdict,
            "advice": [
                {
                    "rule": one.rule,
                    "impact": one.impact,
                    "title": one.title,
                    "most_share": one.saves.high_share if one.saves else None,
                }
                for one in report.advice
            ],
            "skipped": {one.rule: one.reason for one in report.skipped},
            "quiet": report.quiet,
        }
    RESULTS.write_text(json.dumps(results) + "\n")
    return results


def table(results: dict[str, Any]) -> str:
    """The results as text: runs that can be judged, and how many cannot."""
    judged = {name: one for name, one in results["runs"].items() if one["level"] != "unjudgeable"}
    lines = ["run                                            step ms  advice"]
    for name, one in judged.items():
        said = ", ".join(f"{each['rule']} {each['impact']} {100 * each['most_share']:.0f} %" for each in one["advice"])
        lines.append(f"{name[:46]:46s} {one['step_ns'] / 1e6:7.1f}  {said or 'none'}")
    others = len(results["runs"]) - len(judged)
    lines += ["", f"{others} others cannot be judged: they have no steps, or fewer than three, or no kernels"]
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "rules")
