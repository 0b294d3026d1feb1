"""Check dptune on one real card: record, report, predict and compare, in stages, within 7 minutes.

    make gpu-wheels                       where there is a network: what a bare machine needs, into gpu-wheels/
    make gpu-check OUT=folder             on the card, with gpu-wheels/ beside the Makefile if dptune is not installed
    make gpu-check DEVICE=cpu             rehearse every stage at small size, without a card
    python -m tests.gpu --keep folder     put what came back where the tests and the documentation read it

The folder then holds result.json (card, driver, torch, NCCL, commit, the figures of every stage, the last lines of
whatever failed) and the run folders in traces-N.tar. A stage that fails or runs past its time is written down and the
next one starts. The same command again runs only what is not complete.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.gpu import driver, keeping
from tests.gpu.stage import STAGES


def main() -> int:
    """The exit status: 0 where every stage is complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-check"), help="folder for the results (default: gpu-check)"
    )
    parser.add_argument("--work", type=Path, help="folder for run folders until they are packed (default: temporary)")
    parser.add_argument("--wheels", type=Path, default=Path("gpu-wheels"), help="where `make gpu-wheels` put them")
    parser.add_argument("--time-limit", type=float, default=420.0, metavar="S", help="for everything (default: 420)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="stages at once; on a card always one")
    parser.add_argument("--stages", help="only these, like capture,known")
    parser.add_argument("--again", action="store_true", help="run stages that are complete, too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the results of that folder in the project")
    args = parser.parse_args()
    if args.keep is not None:
        print("\n".join(keeping.keep(args.keep)))
        return 0
    names = [stage.name for stage in STAGES]
    chosen = names if args.stages is None else args.stages.split(",")
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"unknown stage: {', '.join(unknown)}; the stages are {', '.join(names)}")
    check = driver.Check(args.device, args.out.resolve(), args.work, args.wheels.resolve(), args.time_limit)
    jobs = args.jobs if args.device == "cpu" else 1
    return check.run([stage for stage in STAGES if stage.name in chosen], args.again, jobs)


if __name__ == "__main__":
    sys.exit(main())
