"""One stage, in a process of its own: `python -m tests.gpu.stage NAME --device cuda --out DIR --seconds 60`."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path
from typing import NamedTuple

from tests.gpu.place import Place


class Stage(NamedTuple):
    """A stage and the most seconds it may take on a card."""

    name: str
    seconds: float


# In order of value: what is left when the time is over is worth least. They add up to more than the whole check may
# take, though hardly any needs all of its time. On a card lent for 15 minutes, capture to predict as one command
# (--stages) and the others as a second one took 12.5.
STAGES = (
    Stage("capture", 85),
    Stage("known", 35),
    Stage("planted", 110),
    Stage("predict", 70),
    Stage("ranks", 100),
    Stage("pairs", 170),
    Stage("link", 65),
    Stage("verify", 140),
)


def main() -> None:
    """Run the stage; what it finds is on disk case by case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[stage.name for stage in STAGES])
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    place = Place(args.name, args.device, args.out, time.monotonic() + args.seconds)
    importlib.import_module(f"tests.gpu.stages.{args.name}").run(place)


if __name__ == "__main__":
    main()
