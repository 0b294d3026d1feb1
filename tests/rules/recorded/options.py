"""Which fault the script has, or has mended: its arguments."""

import argparse

FAULTS = (
    "wide-gradients",
    "small-batch",
    "broadcast-buffers",
    "collectives-in-steps",
    "unused-parameters-searched",
    "sharded-optimizer",
    "sharded-parameters",
    "gathered-for-logging",
    "metrics-reduced",
    "tiny-gradients",
    "rank-placement",
    "double-precision",
    "scaler-without-need",
    "unsupported-dtype",
    "workers-restart",
    "same-data",
    "same-order",
    "garbage-collection",
    "unfused-optimizer",
    "late-rank",
    "uneven-ranks",
    "slow-steps",
    "oversubscribed-cores",
    "debug-switches",
    "growing-memory",
    "unsynchronized-gradients",
    "unsynchronized-ranks",
    "checkpointing-without-need",
    "periodic-steps",
    "work-between-steps",
    "iterable-dataset",
    "recompiles",
    "uncovered-cost",
    "per-tensor-loops",
    "unused-gradients",
    "padded-batches",
    "operator-loops",
    "matrix-decompositions",
    "long-convolutions",
    "averaged-one-by-one",
    "separate-backward-passes",
    "repeated-forward",
    "small-shard-units",
    "sharded-micro-batches",
    "kept-outputs",
    "frozen-batch-norm",
    "dense-tables",
    "evaluation-mode-kept",
    "updates-lost",
    "softmax-before-cross-entropy",
    "same-random-numbers",
    "schedule-out-of-step",
    "unfrozen-after-wrapping",
    "new-iterators",
    "parameters-without-optimizer",
    "ignored-targets",
    "one-hot-products",
    "full-sorts",
    "eager-attention",
    "generation-without-cache",
    "gradients-discarded",
    "loss-broadcast",
    "kept-by-reference",
    "broadcast-reductions",
    "written-optimizer",
    "labels-shifted-twice",
    "samples-changed-in-place",
    "memory-bound-functions",
    "flat-parameters",
    "slice-gradients",
    "repeated-rows",
    "weight-penalty",
    "upsampled-convolutions",
    "split-by-rank",
    "same-results",
    "look-alikes",
    "gradients-not-cleared",
    "optimizer-without-gradients",
)
parser = argparse.ArgumentParser()
parser.add_argument("fault", choices=FAULTS)
parser.add_argument("--mended", action="store_true")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()


ROWS = 40_000  # of an embedding table
WORDS = 2000  # of a vocabulary
IDS = (
    "padded-batches",
    "dense-tables",
    "ignored-targets",
    "one-hot-products",
    "labels-shifted-twice",
)  # the model's inputs, which are no targets


def has(fault):
    return args.fault == fault and not args.mended
