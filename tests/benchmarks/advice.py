"""Whether the advice names the fault that was planted, says nothing of healthy runs, and keeps its promises.

    python tests/benchmarks/advice.py                run what is missing, then print the tables (make advice-bench)
    python tests/benchmarks/advice.py --table        print the tables of what there is

Scripts in the shapes people write (scripts/: a plain loop, a class, transformers.Trainer, Lightning), each with one
fault or two, and healthy ones. How large everything is and how bad the fault is draws a seed. A script is recorded as
`train.py` with `dptune profile`, between nodes with `dptune links` beside it, and `dptune report` is asked. Then
`dptune verify` runs the advice itself where it can be set from outside, and the mended script where it cannot: right
after a fresh recording, whose advice is the promise. Where the script as it is took a tenth more or less in the trials
than in that recording, the machine became another one meanwhile, and it is done once more; both are kept. What it gave
is of the step that is promised, mostly the median one; the verdict of `dptune verify`, by means, stands beside it.
Whatever else was predicted of that recording is run, too, whether it is the fault's or not.

As root (two nodes: tests/testbed/network.py). It resumes where it stopped, a script at a time; raw results stand in
results/advice.json. The rest of the machine should be idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from command_line import main
from overhead import commit, machine
from wired import (
    DPTUNE,
    FAST,
    HERE,
    SLOW,
    is_whole,
    medians,
    ranks_a_node,
    record,
    settle,
    shaped,
    swept,
    times_as_long,
    verified,
)

RESULTS = HERE / "results" / "advice.json"
WIRES = {"slow": SLOW, "fast": FAST, "": None}  # 200 Mbit/s and 1 ms; 1 Gbit/s and 0.1 ms; one host
WINDOWS = ("--warmup", "3", "--untraced", "30", "--light", "20", "--detailed", "0")
FURTHER = ("--repeat", "3")  # of each faulty script, so that what is promised rests on several processes
LIMIT = ("--within", "5%", "--time-limit", "5m")
MOVED = 0.1
DRAW = 7  # another number draws all sizes anew: what rules were mended by is no test of them
REPEATS = 5  # of each healthy script, with other sizes each time


class Case(NamedTuple):
    """A script, the faults that are planted in it, and for each the rules of which one has to speak of it."""

    script: str
    faults: str = ""
    rules: tuple[tuple[str, ...], ...] = ()
    model: str = "mlp"
    wire: str = ""
    ranks: int = 2


FAULTY = {
    "buckets too small": Case("plain", "small-buckets", (("DP101",),), "many", "slow"),
    "buckets too large": Case("trainer", "large-buckets", (("DP101",),), "wide", "slow"),
    "accumulation without no_sync": Case("plain", "no-no-sync", (("DP102",),), wire="slow"),
    "no workers": Case("hf", "no-workers", (("DP501",),), ranks=1),
    "slow transform": Case("fit", "slow-transform", (("DP501",),)),
    "slow collate": Case("trainer", "slow-collate", (("DP501",),)),
    "slow storage": Case("plain", "storage", (("DP501",),), ranks=1),
    "straggler by input": Case("plain", "late-input", (("DP701", "DP501"),)),
    "straggler by more work": Case("trainer", "more-work", (("DP701",),), "transformer"),
    "straggler by slower compute": Case("plain", "slower-compute", (("DP701",),)),
    "gradients too wide": Case("plain", "wide-gradients", (("DP103",),), wire="slow"),
    "tiny batch": Case("trainer", "tiny-batch", (("DP301",),), "shared", "slow"),
    "unused parameters searched": Case("fit", "find-unused", (("DP106",),), "blocks"),
    "unfused optimizer": Case("trainer", "unfused", (("DP603",),), "blocks"),
    "gathers in each step": Case("hf", "gathers", (("DP105",),), "transformer"),
    "buffers sent": Case("plain", "buffers", (("DP104",),), wire="fast"),
    "rank 0 feeds all": Case("plain", "rank-0-feeds", (("DP105",),), "shared", "slow"),
    "garbage": Case("trainer", "gc", (("DP602",),), "transformer"),
    "double precision": Case("plain", "fp64", (("DP402",),)),
    "no sampler": Case("trainer", "no-sampler", (("DP504",),)),
    "placement": Case("mesh", "placement", (("DP203",),), wire="slow", ranks=4),
    "storage, gathers": Case("plain", "storage+gathers", (("DP501",), ("DP105",))),
    "no_sync, buffers": Case("plain", "no-no-sync+buffers", (("DP102",), ("DP104",)), wire="fast"),
    "optimizer, garbage": Case("trainer", "unfused+gc", (("DP603",), ("DP602",)), "blocks"),
    "parameters, gathers": Case("trainer", "find-unused+gathers", (("DP106",), ("DP105",)), "blocks"),
    "straggler, gathers": Case("plain", "straggler+gathers", (("DP701",), ("DP105",))),
}
HEALTHY = {
    "plain mlp": Case("plain"),
    "plain mlp, one process": Case("plain", ranks=1),
    "plain conv": Case("plain", model="conv"),
    "plain transformer": Case("plain", model="transformer"),
    "class mlp": Case("trainer"),
    "class conv, one process": Case("trainer", model="conv", ranks=1),
    "class, 1 Gbit/s": Case("trainer", model="shared", wire="fast"),
    "Trainer mlp": Case("hf"),
    "Trainer transformer": Case("hf", model="transformer"),
    "Lightning mlp": Case("fit"),
    "Lightning conv": Case("fit", model="conv"),
    "Lightning transformer, one process": Case("fit", model="transformer", ranks=1),
}


def recorded(place: Path, case: Case, seed: int, links: Path | None, further: Sequence[str] = ()) -> Path:
    """Record a case's script in a folder of its own, and time it in further processes."""
    folder = place / "run"
    if is_whole(folder):
        return folder
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copy(HERE / "scripts" / f"{case.script}.py", place / "train.py")
    for file in ("parts.py", "run.sh"):
        shutil.copy(HERE / "scripts" / file, place)
    settings = {"SEED": seed, "FAULTS": case.faults, "MODEL": case.model}
    words = [word for name, value in settings.items() if value != "" for word in ("--set", f"env.{name}={value}")]
    if case.wire:
        script = ["sh", "run.sh", "train.py"]
    else:
        script = [*(("--nproc-per-node", str(case.ranks)) if case.ranks > 1 else ()), "train.py"]
    record(folder, [*WINDOWS, *further, *words, *script])
    if links is not None:
        shutil.copy(links, folder / "links.json")
    return folder


