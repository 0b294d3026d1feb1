"""Hooks into torch, once, right after its import. Whatever goes wrong here must not reach the user's script."""

from __future__ import annotations

import os

from dptune.capture.injected.messages import say, say_unrecorded
from dptune.capture.injected.record.plan import Plan


def start() -> None:
    """Install the recorder in this process. A failure is one line on stderr, and the script runs unrecorded."""
    plan = None
    try:
        plan = Plan.from_environment()
        if plan is None:
            return
        from dptune.capture.injected.applying.seeding import seed
        from dptune.capture.injected.record.recorder import Recorder

        seed()
        if plan.settings:  # before the observers, so that these see the script's own lines
            from dptune.capture.injected.applying import apply

            apply(plan.settings)
        Recorder(plan).install()
    except Exception as error:
        text = f"process {os.getpid()} is not recorded: {type(error).__name__}: {error}"
        rank = os.environ.get("RANK", "")
        say(text) if plan is None else say_unrecorded(plan.path, int(rank) if rank.isdecimal() else 0, text)
