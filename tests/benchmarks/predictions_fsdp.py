"""How good `dptune whatif` is for fully_shard: changes predicted from a recording, written down, and only then run.

    python tests/benchmarks/predictions_fsdp.py                predict and run what is missing, print the table
    python tests/benchmarks/predictions_fsdp.py --commit       the same; each prediction is committed before it is run
    python tests/benchmarks/predictions_fsdp.py --table        print the table of what there is (or of FILE)

Scripts, networks, trials and columns are those of predictions.py; SHARD is how many blocks a unit has (0: DDP).
`scales` has 144 blocks, `slabs` three, `poet` six. It resumes where it stopped; raw results stand in
results/predictions_fsdp.json, those of the first round, of other sizes, in results/predictions_fsdp_first.json. The
rest of the machine should be idle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_line import main
from predictions import SHAPED, SMALL_SLABS, WIRES, Case, Round, collect, table

RESULTS = Path(__file__).parent / "results" / "predictions_fsdp.json"
KEPT, HALVED, QUIET = "fsdp.reshard_after_forward=false", "fsdp.reduce_dtype=bf16", "fsdp.no_sync=true"
HALVES, EACH, NONE = "env.SHARD=2", "env.SHARD=1", "env.SHARD=0"  # blocks of a unit
LINE, WIDE, TALL = "--model poet --batch 32", "--model slabs --batch 320", "--model scales --batch 200"
SMALL_LINE = "--model poet --batch 12"
ALL, SLOW = tuple(WIRES), ("200 Mbit/s",)
CASES = {  # as in predictions.py, IN_A_ROW of them, by wire, share recordings
    "poet, 3 units, kept gathered": Case(LINE, HALVES, KEPT, wires=ALL),
    "poet, 3 units, 6 units": Case(LINE, HALVES, EACH, "fsdp.units=6", wires=SHAPED),
    "poet, no_sync of 3": Case("--model poet --batch 16 --accumulate 3", EACH, QUIET, wires=SHAPED),
    "poet, 3 units, DDP": Case(LINE, HALVES, NONE, "wrapper=ddp", wires=SLOW),
    "slabs, 2 units": Case(WIDE, EACH, HALVES, "fsdp.units=2", wires=SLOW),
    "slabs, batch 480": Case(WIDE, EACH, "loader.batch_size=480", wires=SLOW),
    "slabs, no_sync of 2": Case("--model slabs --batch 192 --accumulate 2", EACH, QUIET, wires=SHAPED),
    "slabs, reduced in fp16": Case(WIDE, EACH, "fsdp.reduce_dtype=fp16", wires=ALL),
    "poet, from DDP": Case(LINE, NONE, HALVES, "wrapper=fsdp fsdp.units=3", wires=SHAPED),
    "scales, from DDP": Case(TALL, NONE, "env.SHARD=36", "wrapper=fsdp fsdp.units=4", wires=SLOW),
    "scales, 8 units": Case(TALL, "env.SHARD=36", "env.SHARD=18", "fsdp.units=8", wires=SHAPED),
    "scales, half the batch": Case(TALL, "env.SHARD=36", "loader.batch_size=100", wires=ALL),
    "4 ranks, poet, kept gathered": Case(SMALL_LINE, HALVES, KEPT, ranks=4, wires=SLOW),
    "4 ranks, poet, 6 units": Case(SMALL_LINE, HALVES, EACH, "fsdp.units=6", ranks=4, wires=SLOW),
    "4 ranks, slabs, reduced in bf16": Case(SMALL_SLABS, EACH, HALVED, ranks=4, wires=SLOW),
    "4 ranks, poet, no_sync of 2": Case(f"{SMALL_LINE} --accumulate 2", EACH, QUIET, ranks=4, wires=SLOW),
}
ROUND = Round(CASES, RESULTS, "python tests/benchmarks/predictions_fsdp.py")


def collected(work: Path, commit: bool) -> dict[str, Any]:
    """The cases of this round."""
    return collect(work, commit, ROUND)


if __name__ == "__main__":
    main(
        __doc__,
        RESULTS,
        collected,
        table,
        "predictions-fsdp",
        {"commit": "commit each prediction, before it is run"},
    )
