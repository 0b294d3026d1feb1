"""Every setting dptune can name, once: a file per family, an object per setting.

Rules, predictions, appliers and patches speak of a setting by the name registered here. Variables of the environment
are knobs too, by their name after `env.`: `env.OMP_NUM_THREADS`. Needs the standard library only: the user's process
imports it too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

from dptune.errors import UsageError
from dptune.knobs import ddp, fsdp, loader, optimizer, switches
from dptune.knobs.batch_scaling import SETS_RATE, listed_betas, scaled_with_batch
from dptune.knobs.knob import Call, Knob, Value, written
from dptune.knobs.patched import PATCHED, is_patched, mesh_line

__all__ = [
    "ENVIRONMENT",
    "KNOBS",
    "PATCHED",
    "SETS_RATE",
    "TAKE_NO_TIME",
    "UNKNOWN",
    "Call",
    "Knob",
    "Value",
    "is_patched",
    "knob",
    "listed_betas",
    "mesh_line",
    "of_call",
    "of_change",
    "scaled_with_batch",
    "written",
]

ENVIRONMENT = "env."
UNKNOWN = "unknown"  # said of a setting that may be in force

KNOBS: MappingProxyType[str, Knob] = MappingProxyType(
    {knob.name: knob for knob in (*ddp.KNOBS, *fsdp.KNOBS, *loader.KNOBS, *switches.KNOBS, *optimizer.KNOBS)}
)
TAKE_NO_TIME = frozenset(name for name, knob in KNOBS.items() if knob.takes_no_time)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN = "DPTUNE_"


def of_call(call: str) -> list[Knob]:
    """The knobs that are arguments of a call, by the call's name: `ddp`, `loader`, `optimizer`."""
    return [knob for knob in KNOBS.values() if knob.argument and knob.call is not None and knob.call.name == call]


def of_change(name: str) -> Knob:
    """The knob of a change, also one that only a patch of the script sets; raises UsageError naming the nearest."""
    return knob(name, PATCHED)


def knob(name: str, beside: Mapping[str, Knob] = MappingProxyType({})) -> Knob:
    """The knob of that name, of all and of those beside; raises UsageError naming the nearest one."""
    named = {**KNOBS, **beside}
    if name in named:
        return named[name]
    variable = name.removeprefix(ENVIRONMENT)
    if variable != name and variable.startswith(_OWN):
        raise UsageError(
            f"DPTUNE_* variables are reserved for dptune and cannot be set with --set: {name}",
            "set what the script or torch reads, like env.OMP_NUM_THREADS=4",
        )
    if variable != name and _VARIABLE.fullmatch(variable):
        summary = f"the environment variable {variable}"
        return Knob(name, str, "", None, "same", summary, f"export {variable}={{then}}")
    short = {full.rpartition(".")[2]: full for full in reversed(named)}
    near = difflib.get_close_matches(name, short, n=1, cutoff=0.77) or difflib.get_close_matches(name, named, n=1)
    raise UsageError(
        f"unknown knob '{name}'",
        f"did you mean '{short.get(near[0], near[0])}'?" if near else _accepted(beside),
    )


def _accepted(beside: Mapping[str, Knob]) -> str:
    """Where knobs are listed, and their families; beside them what else is accepted here."""
    more = f"; accepted here, too: {_families(beside)}" if beside else ""
    return f"`dptune rules knobs` lists the knobs ({_families(KNOBS)}, env.NAME){more}"


def _families(named: Mapping[str, Knob]) -> str:
    """`ddp.*, fsdp.*, world_size`: a name by itself where its family has no other."""
    members: dict[str, list[str]] = {}
    for name in named:
        members.setdefault(name.partition(".")[0], []).append(name)
    return ", ".join(names[0] if len(names) == 1 else f"{family}.*" for family, names in members.items())
