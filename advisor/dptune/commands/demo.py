"""Show the report of a packaged sample run, or record it here.

Without options: the report of a recorded 2-rank training run that is packaged with dptune; needs no torch. Its
predictions were verified: each is shown with the measured saving. With --record, the same script is recorded here:
DistributedDataParallel over gloo on this machine's CPU, including the link between its ranks, in under a minute.
--fault plants one of three problems, or none.

examples:
  dptune demo
  dptune demo --record
  dptune demo --record --fault starved-loader
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

# Fault -> the options of demo/train.py that plant it. The runs in sample_traces/ are made with the same.
FAULTS = {
    "tiny-buckets": "--width 64 --layers 24 --batch 512 --bucket-cap-mb 0.001",
    "starved-loader": "--width 256 --layers 8 --batch 256 --decode-ms 0.2",
    "accumulation-without-no-sync": "--width 512 --layers 4 --batch 128 --accumulate 4",
    "none": "--width 384 --layers 3 --batch 2048",
}
PACKAGED = "accumulation-without-no-sync"
_WINDOWS: dict[str, Any] = {"untraced": 40, "light": 8, "detailed": 1}
_LARGEST_BYTES = 16 * 2**20  # of the messages by which the link is measured
_DEMO = Path(__file__).parents[1] / "demo"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--record", action="store_true", help="record the run on this machine first (needs torch)")
    parser.add_argument(
        "--fault", choices=sorted(FAULTS), default=PACKAGED, help=f"problem to plant in the run (default: {PACKAGED})"
    )
    parser.add_argument("--python", metavar="PATH", help="Python with torch (default: that of the active environment)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")


def run(args: argparse.Namespace) -> int:
    """Record if asked, then print the report and say what to try next."""
    from dptune.commands.shared.reading import report_of
    from dptune.errors import UsageError
    from dptune.present import terminal, text
    from dptune.present.machine import json

    if args.record:
        folder = _record(args.fault, args.python)
    elif args.fault != PACKAGED:
        raise UsageError(f"the packaged run shows {PACKAGED} only", f"dptune demo --record --fault {args.fault}")
    else:
        folder = _DEMO / "run"
    report = report_of([str(folder)], cached=False)
    if not args.record:  # where it lies on this machine says nothing
        about = report.run.model_copy(update={"sources": []})
        report = report.model_copy(update={"run": about})
    if args.format == "json":
        sys.stdout.write(json.text(report))
    else:
        width, colour = terminal.width(sys.stdout), terminal.colours(sys.stdout)
        sys.stdout.write(text.first_screen(report, width, colour, terminal.draws_blocks(sys.stdout), args.record))
    print(f"dptune: {_then(args.record, folder)}", file=sys.stderr)
    return 0


def _then(recorded: bool, folder: Path) -> str:
    """What to do next, by the name under which a shell finds dptune: in an environment that is not active its path."""
    path = Path(sys.argv[0])
    name = shlex.quote(str(path)) if path.name == "dptune" and not shutil.which("dptune") else "dptune"
    if recorded:
        return f"to walk through it: {name} report {folder}; your own script: {name} profile train.py"
    return f"that was a packaged recording; your own script: {name} profile train.py"


def _record(fault: str, python: str | None) -> Path:
    from dptune.capture import epilogue, interpreter, launch, links, recording
    from dptune.capture.options import Options
    from dptune.capture.torchrun import Torchrun
    from dptune.commands.links import SIZES
    from dptune.errors import CaptureError
    from dptune.measure.communication.links import fitted
    from dptune.runfile import json_files
    from dptune.runfile.links import LINKS_JSON
    from dptune.runfile.record import Schedule

    chosen = interpreter.choose(python)
    script = Path("dptune-runs") / "demo" / "train.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_DEMO / "train.py", script)
    windows = " ".join(f"--{name} {steps}" for name, steps in _WINDOWS.items())
    print(f"dptune: dptune profile --nproc-per-node 2 {windows} {script} {FAULTS[fault]}", file=sys.stderr)
    words = launch.Script(str(script), tuple(FAULTS[fault].split()))
    ranks = Torchrun(nproc_per_node=2)
    made = recording.record(launch.under_torchrun(words, chosen, ranks), Options(schedule=Schedule(**_WINDOWS)))
    for line in epilogue.lines(made):
        print(f"dptune: {line}", file=sys.stderr)
    if not made.complete:
        return made.folder
    kept = made.folder / LINKS_JSON
    print(f"dptune: dptune links --nproc-per-node 2 --kinds all_reduce --max-size 16m -o {kept}", file=sys.stderr)
    sizes = [size for size in SIZES if size <= _LARGEST_BYTES]
    asked = links.SweepRequest(("all_reduce",), sizes, "", repeats=7, seconds=20.0, timeout_s=60.0)
    try:
        record = links.sweep(launch.under_torchrun(asked.script, chosen, ranks), asked, lambda *_: None)
    except CaptureError as error:  # the report does without
        print(f"dptune: {error}", file=sys.stderr)
        return made.folder
    if record is not None:
        json_files.write(kept, fitted(record))
    return made.folder
