"""Whether `dptune whatif` keeps its accuracy on CPUs: one short round of predictions.py, of other sizes.

    python tests/benchmarks/predictions_short.py                predict and run what is missing, print the table
    python tests/benchmarks/predictions_short.py --commit       the same; each prediction is committed before it is run
    python tests/benchmarks/predictions_short.py --table        print the table of what there is (or of FILE)

16 cases of two ranks, four recordings that predictions.py has not made: scripts, networks, trials and columns are
those of predictions.py. It resumes where it stopped; raw results stand in results/predictions_short.json. The rest of
the machine should be idle.
"""

from __future__ import annotations

from pathlib import Path

from predictions import Case, Round, run

RESULTS = Path(__file__).parent / "results" / "predictions_short.json"
LINE, WIDE, TALL = "--model poet --batch 20", "--model slabs --batch 384", "--model scales --batch 176"
SLOW, FAST, HOST = ("200 Mbit/s",), ("1 Gbit/s",), ("unshaped",)
CASES = {  # as in predictions.py, IN_A_ROW of them, by wire, share recordings
    "poet, bucket 0.2": Case(LINE, "", "ddp.bucket_cap_mb=0.2", wires=SLOW),
    "poet, bf16": Case(LINE, "", "ddp.comm_hook=bf16", wires=SLOW),
    "poet, no_sync of 2": Case(f"{LINE} --accumulate 2", "", "ddp.no_sync=true", wires=SLOW),
    "poet, from batch 5 to 20": Case("--model poet --batch 5", "", "loader.batch_size=20", wires=SLOW),
    "scales, bucket 0.15": Case(TALL, "", "ddp.bucket_cap_mb=0.15", wires=FAST),
    "scales, batch x2": Case(TALL, "", "loader.batch_size=352", wires=FAST),
    "scales, bf16": Case(TALL, "", "ddp.comm_hook=bf16", wires=FAST),
    "scales, no straggler": Case(TALL, "env.STRAGGLE_MS=25", "env.STRAGGLE_MS=0", "straggler.removed=true", wires=FAST),
    "slabs, fp16": Case(WIDE, "", "ddp.comm_hook=fp16", wires=FAST),
    "slabs, PowerSGD": Case(WIDE, "", "ddp.comm_hook=powersgd", wires=FAST),
    "slabs, from 100 to 2": Case(WIDE, "ddp.bucket_cap_mb=100", "ddp.bucket_cap_mb=2", wires=FAST),
    "slabs, 2 workers": Case(f"{WIDE} --load-ms 80", "", "loader.num_workers=2", wires=FAST),
    "slabs, batch x2": Case(WIDE, "", "loader.batch_size=768", wires=HOST),
    "slabs, bucket 1.5": Case(WIDE, "", "ddp.bucket_cap_mb=1.5", wires=HOST),
    "slabs, no straggler": Case(WIDE, "env.STRAGGLE_MS=40", "env.STRAGGLE_MS=0", "straggler.removed=true", wires=HOST),
    "slabs, no_sync of 2": Case(f"{WIDE} --accumulate 2", "", "ddp.no_sync=true", wires=HOST),
}
ROUND = Round(CASES, RESULTS, "python tests/benchmarks/predictions_short.py")


if __name__ == "__main__":
    run(__doc__, ROUND, "predictions-short")
