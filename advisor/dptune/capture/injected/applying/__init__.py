"""Settings changed from outside: one applier a knob, installed before the script makes anything.

A knob that is an argument or a switch is applied as such; the modules here list those that take more. An applier only
arranges for the change. Whether it came about is read off the facts afterwards, in
`dptune.capture.effect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from dptune.capture.injected.applying import (
    checkpointing,
    compiling,
    ddp,
    fsdp,
    fsdp_micro_batches,
    hooks,
    loader,
    micro_batches,
    optimizer,
    precision,
)
from dptune.capture.injected.applying.constructing import argument
from dptune.capture.injected.applying.requested import asked
from dptune.capture.injected.messages import say
from dptune.knobs import KNOBS

# By the knob's name, in the order in which they are made. What begins with `env.` is set by the launcher, before the
# process starts.
_MORE: Mapping[str, Callable[[Any], None]] = {
    **ddp.APPLIERS,
    **hooks.APPLIERS,
    **micro_batches.APPLIERS,
    **fsdp.APPLIERS,
    **fsdp_micro_batches.APPLIERS,
    **loader.APPLIERS,
    **optimizer.APPLIERS,
    **precision.APPLIERS,
    **checkpointing.APPLIERS,
    **compiling.APPLIERS,
}
_ARGUMENTS: Mapping[str, Callable[[str, Any], None]] = {
    "ddp": partial(argument, DistributedDataParallel),
    "loader": partial(argument, DataLoader),
    "optimizer": optimizer.default,
}


def applier(name: str) -> Callable[[Any], None] | None:
    """How a knob is set; None of one that is neither an argument nor a switch and that nothing here knows."""
    knob = KNOBS.get(name)
    if name in _MORE or knob is None:
        return _MORE.get(name)
    if knob.argument and knob.call is not None:
        return partial(_ARGUMENTS[knob.call.name], knob.argument)
    return partial(precision.switch, name, knob.switch) if knob.switch else None


def apply(settings: Mapping[str, Any]) -> None:
    """Arrange for these settings, by the knobs' names. One that fails is said, and read back as without effect."""
    asked.settings = dict(settings)
    for name in (*_MORE, *(name for name in KNOBS if name not in _MORE)):
        act = applier(name)
        if name not in settings or act is None:
            continue
        try:
            act(settings[name])
        except Exception as error:
            asked.refuse(name, f"it could not be set: {type(error).__name__}: {error}")
            say(f"{name} could not be set: {type(error).__name__}: {error}")
