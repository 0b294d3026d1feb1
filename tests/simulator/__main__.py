"""Simulate a training run on GPUs before and after a change, and write both as torch.profiler's traces.

python -m tests.simulator --seed 7 --ranks 8 --change ddp.bucket_cap_mb=50 -o FOLDER

FOLDER gets before/ and after/, a trace per rank, and truth.json: the steps of each rank, with the profiler and without.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.simulator import pairs
from tests.simulator.changes import CHANGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="draws machine and settings (default: 0)")
    parser.add_argument("--ranks", type=int, default=2, help="number of GPUs (default: 2)")
    parser.add_argument(
        "--change", required=True, metavar="NAME[=VALUE]", help=f"without a value one is drawn: {', '.join(CHANGES)}"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    if args.change.partition("=")[0] not in CHANGES:
        parser.error(f"no such change: {args.change}")
    pair = pairs.drawn(args.seed, args.ranks, args.change)
    found = pairs.write(pair, args.out)
    print(f"{pair.change.name}={pair.value}, {args.ranks} ranks, ms per step (untraced in parentheses):")
    for side in ("before", "after"):
        print(f"  {side:7s}{found[side]['step_ns'] / 1e6:9.3f} ({found[side]['untraced_step_ns'] / 1e6:.3f})")


if __name__ == "__main__":
    main()
