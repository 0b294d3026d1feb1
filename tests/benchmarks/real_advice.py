"""What every rule says of public traces: read through for plausibility.

    python tests/benchmarks/real_advice.py               report on them, then print the table (make bench-rules)
    python tests/benchmarks/real_advice.py --table       print the table of what there is
    python tests/benchmarks/real_advice.py --before      print what changed since commit 650eebf

Each run of ../shared/real_traces that can be judged is reported on, alone. The share is what the advice can save at
most. The traces stand beside the repository, not in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import main
from overhead import commit, machine
from real_replays import runs

from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.measure import measure
from dptune.measured import CLASSES, Measured

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "real_advice.json"
BEFORE = HERE / "results" / "real_advice_before.json"  # by commit 650eebf, whose advice has severities
TOLD_SHARE = 0.01  # of a step, or of the measured time: smaller changes are not printed


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
            "shares": _shares(report.measured),
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
            "efficiency": _efficiency(report.measured),
        }
    RESULTS.write_text(json.dumps(results) + "\n")
    return results


def _shares(measured: Measured) -> dict[str, float] | None:
    """Each part of the measured time of all ranks, as a share of it; None where it is not accounted for."""
    account = measured.known("account")
    if account is None or not account.window_ns:
        return None
    return {part: getattr(account, part) / account.window_ns for part in CLASSES}


def _efficiency(measured: Measured) -> dict[str, Any]:
    """FLOPs of a step and what share of the peak they reach, where the trace has sizes; else why not."""
    found = measured.known("efficiency")
    if found is None:
        return {"why": measured.missing["efficiency"]}
    known = {name: found.known(name) for name in ("flops_per_step", "model_flops_per_step", "step_ns", "mfu", "hfu")}
    dtypes = {each.dtype: each.known("peak_flops_per_s") for each in found.known("dtypes") or []}
    why = found.missing.get("mfu", "")
    return {**known, "dtypes": dtypes, "at_least": found.lower_bound, "why": why, "devices": _devices(measured)}


def _devices(measured: Measured) -> list[str]:
    return list(dict.fromkeys(name for rank in measured.ranks if (name := rank.known("device_name"))))


def table(results: dict[str, Any]) -> str:
    """The results as text: runs that can be judged, and how many cannot."""
    judged = {name: one for name, one in results["runs"].items() if one["level"] != "unjudgeable"}
    lines = ["run                                            step ms  advice"]
    for name, one in judged.items():
        lines.append(f"{name[:46]:46s} {one['step_ns'] / 1e6:7.1f}  {_advice(one)}")
    others = len(results["runs"]) - len(judged)
    lines += ["", f"{others} others cannot be judged: they have no steps, or fewer than three, or no kernels"]
    return "\n".join(lines)


def _advice(one: dict[str, Any]) -> str:
    """Each rule that fired, with its impact and the upper bound of what it saves; a risk saves nothing."""
    words = [
        f"{each['rule']} {each.get('impact') or each['severity']}"
        + ("" if each["most_share"] is None else f" {100 * each['most_share']:.0f} %")
        for each in one["advice"]
    ]
    return ", ".join(words) or "none"


def changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What differs between two results: step times, shares of the measured time in percent, verdicts and advice."""
    lines = [f"commits: {before['commit']}, {now['commit']}"]
    for name, one in now["runs"].items():
        was = before["runs"][name]
        parts = list(_moved(was, one))
        if parts:
            lines += [name.removesuffix(".json.gz").removesuffix(".pt.trace")[:76], *(f"    {part}" for part in parts)]
    same = len(now["runs"]) - sum(not line.startswith(" ") for line in lines[1:])
    return "\n".join([*lines, f"{same} other runs: no difference of 1 % of a step or more"])


def _moved(was: dict[str, Any], one: dict[str, Any]) -> Iterator[str]:
    """The lines on one run; none where nothing differs by more than rounding."""
    if was["level"] != one["level"]:
        yield f"{was['level']} -> {one['level']}"
    before_ns, now_ns = was["step_ns"], one["step_ns"]
    if before_ns and now_ns and abs(now_ns / before_ns - 1) >= TOLD_SHARE:
        yield f"step {before_ns / 1e6:.2f} -> {now_ns / 1e6:.2f} ms"
    if (was["shares"] is None) != (one["shares"] is None) or (before_ns is None) != (now_ns is None):
        yield "shares no longer shown" if one["shares"] is None else "shares shown"
    shares = [
        f"{part.removesuffix('_ns').replace('_', ' ')} {100 * was['shares'].get(part, 0):.1f} -> {100 * share:.1f}"
        for part, share in (one["shares"] or {}).items()
        if was["shares"] and abs(share - was["shares"].get(part, 0)) >= TOLD_SHARE
    ]
    if shares:
        yield ", ".join(shares)
    if one["level"] != "unjudgeable" and was["verdict"] != one["verdict"]:
        yield f"was: {was['verdict']}"
        yield f"now: {one['verdict']}"
    if [each["rule"] for each in was["advice"]] != [each["rule"] for each in one["advice"]] or any(
        abs((old["most_share"] or 0) - (new["most_share"] or 0)) >= TOLD_SHARE
        for old, new in zip(was["advice"], one["advice"], strict=True)
    ):
        yield f"advice was: {_advice(was)}"
        yield f"advice now: {_advice(one)}"


if __name__ == "__main__":
    if "--before" in sys.argv[1:]:
        print(changes(json.loads(BEFORE.read_text()), json.loads(RESULTS.read_text())))
    else:
        main(__doc__, RESULTS, collect, table, "rules")
