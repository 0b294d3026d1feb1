"""Whether a recording fits on the disk, before it is made."""

from __future__ import annotations

import shutil
from pathlib import Path

from dptune.errors import CaptureError
from dptune.runfile.record import Schedule

# Plain text of one traced step, the largest we have seen of small models: an encoder of four layers wrote 2.7 MB a
# step, the detailed step of sample_traces/tiny_buckets is 4.7 MB.
LIGHT_STEP_BYTES = 2_700_000
DETAILED_STEP_BYTES = 4_700_000
# The same compressed: of sample_traces, the least compressible is 11.8 times smaller.
COMPRESSION = 10
FACTS_BYTES = 20_000
# A larger model has more operators in a step than those have.
MARGIN = 2


def need_bytes(schedule: Schedule, ranks: int) -> int:
    """What that many ranks may need: all files, and each rank's larger window as plain text before it shrinks."""
    windows = (schedule.light_steps * LIGHT_STEP_BYTES, schedule.detailed * DETAILED_STEP_BYTES)
    return MARGIN * ranks * (max(windows) + sum(windows) // COMPRESSION + FACTS_BYTES)


def free_bytes(folder: Path) -> int:
    """What is free where the folder is or would be made."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def check(folder: Path, schedule: Schedule, ranks: int) -> None:
    """Raise CaptureError where it does not fit."""
    need, free = need_bytes(schedule, ranks), free_bytes(folder)
    if free < need:
        counted = "1 rank" if ranks == 1 else f"{ranks} ranks"
        raise CaptureError(
            f"recording {counted} may take {megabytes(need)}, but {folder} has {megabytes(free)} free",
            "record fewer ranks (--ranks 0) or steps (--light, --detailed), or choose another disk (--run-dir)",
        )


def megabytes(count: int) -> str:
    """Bytes for a reader."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