def told(folder: Path) -> dict[str, Any]:
    """The measured step, and the advice that the report gives of a recording, in its order."""
    words = [*DPTUNE, "report", str(folder), "--format", "json", "--no-cache"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
    kept = ("rule", "kind", "impact", "confidence", "title", "numerics", "changes", "saves")
    report = json.loads(done.stdout)
    advice = [{name: one[name] for name in kept} for one in report["advice"]]
    return {"commit": commit(), "measured_ns": report["measured"]["step"]["time_ns"], "advice": advice}


def further(case: Case, advice: Sequence[dict[str, Any]]) -> list[str]:
    """The rules of advice beside that on the first fault whose saving was predicted, and which can be set."""
    own = next((one["rule"] for one in advice if one["rule"] in case.rules[0]), None)
    told = [one["rule"] for one in advice if one["changes"] and (one["saves"] or {}).get("basis") == "replayed"]
    return [rule for rule in dict.fromkeys(told) if rule != own]


def proven(folder: Path, case: Case, advice: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What the advice on the first fault gives, or mending that where it cannot be set from outside."""
    own = next((one for one in advice if one["rule"] in case.rules[0]), None)
    if own is not None and own["changes"]:
        return {"by": own["rule"], **verified(folder, "--advice", own["rule"], *LIMIT)}
    if own is not None and own["kind"] != "time":
        return None  # no promise was made
    return {"by": "mended", **verified(folder, "--set", f"env.MENDED={case.faults.split('+')[0]}", *LIMIT)}


def seed_of(name: str, number: int) -> int:
    """The same in each run of the benchmark, and another one for each script and repeat."""
    return zlib.crc32(f"{DRAW} {name} {number}".encode())


@contextlib.contextmanager
def nodes_of(wire: str, work: Path) -> Iterator[Path | None]:
    """What ranks run on, and the sweep of its links; None on one host."""
    with shaped(WIRES[wire]) if wire else contextlib.nullcontext([]) as nodes:
        settle(nodes)
        if wire:
            yield swept(nodes, work / f"links-{wire}")
            return
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        yield None
        os.environ.pop("GLOO_SOCKET_IFNAME")


def collect(work: Path) -> dict[str, Any]:
    """What is missing, each written down as soon as it is known."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"faulty": {}, "healthy": {}}
    results.update(machine=machine(), command="python tests/benchmarks/advice.py")
    os.environ.update(OMP_NUM_THREADS="1")
    for wire in WIRES:
        faulty = [(name, case) for name, case in _of(FAULTY, wire) if _is_open(case, results["faulty"].get(name, {}))]
        healthy = [one for one in _of(HEALTHY, wire) if len(results["healthy"].get(one[0], [])) < REPEATS]
        if faulty or healthy:
            with nodes_of(wire, work) as links:
                for name, case in faulty:
                    _faulty(results, work, name, case, links)
                for name, case in healthy:
                    _healthy(results, work, name, case, links)
    return results


def _of(cases: dict[str, Case], wire: str) -> list[tuple[str, Case]]:
    return [(name, case) for name, case in cases.items() if case.wire == wire]


def _recorded(work: Path, name: str, case: Case, links: Path | None) -> Path:
    ranks_a_node(case.ranks // 2)
    links = links if case.ranks == 2 else None
    return recorded(work / name.replace(" ", "-"), case, seed_of(name, 0), links, FURTHER)


def _faulty(results: dict[str, Any], work: Path, name: str, case: Case, links: Path | None) -> None:
    """Record, ask, and run; once more where the machine became another."""
    own = results["faulty"].get(name, {})
    while _unproven(own):
        moved = {"moved": own} if "found" in own else {}
        shutil.rmtree(work / name.replace(" ", "-"), ignore_errors=True)
        folder = _recorded(work, name, case, links)
        own = {"seed": seed_of(name, 0), **moved, **told(folder)}
        own["found"] = proven(folder, case, own["advice"])
        results["faulty"][name] = own
        _keep(results)
        print(_row(name, case, own), file=sys.stderr, flush=True)
    for rule in _further_unproven(case, own):
        found = verified(_recorded(work, name, case, links), "--advice", rule, *LIMIT)
        own.setdefault("others", {})[rule] = {"by": rule, **found}
        _keep(results)
        print(_other_row(own, rule), file=sys.stderr, flush=True)


def _further_unproven(case: Case, own: dict[str, Any]) -> list[str]:
    return [rule for rule in further(case, own["advice"]) if rule not in own.get("others", {})]


def _is_open(case: Case, own: dict[str, Any]) -> bool:
    return _unproven(own) or bool(_further_unproven(case, own))


def _unproven(own: dict[str, Any]) -> bool:
    """Whether what the advice gives is still to be found: no trials yet, or of what had become another machine."""
    return "found" not in own or (_moved(own) and "moved" not in own)


def _moved(own: dict[str, Any]) -> bool:
    """Whether the script as it is took a tenth more or less than when it was recorded, of those that were proven."""
    drift = _drift(own)
    return drift is not None and abs(drift - 1) > MOVED


def _drift(own: dict[str, Any]) -> float | None:
    """How many times as long as it was recorded the script as it is took in the trials."""
    steps = medians(own.get("found") or {})
    return steps and steps[0] / own["measured_ns"]


def _healthy(results: dict[str, Any], work: Path, name: str, case: Case, links: Path | None) -> None:
    own = results["healthy"].setdefault(name, [])
    for number in range(len(own), REPEATS):
        seed = seed_of(name, number)
        ranks_a_node(case.ranks // 2)
        folder = recorded(work / f"{name}-{number}".replace(" ", "-").replace("/", "-"), case, seed, links)
        own.append({"seed": seed, **told(folder)})
        _keep(results)
        said = [_said(one) for one in own[-1]["advice"]]
        print(f"{name} {number}: {', '.join(said) or 'nothing'}", file=sys.stderr, flush=True)


def _keep(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results) + "\n")


def places(case: Case, advice: Sequence[dict[str, Any]]) -> list[int | None]:
    """At which place, from 1 on, the advice stands that speaks of each planted fault; None where none does."""
    rules = [one["rule"] for one in advice]
    return [next((n for n, rule in enumerate(rules, 1) if rule in own), None) for own in case.rules]


def promise(advice: Sequence[dict[str, Any]], rules: Sequence[str]) -> dict[str, Any] | None:
    """What the first advice of these rules promises."""
    return next((one["saves"] for one in advice if one["rule"] in rules), None)


def gave(found: dict[str, Any], saves: dict[str, Any] | None) -> float | None:
    """The part of the time of a sample that was saved, of the step that is promised: the median or the mean one."""
    of_means = saves is not None and saves.get("mean_step_ms") is not None
    times = times_as_long(found, "step_ns" if of_means else "median_step_ns")
    samples = [_samples(found, side) for side in "AB"]
    if times is None:
        return None
    grown = samples[1] / samples[0] if all(samples) else 1.0
    return 1 - times / grown


def _samples(found: dict[str, Any], side: str) -> float:
    """The global batch of a side; 0 where no trial tells."""
    return median([one["samples_per_step"] or 0 for one in found.get("trials", []) if one["side"] == side] or [0])


def kept(saves: dict[str, Any] | None, saved: float | None) -> bool | None:
    """Whether what was measured lies in what was promised; of a bound, whether it is no more. None: no promise."""
    if saves is None or saved is None:
        return None
    least = saves["low_share"] if saves["basis"] != "bound" else -1.0
    return bool(least <= saved <= saves["high_share"])


def _said(advice: dict[str, Any]) -> str:
    return f"{advice['rule']} {advice.get('impact') or advice['severity']}"  # rows of before have the latter


def _row(name: str, case: Case, own: dict[str, Any]) -> str:
    said = ", ".join(_said(one) for one in own["advice"][:4])
    where = ", ".join("-" if place is None else str(place) for place in places(case, own["advice"]))
    judged = _judged(promise(own["advice"], case.rules[0]), own.get("found") or {})
    if _moved(own):
        judged += f" (as it is took {_drift(own):.2f} times what was recorded)"
    return f"{name:29s} {case.script:8s} {where:5s} {said:46s} {judged}"


def _other_row(own: dict[str, Any], rule: str) -> str:
    place = next(n for n, one in enumerate(own["advice"], 1) if one["rule"] == rule)
    judged = _judged(promise(own["advice"], [rule]), own["others"][rule])
    return f"{'  also predicted':29s} {'':8s} {place:<5d} {_said(own['advice'][place - 1]):46s} {judged}"


def _judged(saves: dict[str, Any] | None, found: dict[str, Any]) -> str:
    saved = gave(found, saves)
    promised = "-"
    if saves is not None:
        low, high = 100 * saves["low_share"], 100 * saves["high_share"]
        promised = f"{low:.0f} to {high:.0f} %" if saves["basis"] != "bound" else f"at most {high:.0f} %"
    measured = "-" if saved is None else f"{100 * saved:.0f} % ({found['by']}, {found['outcome']})"
    right = {True: "kept", False: "broken", None: ""}[kept(saves, saved)]
    return f"{promised:13s} {measured:26s} {right}"


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    faulty = results["faulty"]
    commits = dict.fromkeys(
        one["commit"] for one in [*faulty.values(), *(one for own in results["healthy"].values() for one in own)]
    )
    lines = [f"machine: {results['machine']}; commits: {', '.join(commits)}", ""]
    lines.append(
        "planted                       script   place said                                           promised      gave"
    )
    for name, own in faulty.items():
        if "moved" in own:
            lines.append(_row(f"  {name}", FAULTY[name], own["moved"]))
        lines.append(_row(name, FAULTY[name], own))
        lines += [_other_row(own, rule) for rule in own.get("others", {})]
    first = [1 in places(FAULTY[name], own["advice"]) for name, own in faulty.items()]
    three = [
        all(place is not None and place <= 3 for place in places(FAULTY[name], own["advice"]))
        for name, own in faulty.items()
    ]
    lines += [
        "",
        f"a planted fault first: {sum(first)} of {len(first)}; all among the first three: {sum(three)}",
    ]
    lines += _promises(faulty)
    lines += ["", "healthy                             runs  said above a note, by run"]
    for name, own in results["healthy"].items():
        loud = [
            [_said(one) for one in run["advice"] if (one.get("impact") or one["severity"]) not in ("low", "note")]
            for run in own
        ]
        lines.append(f"{name:35s} {len(own):4d}  {'; '.join(', '.join(one) for one in loud if one) or 'nothing'}")
    return "\n".join(lines)


def _promises(faulty: dict[str, Any]) -> Iterator[str]:
    """How many promises were kept, and how wide they were."""
    made = [
        (saves, kept(saves, gave(found, saves)), _moved(own))
        for name, own in faulty.items()
        for rules, found in _runs(FAULTY[name], own)
        if (saves := promise(own["advice"], rules)) is not None
    ]
    for basis in ("replayed", "bound"):
        judged = [one for one in made if one[0]["basis"] == basis and one[1] is not None]
        if judged:
            words = "inside the interval" if basis == "replayed" else "no more than the bound"
            wide = median(saves["high_share"] - saves["low_share"] for saves, _, _ in judged)
            width = f", median width {100 * wide:.0f} % of the step" if basis == "replayed" else ""
            stayed = [right for _, right, moved in judged if not moved]
            also = f"; of those on a machine that stayed the same {sum(map(bool, stayed))} of {len(stayed)}"
            yield f"{basis}: {sum(bool(right) for _, right, _ in judged)} of {len(judged)} {words}{also}{width}"


def _runs(case: Case, own: dict[str, Any]) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """The trials of the first fault's advice, and of whatever else was predicted, with the rules that they are of."""
    yield case.rules[0], own.get("found") or {}
    yield from (([rule], found) for rule, found in own.get("others", {}).items())


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "advice")
