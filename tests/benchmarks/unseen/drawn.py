"""What the scripts beside it share: sizes drawn by UNSEEN_SEED, and the switches of a measurement.

UNSEEN_MENDED=1 runs a script without what is wrong with it; "only 2" mends the second of two faults. UNSEEN_STEPS=12
ends it after so many steps of its first optimizer, and UNSEEN_TIMES=file writes how long each took and its processor
time. Without UNSEEN_STEPS nothing is hooked.
"""

import itertools
import json
import os
import random
import time
from pathlib import Path
from typing import Any

MENDED = os.environ.get("UNSEEN_MENDED") == "1"


def mended(fault: int) -> bool:
    """Whether this one of several faults is mended."""
    return MENDED or os.environ.get("UNSEEN_MENDED") == f"only {fault}"


def draw(name: str, *choices: Any) -> Any:
    """One of the choices, the same for each run with this seed."""
    return random.Random(f"{os.environ.get('UNSEEN_SEED', '0')} {name}").choice(choices)


def end_after(steps: int) -> None:
    """Let the process end after so many steps of the first optimizer that steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock: list[Any] = []
    ends: list[tuple[int, int]] = []

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not clock:
            clock.append(optimizer)
        if clock[0] is not optimizer:
            return
        ends.append((time.perf_counter_ns(), time.process_time_ns()))
        if len(ends) >= steps:
            if os.environ.get("UNSEEN_TIMES") and os.environ.get("RANK", "0") == "0":
                steps_ns = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ends)]
                told = {"durations_ns": [step[0] for step in steps_ns], "cpu_ns": [step[1] for step in steps_ns]}
                Path(os.environ["UNSEEN_TIMES"]).write_text(json.dumps(told))
            raise SystemExit(0)

    register_optimizer_step_post_hook(stepped)


if os.environ.get("UNSEEN_STEPS"):
    end_after(int(os.environ["UNSEEN_STEPS"]))
