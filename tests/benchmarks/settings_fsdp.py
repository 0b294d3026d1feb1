"""What sets each setting of fully_shard, reads it back and tests it, and what it did to a step: the table of FSDP.md.

    python tests/benchmarks/settings_fsdp.py --table

Settings, what applies them and what reads them back are dptune's own registries. Steps are those of GPU.md, as a
multiple of the step before; cases are those of predictions_fsdp.py.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from predictions_fsdp import CASES

from dptune.capture import effect
from dptune.capture.injected import applying
from dptune.knobs import KNOBS, PATCHED
from dptune.patch import diff
from dptune.whatif import bounds
from dptune.whatif.cpu import changes as cpu
from dptune.whatif.gpu import changes as gpu
from dptune.whatif.memory import changes as memory

PAGE = Path(__file__).with_name("GPU.md")
_SETTINGS, _DTYPES = "test_gathers_prefetches_and_reductions_change_and_the_result_does_not", "test_dtypes_of_messages"
_OUTSIDE, _TRAINED = "capture/test_fsdp_settings.py", "patch/test_fsdp_calls.py"
TESTS = {  # by setting: the file below tests/, and a test in it
    "fsdp.reshard_after_forward": (_OUTSIDE, _SETTINGS),
    "fsdp.forward_prefetch": (_OUTSIDE, _SETTINGS),
    "fsdp.backward_prefetch": (_OUTSIDE, _SETTINGS),
    "fsdp.param_dtype": (_OUTSIDE, f"{_DTYPES}_groups_of_ranks_and_the_scripts_own_synchronization"),
    "fsdp.reduce_dtype": (_OUTSIDE, f"{_DTYPES}_groups_of_ranks_and_the_scripts_own_synchronization"),
    "fsdp.unshard_in_backward": (_OUTSIDE, _SETTINGS),
    "fsdp.reshard_after_backward": (_OUTSIDE, f"{_DTYPES}_groups_of_ranks_and_the_scripts_own_synchronization"),
    "fsdp.no_sync": (_OUTSIDE, _SETTINGS),
    "memory.checkpointing": (_TRAINED, "test_patched_scripts_train_the_same_model"),
    "wrapper": (_TRAINED, "test_patched_scripts_train_the_same_model"),
    "fsdp.blocks_per_unit": (_TRAINED, "test_patched_scripts_train_the_same_model"),
    "fsdp.within_hosts": (_TRAINED, "test_patched_scripts_train_the_same_model"),
    "fsdp.offload_policy": (_TRAINED, "test_a_policy_that_keeps_shards_on_the_host"),
}
_MEASURED = {  # by setting: what GPU.md calls the change, and what that is compared with
    "fsdp.reshard_after_forward": ("fsdp keep", "fsdp"),
    "fsdp.forward_prefetch": ("fsdp prefetch 2", "fsdp"),
    "fsdp.backward_prefetch": ("fsdp prefetch 2", "fsdp"),
    "fsdp.param_dtype": ("fsdp bf16", "fsdp"),
    "fsdp.reduce_dtype": ("fsdp bf16 reduce", "fsdp bf16"),
    "fsdp.no_sync": ("fsdp accumulate no sync", "fsdp accumulate"),
    "wrapper": ("ddp", "fsdp"),
    "fsdp.blocks_per_unit": ("fsdp two layers", "fsdp"),
}
_UNITS = {"fsdp.blocks_per_unit": "fsdp.units"}  # a patch counts blocks, a prediction units
_PATCHES: dict[str, Callable[..., Any]] = {
    "wrapper": diff.replicate,
    "fsdp.blocks_per_unit": diff.set_blocks_per_unit,
    **diff._OPTIONS,
}


def settings() -> list[str]:
    """Those set from outside, then those that only a patch sets."""
    return [*(name for name in KNOBS if name.startswith("fsdp.")), "memory.checkpointing", *PATCHED]


def table() -> str:
    """A row of Markdown per setting."""
    head = ("setting", "set by", "read back by", "tested by", "predicted", "step on H200", "cases on CPUs")
    rows = [head, ("---",) * len(head), *map(_row, settings())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(name: str) -> tuple[str, ...]:
    path, test = TESTS[name]
    cases = [
        case for case, each in CASES.items() if (each.predicted or each.b).startswith(f"{_UNITS.get(name, name)}=")
    ]
    return (
        f"`{name}`",
        _function(_PATCHES.get(name) or applying.applier(name)),
        _function(effect.reading(name)[0]),
        f"`{path}`: {test.removeprefix('test_').replace('_', ' ')}",
        _predicted(_UNITS.get(name, name)),
        _step(name),
        "; ".join(cases) or "-",
    )


def _function(function: Any) -> str:
    """A function by its module and name, the outer one of a closure."""
    while isinstance(function, functools.partial):
        function = function.func
    module, name = function.__module__.removeprefix("dptune."), function.__qualname__.partition(".<locals>")[0]
    return f"`{module.removeprefix('capture.injected.')}.{name}`"


def _predicted(name: str) -> str:
    models = {"CPUs": (cpu.CHANGES, bounds.BOUNDS), "GPUs": ({**gpu.CHANGES, **gpu.RANGED}, gpu.BOUNDS)}
    found = [
        device if name in steps else f"{device} (upper bound)"
        for device, (steps, only_bounds) in models.items()
        if name in steps or name in only_bounds
    ]
    steps = [f"step on {', '.join(found)}"] if found else []
    return "; ".join([*steps, *(["memory"] if name in memory.CHANGES else [])]) or "-"


def _step(name: str) -> str:
    """The step with the change as a multiple of the one without it."""
    if name not in _MEASURED:
        return "-"
    after, before = (_median(change) for change in _MEASURED[name])
    return f"{after / before:.2f}"


def _median(change: str) -> float:
    row = re.search(rf"^{re.escape(change)}  +([0-9. ]+?)  +[0-9.]+$", PAGE.read_text(encoding="utf-8"), re.M)
    assert row, change
    return median(map(float, row[1].split()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the table")
    parser.parse_args()
    print(table())
