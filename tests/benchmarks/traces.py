"""What traces without facts show by themselves: rules, inferred facts, FLOPs, and silence where nothing is wrong.

    python tests/benchmarks/traces.py                read the recordings, then print the tables (make bench-traces)
    python tests/benchmarks/traces.py --table        print the tables of what there is

Public traces are those of real_advice.py (make bench-rules), whose results the tables quote. Here the recordings of the
repository are read with and without their facts, models are counted by hand, and what ../shared/findings holds is
reported on.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import real_advice
from command_line import main
from expert import FIRST_CAUSES, HEALTHY, Opinion
from overhead import commit, machine

from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.measure import measure
from dptune.trace import load

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results" / "traces.json"
FINDINGS = ROOT / ".." / "shared" / "findings" / "traces"
LOUD = ("medium", "high")
# FLOPs of a step by hand: 2 per multiply-add; the first layer needs no gradient of its input.
BLOCK = "(32*3*32 + 32*32 + 2*32*4*32)"  # weights of a block: queries, keys and values, output, both of the MLP
TRANSFORMER = f"3 * (2 * (2*32*{BLOCK} + 4*2*16*16*32) + 2*32*32*1024)"
BY_HAND = {
    "mlp": "2 * 32 * (3 * (24*48 + 48*48 + 48*10) - 24*48)",
    "convolutions": "2*2*(2 * 8*10*3*8*25 + 3 * (8*10*8*8*9 + 8*10*8*4*16 + 20*4*6*7)) + 2*2*3*6*10",
    "transformer": TRANSFORMER,
    "checkpointed": f"{TRANSFORMER} + 2 * (2*32*{BLOCK} + 4*2*16*16*32)",
    "grouped": "2 * 2 * 2*7*7*(16*2*9)",
}


def collect(_: Path) -> dict[str, Any]:
    """Read all recordings, count the models, and report on what must stay quiet: it takes some minutes."""
    sys.path.insert(0, str(ROOT))
    results: dict[str, Any] = {
        "machine": machine(),
        "commit": commit(),
        "command": "python tests/benchmarks/traces.py",
        "inferred": dict(_inferred()),
        "flops": _counted(),
        "reports": {},
    }
    for path in [*sorted(FINDINGS.iterdir()), *(ROOT / name for name in HEALTHY)]:
        run = load([path])
        report = build_report(run, measure(run), Settings())
        results["reports"][path.name.removesuffix(".json.gz")] = {
            "level": report.trust.level,
            "verdict": report.headline.verdict,
            "advice": [{"rule": each.rule, "impact": each.impact, "title": each.title} for each in report.advice],
            "skipped": {each.rule: each.reason for each in report.skipped},
            "quiet": report.quiet,
        }
    RESULTS.write_text(json.dumps(results) + "\n")
    return results


def _inferred() -> Iterator[tuple[str, list[list[Any]]]]:
    """By recording: name of the fact, confidence, whether it is what was recorded, and both where it is not."""
    inferring = importlib.import_module("tests.measure.test_inferred")
    for path in inferring.RUNS:
        run, measured = inferring.stripped(path)
        inferring.stripped.cache_clear()
        found = inferring.values(measured.inferred, run.facts[min(run.facts)])
        yield (
            path.name,
            [
                [name, confidence, mine == true, "" if mine == true else f"{mine}, recorded {true}"]
                for name, confidence, mine, true in found
            ],
        )


def _counted() -> dict[str, dict[str, float]]:
    """FLOPs of a step of each model: ours, of a trace, and those of torch's counter."""
    script = ROOT / "tests" / "measure" / "counted_models.py"
    with tempfile.TemporaryDirectory() as folder:
        quietly = {"stdout": subprocess.DEVNULL, "env": {**os.environ, "KINETO_LOG_LEVEL": "5"}}
        subprocess.run([sys.executable, script, folder], check=True, **quietly)
        torchs = json.loads(Path(folder, "counts.json").read_text())
        return {
            name: {"ours": measure(load([Path(folder, f"{name}.json")])).efficiency.flops_per_step, "torch": count}
            for name, count in torchs.items()
            if name in BY_HAND
        }


def table(results: dict[str, Any]) -> str:
    """The four tables."""
    before, now = (json.loads(path.read_text()) for path in (real_advice.BEFORE, real_advice.RESULTS))
    parts = (
        _rules(before["runs"], now["runs"], results["reports"]),
        _facts(results["inferred"]),
        _flops(results["flops"]),
        _utilization(now["runs"]),
        _quiet(now["runs"], results["reports"]),
    )
    return "\n\n".join("\n".join(part) for part in parts)


