"""The command line that benchmarks of proving and predicting have in common."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Results = dict[str, Any]
ENDS_WITHIN_S = 60


class PieceEndedError(Exception):
    """The time of this call is up; the next one continues."""


def run(words: Sequence[str], until: float = math.inf, **how: Any) -> subprocess.CompletedProcess[str]:
    """The command, ended; on Ctrl-C it ends in its own way, with all that it started.

    `until`, in seconds of `time.monotonic`: then it gets that interrupt, and PieceEndedError is raised.
    """
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise PieceEndedError
    with subprocess.Popen(words, text=True, **how) as process:
        try:
            out, err = process.communicate(timeout=None if left_s == math.inf else left_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=ENDS_WITHIN_S)
            process.kill()
            raise PieceEndedError from None
        except KeyboardInterrupt:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=ENDS_WITHIN_S)
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)


def main(
    doc: str | None,
    results: Path,
    collect: Callable[..., Results],
    table: Callable[[Results], str],
    name: str,
    switches: Mapping[str, str] = {},
) -> None:
    """Collect what is missing, and print the table; with --table only that, of other results where they are given.

    Switches (and their help) are passed on.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = Path(tempfile.gettempdir()) / f"dptune-benchmark-{name}"
    parser.add_argument("--work", type=Path, default=kept, help="where recordings and begun comparisons lie")
    parser.add_argument("--table", nargs="?", type=Path, const=results, metavar="FILE", help="run nothing")
    for switch, told in switches.items():
        parser.add_argument(f"--{switch}", action="store_true", help=told)
    args = parser.parse_args()
    if args.table:
        if not args.table.exists():
            parser.error(f"there are no results yet: {args.table}")
        print(table(json.loads(args.table.read_text())))
    else:
        args.work.mkdir(parents=True, exist_ok=True)
        print(table(collect(args.work, **{switch: getattr(args, switch) for switch in switches})))
