"""Whether the first recommendation is right on fully_shard runs with a planted fault, and none is made of healthy ones.

    python tests/benchmarks/planted_fsdp.py            record what is missing, print the table
    python tests/benchmarks/planted_fsdp.py --again    read what was recorded anew, with the code as it is
    python tests/benchmarks/planted_fsdp.py --table    print the table of what there is

The scripts in sharded/ each have one fault, and none with MENDED set; sizes are drawn by SEED. Each side is recorded
with `dptune profile` on two CPU ranks over gloo, and read with `dptune report`. A side is right where the first
recommendation is one of the expected rules; a mended or healthy one where none of medium or high impact is made with
medium or high confidence. A side of an unjudgeable report without recommendations counts for neither: on a machine
whose cores other work takes, none is made on speed, so the rest of it should be idle. Raw results stand in
results/planted_fsdp.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "planted_fsdp.json"
_NOT_JUDGED = "not judged"
DPTUNE = (sys.executable, "-m", "dptune")


class Case(NamedTuple):
    """A script, the rules of which one should come first, and the seed of its sizes."""

    script: str
    rules: tuple[str, ...] = ()
    seed: int = 1
    kind: str = ""


PLANTED = {
    "each layer a unit": Case("units_of_layers", ("DP205",)),
    "each micro-batch reduced": Case("every_micro_batch", ("DP102",)),
    "norms of gathered weights": Case("norms_of_all_weights", ("DP105",)),
    "weights in bfloat16": Case("weights_of_16_bits", ("DP406",)),
    "no workers": Case("starved", ("DP501",)),
    "checkpoints without need": Case("recomputed", ("DP803",)),
    "gathered although replicas fit": Case("gathered_for_nothing", ("DP204",)),
    "a late rank": Case("late_rank", ("DP701",)),
}
HEALTHY = {
    f"healthy {kind}": Case("well", seed=seed, kind=kind)
    for seed, kind in enumerate(("convolutions", "transformer", "perceptron", "recurrent"), start=2)
}


def sides() -> Iterator[tuple[str, str, Case]]:
    """Name, side and case of every recording."""
    yield from ((name, "fault", case) for name, case in PLANTED.items())
    yield from ((name, "healthy", case) for name, case in HEALTHY.items())
    yield from ((name, "mended", case) for name, case in PLANTED.items())


def recorded(case: Case, side: str, work: Path) -> Path:
    """The recording of one side."""
    folder = work / f"{case.script}-{case.kind or side}-{case.seed}"
    if not (folder / "run.json").exists():
        settings = {"SEED": str(case.seed), "KIND": case.kind, **({"MENDED": "1"} if side == "mended" else {})}
        words = (*DPTUNE, "profile", "-q", "--run-dir", str(folder), "--nproc-per-node", "2")
        subprocess.run(
            [*words, str(HERE / "sharded" / f"{case.script}.py")],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        )
    return folder


def read(folder: Path) -> dict[str, Any]:
    """What the report recommends, in its order."""
    words = (*DPTUNE, "report", str(folder), "--no-cache", "--format", "json")
    report = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    kept = ("rule", "impact", "confidence", "title")
    made = [{name: advice[name] for name in kept} | {"saves": advice.get("saves")} for advice in report["advice"]]
    return {"advice": made, "data_quality": report["trust"]["level"]}


def is_right(row: dict[str, Any]) -> bool:
    """Whether the first recommendation is expected; or that nothing that matters is recommended."""
    if row["side"] == "fault":
        return bool(row["advice"]) and row["advice"][0]["rule"] in row["rules"]
    return not [advice for advice in row["advice"] if "low" not in (advice["impact"], advice["confidence"])]


def _judged(row: dict[str, Any]) -> str:
    if row["data_quality"] == "unjudgeable" and (row["side"] != "fault" or not row["advice"]):
        return _NOT_JUDGED
    return "yes" if is_right(row) else "no"


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each side."""
    yield "| script | side | expected | recommended, in order (impact, confidence) | right |"
    yield "|---|---|---|---|---|"
    for row in rows:
        made = ", ".join(f"{one['rule']} ({one['impact']}, {one['confidence']})" for one in row["advice"]) or "nothing"
        expected = ", ".join(row["rules"]) if row["side"] == "fault" else "nothing"
        yield f"| {row['name']} | {row['side']} | {expected} | {made} | {_judged(row)} |"
    for side in ("fault", "mended", "healthy"):
        verdicts = [_judged(row) for row in rows if row["side"] == side]
        judged = [verdict for verdict in verdicts if verdict != _NOT_JUDGED]
        yield f"\n{side}: {judged.count('yes')} of {len(judged)} right"


def main() -> None:
    """Record, read, print."""
    known = json.loads(RESULTS.read_text())["sides"] if RESULTS.exists() else []
    if "--table" not in sys.argv:
        work = Path(os.environ.get("DPTUNE_BENCH", tempfile.gettempdir())) / "dptune-planted-fsdp"
        work.mkdir(parents=True, exist_ok=True)
        done = {} if "--again" in sys.argv else {(row["name"], row["side"]): row for row in known}
        known = []
        for name, side, case in sides():
            row = done.get((name, side))
            if row is None:
                row = {"name": name, "side": side, "rules": list(case.rules), "seed": case.seed}
                row |= read(recorded(case, side, work))
                print(name, side, [advice["rule"] for advice in row["advice"]], file=sys.stderr)
            known.append(row)
            RESULTS.write_text(json.dumps({"sides": known}, indent=1) + "\n")
    print("\n".join(table(known)))


if __name__ == "__main__":
    main()
