"""What every verb does that runs trials: progress lines while they run, and what came of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dptune.present import terminal

if TYPE_CHECKING:
    from dptune.proof import Proof
    from dptune.prove.engine import Told


def progress(quiet: bool) -> Told:
    """A line on stderr before each trial."""
    from dptune.present.proof import line_of
    from dptune.present.visible import visible

    def told(proof: Proof, what: str) -> None:
        if not quiet and what:
            print(f"dptune: {visible(line_of(proof, what))}", file=sys.stderr, flush=True)

    return told


def show(proof: Proof, form: str) -> int:
    """Print it; 1 where a side cannot run. Raises KeyboardInterrupt where Ctrl-C ended it."""
    from dptune.present.ink import paint
    from dptune.present.proof import page

    if form == "json":
        sys.stdout.write(proof.model_dump_json(indent=1) + "\n")
    else:
        sys.stdout.write(paint(page(proof, terminal.width(sys.stdout)), terminal.colours(sys.stdout)))
    if proof.ended == "interrupted":
        raise KeyboardInterrupt
    return 1 if proof.ended == "cannot run" else 0
