"""How good `dptune whatif` is for fully_shard: changes predicted from a recording, written down, and only then run.

    python tests/benchmarks/predictions_fsdp.py                predict and run what is missing, print the table
    python tests/benchmarks/predictions_fsdp.py --commit       the same; each prediction is committed before it is run
    python tests/benchmarks/predictions_fsdp.py --table        print the table of what there is (or of FILE)

Scripts, networks, trials and columns are those of predictions.py; SHARD is how many blocks a unit has (0: DDP).
`scales` has 144 blocks, `slabs` three, `poet` six. It resumes where it stopped; raw results stand in
results/predictions_fsdp.json. The rest of the machine should be idle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_line import main
from predictions import POET, SCALES, SHAPED, SLABS, SMALL_SLABS, Case, Round, collect, table

RESULTS = Path(__file__).parent / "results" / "predictions_fsdp.json"
KEPT, HALVED, QUIET = "fsdp.reshard_after_forward=false", "fsdp.reduce_dtype=bf16", "fsdp.no_sync=true"
SIX, SINGLE, EACH, NONE = "env.SHARD=24", "env.SHARD=3", "env.SHARD=1", "env.SHARD=0"
CASES = {  # as in predictions.py, those in a row share recordings
    "scales, kept gathered": Case(SCALES, SIX, KEPT),
    "scales, 12 units": Case(SCALES, SIX, "env.SHARD=12", "fsdp.units=12"),
    "scales, DDP": Case(SCALES, SIX, NONE, "wrapper=ddp"),
    "scales, reduced in bf16": Case(SCALES, SIX, HALVED, wires=SHAPED),
    "slabs, kept gathered": Case(SLABS, EACH, KEPT),
    "slabs, half the batch": Case(SLABS, EACH, "loader.batch_size=224"),
    "slabs, 1 unit": Case(SLABS, EACH, SINGLE, "fsdp.units=1", wires=SHAPED),
    "slabs, prefetch": Case(SLABS, EACH, "fsdp.forward_prefetch=2", wires=SHAPED),
    "poet, kept gathered": Case(POET, EACH, KEPT),
    "poet, 2 units": Case(POET, EACH, SINGLE, "fsdp.units=2", wires=SHAPED),
    "poet, DDP": Case(POET, EACH, NONE, "wrapper=ddp", wires=SHAPED),
    "poet, batch x2": Case(POET, EACH, "loader.batch_size=48", wires=SHAPED),
    "scales, 3 units": Case(SCALES, SIX, "env.SHARD=48", "fsdp.units=3", wires=SHAPED),
    "slabs, reduced in bf16": Case(SLABS, EACH, HALVED, wires=SHAPED),
    "poet, no_sync of 2": Case(f"{POET} --accumulate 2", EACH, QUIET, wires=SHAPED),
    "poet, from DDP": Case(POET, NONE, EACH, "wrapper=fsdp fsdp.units=6", wires=SHAPED),
    "slabs, from DDP": Case(SLABS, NONE, EACH, "wrapper=fsdp fsdp.units=3", wires=SHAPED),
    "4 ranks, scales, kept gathered": Case(SCALES, SIX, KEPT, ranks=4, wires=SHAPED[:1]),
    "4 ranks, scales, 12 units": Case(SCALES, SIX, "env.SHARD=12", "fsdp.units=12", ranks=4, wires=SHAPED[:1]),
    "4 ranks, slabs, reduced in bf16": Case(SMALL_SLABS, EACH, HALVED, ranks=4, wires=SHAPED[:1]),
    "4 ranks, poet, no_sync of 2": Case(f"{POET} --accumulate 2", EACH, QUIET, ranks=4, wires=SHAPED[:1]),
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
