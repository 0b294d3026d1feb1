"""Record runs/: each fault of train.py, and its mended twin, ranks over gloo on the CPU of one machine.

    python -m tests.rules.recorded.record [FAULT ...]      all, or these

Three of them need a shaped network, so root, and one accelerate.

What dptune says of them is tested in test_recorded.py. The machine should be idle.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.network import SLOW, Node, shaped
from tests.testbed.running import on_both

HERE = Path(__file__).parent
RUNS = HERE / "runs"
SCRIPT = ("train.py", "options.py", "batches.py", "models.py", "losses.py", "epochs.py")
PYTHON = "/home/user/venv/bin/python"
# What no rule may take for its fault: there is nothing to mend.
ALONE = ("tiny-gradients", "look-alikes", "equation-residual")
SLOWLY = ("wide-gradients", "small-batch", "rank-placement")  # over 200 Mbit/s, 1 ms
# One process: DDP averages what one pass adds; a repeated pass, or generated text, is the same on each rank.
OF_ONE = (
    *("separate-backward-passes", "long-convolutions", "repeated-forward"),
    *("ignored-targets", "one-hot-products", "full-sorts", "generation-without-cache"),
    *("broadcast-reductions", "written-optimizer", "labels-shifted-twice", "samples-changed-in-place"),
    *("memory-bound-functions", "slice-gradients", "repeated-rows", "weight-penalty"),
    *("upsampled-convolutions", "same-results", "clipping-without-effect", "unreached-parameters"),
    *("zero-learning-rate", "not-finite", "padding-learned", "training-mode-in-evaluation"),
    *("loss-not-divided", "few-samples-normalized", "optimizer-not-restored"),
    *("target-with-gradients", "equation-residual", "state-carried-over", "ratio-always-one"),
    *("unread-results", "forward-hooks", "wrapped-integers", "windows-split-at-random", "view-for-transpose"),
    *("causal-mask-missing", "samples-sorted", "softmax-dimension", "padding-attended", "kl-weight"),
)
WITH_STACKS = (
    *("uncovered-cost", "per-tensor-loops", "operator-loops", "matrix-decompositions", "long-convolutions"),
    *("ignored-targets", "one-hot-products", "full-sorts", "eager-attention", "generation-without-cache"),
    *("broadcast-reductions", "written-optimizer", "memory-bound-functions", "slice-gradients"),
    *("weight-penalty", "upsampled-convolutions", "look-alikes"),
)
LOCALLY = (
    *(
        "broadcast-buffers",
        "collectives-in-steps",
        "unused-parameters-searched",
        "sharded-optimizer",
        "sharded-parameters",
        "gathered-for-logging",
        "metrics-reduced",
        "double-precision",
        "scaler-without-need",
        "unsupported-dtype",
    ),
    *("workers-restart", "same-data", "same-order", "garbage-collection", "unfused-optimizer", "late-rank"),
    *("uneven-ranks", "slow-steps", "oversubscribed-cores", "debug-switches", "growing-memory"),
    *("unsynchronized-gradients", "unsynchronized-ranks", "different-weights", "checkpointing-without-need"),
    *("periodic-steps", "work-between-steps", "iterable-dataset", "recompiles"),
    *("unused-gradients", "padded-batches", "small-shard-units", "kept-outputs", "frozen-batch-norm", "dense-tables"),
    *(
        "evaluation-mode-kept",
        "updates-lost",
        "softmax-before-cross-entropy",
        "same-random-numbers",
        "schedule-out-of-step",
        "unfrozen-after-wrapping",
        "new-iterators",
        "parameters-without-optimizer",
        "gradients-discarded",
        "loss-broadcast",
        "kept-by-reference",
        "flat-parameters",
        "split-by-rank",
        "sharded-micro-batches",
        "gradients-not-cleared",
        "optimizer-without-gradients",
        "uneven-epochs",
        "same-file-saved",
        "own-scores",
        "uneven-target-counts",
        "gathered-without-gradients",
    ),
    *(fault for fault in dict.fromkeys(("averaged-one-by-one", *OF_ONE, *WITH_STACKS)) if fault not in ALONE),
)
FOLLOWED = (  # in several warm-up steps
    *("gradients-not-cleared", "optimizer-without-gradients"),
    *("clipping-without-effect", "unreached-parameters", "loss-not-divided"),
    *("few-samples-normalized", "target-with-gradients", "state-carried-over", "unread-results"),
    *("equation-residual", "forward-hooks", "ratio-always-one"),
    *("wrapped-integers", "view-for-transpose", "causal-mask-missing", "gathered-without-gradients"),
    *("softmax-dimension", "padding-attended", "kl-weight"),
    *("repeated-forward", "repeated-rows", "same-results", "unused-gradients", "separate-backward-passes"),
)
LINKED = ("tiny-gradients", "metrics-reduced")  # on one host, and the links between its ranks are measured
SWEEP = ("links", "--kinds", "all_reduce", "--sizes", "1k,16k,256k,1m,4m", "--seconds", "40")


def windows(fault: str) -> tuple[str, ...]:
    """Of what a rule needs: predictions need more traced steps."""
    light = "12" if fault in (*SLOWLY, *LINKED) else "6" if fault.endswith(("-rank", "-ranks")) else "4"
    detailed = {"growing-memory": "4", "small-shard-units": "1"}.get(fault, "2" if fault in WITH_STACKS else "0")
    warmup = "5" if fault in FOLLOWED else "3"
    return ("--warmup", warmup, "--untraced", "20", "--light", light, "--detailed", detailed, "--no-links")


def record(fault: str, mended: bool, nodes: Sequence[Node] = ()) -> None:
    """Record one of them anew."""
    target = RUNS / (f"{fault}-mended" if mended else fault)
    script = ("train.py", fault, *(("--mended",) if mended else ()))
    with tempfile.TemporaryDirectory() as place:
        for part in SCRIPT:
            shutil.copy(HERE / part, place)
        if nodes:
            several = ("--nproc-per-node", "2") if fault == "rank-placement" else ()
            words = ("profile", *windows(fault), *several, "--run-dir", "run")
            on_both(nodes, [Path(place)] * 2, words, script, 29741)
            if not several:
                on_both(nodes, [Path(place)] * 2, (*SWEEP, "-o", "run/links.json"), (), 29743)
        else:
            alone = [sys.executable, "-m", "dptune", "profile", "-q", *windows(fault), "--run-dir", "run"]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            ranks = "1" if fault in OF_ONE else "2"
            subprocess.run([*alone, "--nproc-per-node", ranks, *script], cwd=place, env=env, check=True)
            if fault in LINKED:
                sweep = [sys.executable, "-m", "dptune", *SWEEP, "--nproc-per-node", "2", "-o", "run/links.json"]
                subprocess.run(sweep, cwd=place, env=env, check=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(Path(place) / "run", target)
    for file in target.glob("*.json"):  # paths of this machine are nobody's business
        file.write_text(file.read_text().replace(place, "/home/ada").replace(sys.executable, PYTHON))
    took = [json.loads(one.read_text())["windows"] for one in sorted(target.glob("*.facts.json"))]
    print(target.name, [[len(window["durations_ns"]) for window in own] for own in took], file=sys.stderr)


def main(faults: Sequence[str]) -> None:
    """Record the faults named, or all."""
    for fault in [one for one in LOCALLY if one in faults or not faults]:
        for mended in (False, True):
            record(fault, mended)
    for fault in [one for one in ALONE if one in faults or not faults]:
        record(fault, False)
    if slowly := [one for one in SLOWLY if one in faults or not faults]:
        with shaped(SLOW) as nodes:
            for fault in slowly:
                for mended in (False, True):
                    record(fault, mended, nodes)


if __name__ == "__main__":
    main(sys.argv[1:])
