"""How good `dptune whatif` is for fully_shard: changes predicted from a recording, written down, and only then run.

    python tests/benchmarks/predictions_fsdp.py                predict and run what is missing, print the table
    python tests/benchmarks/predictions_fsdp.py --commit       the same; each prediction is committed before it is run
    python tests/benchmarks/predictions_fsdp.py --table        print the table of what there is (or of FILE)

Scripts, networks, trials and columns are those of predictions.py; SHARD is how many blocks a unit has (0: DDP).
`scales` has 144 blocks, `slabs` three, `poet` six. It resumes where it stopped; raw results stand in
results/predictions_fsdp.json, those of the first two rounds, of other sizes and of the model before it was mended, in
results/predictions_fsdp_first.json and results/predictions_fsdp_second.json, and what another machine began of this
round in results/predictions_fsdp_begun.json. The rest of the machine should be idle.
"""

from __future__ import annotations

from pathlib import Path

from predictions import SHAPED, WIRES, Case, Round, run

RESULTS = Path(__file__).parent / "results" / "predictions_fsdp.json"
KEPT, HALVED, QUIET = "fsdp.reshard_after_forward=false", "fsdp.reduce_dtype=bf16", "fsdp.no_sync=true"
HALVES, EACH, NONE = "env.SHARD=2", "env.SHARD=1", "env.SHARD=0"  # blocks of a unit
LINE, WIDE, TALL = "--model poet --batch 26", "--model slabs --batch 320", "--model scales --batch 160"
SMALL_LINE, SMALL_SLABS = "--model poet --batch 12", "--model slabs --batch 224"
LINES, SLABS = f"{SMALL_LINE} --accumulate 3", f"{SMALL_SLABS} --accumulate 2"
ALL, SLOW, FAST = tuple(WIRES), ("200 Mbit/s",), ("1 Gbit/s",)
CASES = {  # as in predictions.py, IN_A_ROW of them, by wire, share recordings
    "poet, from DDP": Case(LINE, NONE, HALVES, "wrapper=fsdp fsdp.units=3", wires=SHAPED),
    "slabs, from DDP": Case(WIDE, NONE, EACH, "wrapper=fsdp fsdp.units=3", wires=SHAPED),
    "poet, 3 units, kept gathered": Case(LINE, HALVES, KEPT, wires=ALL),
    "poet, 3 units, 6 units": Case(LINE, HALVES, EACH, "fsdp.units=6", wires=SHAPED),
    "slabs, 2 units": Case(WIDE, EACH, HALVES, "fsdp.units=2", wires=SHAPED),
    "slabs, reduced in fp16": Case(WIDE, EACH, "fsdp.reduce_dtype=fp16", wires=ALL),
    "slabs, batch 480": Case(WIDE, EACH, "loader.batch_size=480", wires=FAST),
    "slabs, DDP": Case(WIDE, EACH, NONE, "wrapper=ddp", wires=FAST),
    "poet, no_sync of 3": Case(LINES, EACH, QUIET, wires=SHAPED),
    "slabs, no_sync of 2": Case(SLABS, EACH, QUIET, wires=SHAPED),
    "scales, from DDP": Case(TALL, NONE, "env.SHARD=36", "wrapper=fsdp fsdp.units=4", wires=SLOW),
    "scales, 8 units": Case(TALL, "env.SHARD=36", "env.SHARD=18", "fsdp.units=8", wires=SHAPED),
    "scales, half the batch": Case(TALL, "env.SHARD=36", "loader.batch_size=80", wires=SHAPED),
    "4 ranks, poet, kept gathered": Case(SMALL_LINE, HALVES, KEPT, ranks=4, wires=SLOW),
    "4 ranks, slabs, reduced in bf16": Case(SMALL_SLABS, EACH, HALVED, ranks=4, wires=SLOW),
    "4 ranks, slabs, 2 units": Case(SMALL_SLABS, EACH, HALVES, "fsdp.units=2", ranks=4, wires=SLOW),
    "4 ranks, poet, no_sync of 2": Case(f"{SMALL_LINE} --accumulate 2", EACH, QUIET, ranks=4, wires=SLOW),
}
ROUND = Round(CASES, RESULTS, "python tests/benchmarks/predictions_fsdp.py")


if __name__ == "__main__":
    run(__doc__, ROUND, "predictions-fsdp")