def _rules(before: dict[str, Any], now: dict[str, Any], reports: dict[str, Any]) -> Iterator[str]:
    yield "trace                                 rules then, now, of all  engineer | dptune | verdict"
    former, todays = [], []
    for name, run in {**now, **reports}.items():
        if run["level"] == "unjudgeable":
            continue
        every = _every_rule(run)
        could = len(every) - len(run["skipped"])
        then = "-"
        if name in before:
            old = _every_rule(before[name])
            former.append(len(before[name]["skipped"]))
            todays.append(len(old & run["skipped"].keys()) + len(old - every))
            then = f"{len(old) - former[-1]}, {len(old) - todays[-1]}"
        elif name not in FIRST_CAUSES:
            continue
        opinion = FIRST_CAUSES.get(name)
        words = f"{opinion.said} | {_first(run)} | {_verdict(opinion, run)}" if opinion else f"- | {_first(run)} |"
        yield f"{_short(name):38s} {then:>7s}, {could} of {len(every)}  {words}"
    yield f"rules of 650eebf that could not run: median {_median(former)} then, {_median(todays)} now"
    judged = {name: run for name, run in {**now, **reports}.items() if name in FIRST_CAUSES and FIRST_CAUSES[name].rule}
    firsts = sum(FIRST_CAUSES[name].rule in _rules_of(run)[:1] for name, run in judged.items())
    thirds = sum(FIRST_CAUSES[name].rule in _rules_of(run)[:3] for name, run in judged.items())
    yield f"the engineer's first cause is first on {firsts} of {len(judged)}, among the first three on {thirds}"


def _every_rule(run: dict[str, Any]) -> set[str]:
    return {*run["quiet"], *run["skipped"], *_rules_of(run)}


def _rules_of(run: dict[str, Any]) -> list[str]:
    return [each["rule"] for each in run["advice"]]


def _first(run: dict[str, Any]) -> str:
    return ", ".join(_rules_of(run)[:3]) or "none"


def _verdict(opinion: Opinion, run: dict[str, Any]) -> str:
    """What was judged by hand, as long as the findings are those that were judged."""
    found = tuple(_rules_of(run))
    return opinion.verdict if found == opinion.judged else f"findings differ from those judged: {', '.join(found)}"


def _short(name: str) -> str:
    return name.removesuffix(".json.gz").removesuffix(".pt.trace")[:38]


def _median(counts: list[int]) -> int:
    return sorted(counts)[len(counts) // 2]


def _facts(inferred: dict[str, list[list[Any]]]) -> Iterator[str]:
    yield "recording                            inferred  right  wrong"
    for name, values in inferred.items():
        wrong = [f"{fact} ({confidence}): {both}" for fact, confidence, right, both in values if not right]
        yield f"{name[:36]:36s} {len(values):8d} {len(values) - len(wrong):6d}  {'; '.join(wrong)[:90]}".rstrip()
    every = [value for values in inferred.values() for value in values]
    for confidence in ("high", "medium", "low"):
        count = Counter(right for _, sure, right, _ in every if sure == confidence)
        yield f"{confidence} confidence: {count[True]} of {count.total()} right"
    yield f"all: {sum(right for _, _, right, _ in every)} of {len(every)} right, {len(inferred)} recordings"


def _flops(counted: dict[str, dict[str, float]]) -> Iterator[str]:
    yield "model           by hand      dptune       torch's counter"
    for name, formula in BY_HAND.items():
        by_hand = eval(formula)
        yield f"{name:13s} {by_hand:10,d} {counted[name]['ours']:11,.0f} {counted[name]['torch']:15,.0f}   {formula}"


def _utilization(runs: dict[str, Any]) -> Iterator[str]:
    yield "trace                                  device                  model FLOPs   step ms  MFU    HFU    peak"
    without: Counter[str] = Counter()
    for name, run in runs.items():
        found = run["efficiency"]
        if found.get("flops_per_step") is None:
            without[found["why"].partition(":")[0]] += 1
            continue
        device = ", ".join(found["devices"])[:22] or "not named"
        model = found["model_flops_per_step"]
        reached = [f"{100 * share:.1f} %" if (share := found[of]) else "-" for of in ("mfu", "hfu")]
        peaks = ", ".join(f"{of} {at / 1e12:,.5g}" for of, at in found["dtypes"].items() if at)
        least = "at least; " if found["at_least"] else ""
        yield (
            f"{_short(name):38s} {device:22s} {f'{model / 1e9:,.1f} G' if model else '-':>12s} "
            f"{(found['step_ns'] or 0) / 1e6:9.1f}  {reached[0]:6s} {reached[1]:6s} "
            f"{least}{f'{peaks} TFLOP/s' if found['mfu'] else found['why'][:70]}"
        )
    for why, number in without.most_common():
        yield f"neither FLOPs nor MFU on {number}: {why}"


def _quiet(runs: dict[str, Any], reports: dict[str, Any]) -> Iterator[str]:
    yield "healthy, inference or without steps      above low impact"
    healthy = {name: reports[Path(name).name] for name in (*HEALTHY, "made_undamaged_baseline")}
    unjudged = {name: run for name, run in runs.items() if run["level"] == "unjudgeable"}
    for name, run in {**healthy, **unjudged}.items():
        loud = [f"{each['rule']} {each['impact']}" for each in run["advice"] if each["impact"] in LOUD]
        yield f"{_short(name):40s} {', '.join(loud) or 'nothing'}"


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "traces")
