"""Settings changed from outside: one applier a knob, installed before the script makes anything.

An applier only arranges for the change. Whether it came about is read off the facts afterwards, in
`dptune.capture.effect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dptune.capture.injected.applying import checkpointing, ddp, hooks, loader, micro_batches, optimizer, precision
from dptune.capture.injected.asked import asked
from dptune.capture.injected.speech import say

# By the knob's name. What begins with `env.` is set by the launcher, before the process starts.
APPLIERS: Mapping[str, Callable[[Any], None]] = {
    **ddp.APPLIERS,
    **hooks.APPLIERS,
    **micro_batches.APPLIERS,
    **loader.APPLIERS,
    **optimizer.APPLIERS,
    **precision.APPLIERS,
    **checkpointing.APPLIERS,
}


def apply(settings: Mapping[str, Any]) -> None:
    """Arrange for these settings, by the knobs' names. One that fails is said, and read back as without effect."""
    asked.settings = dict(settings)
    for name, act in APPLIERS.items():
        if name not in settings:
            continue
        try:
            act(settings[name])
        except Exception as error:
            asked.refuse(name, f"it could not be set: {type(error).__name__}: {error}")
            say(f"{name} could not be set: {type(error).__name__}: {error}")
