"""Time several variants of train.py in turn, in one process, and print the median step of each round as JSON.

    python variants.py --rounds 2 --steps 20 '{"fp32": ["--precision", "fp32"], "tf32": ["--precision", "tf32"]}'

One process for all: a card is at hand for minutes only, and every process costs seconds. Rounds in turn show drift.
"""

import argparse
import gc
import json
import sys
from statistics import median

import torch
from train import Training, parser, timed
from turn import wait_for_turn


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--warmup", type=int, default=5)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("variants", type=json.loads)
    args = options.parse_args()
    found = {name: [] for name in args.variants}
    failed = {}
    wait_for_turn()
    for _ in range(args.rounds):
        for name, words in args.variants.items():
            if name in failed:
                continue
            try:
                training = Training(parser().parse_args(words))
                found[name].append(median(timed(training, args.warmup, args.steps)))
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"[-500:]
            training = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            print(json.dumps({"medians_ms": found, "failed": failed}), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
