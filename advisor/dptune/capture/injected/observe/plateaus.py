"""What `ReduceLROnPlateau` decides by: the values that its steps are given, and the learning rates after them.

Ranks that decide by values of their own lower their rates at different times. A value that is a tensor on a device is
left to torch, which reads it in the same call: it is read here after that.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from dptune.capture.injected.observe.places import users_line
from dptune.runfile.schedules import PlateauFacts

_SCHEDULERS = 16
_STEPS = 64  # of each


class Plateaus:
    """By scheduler, its first steps."""

    def __init__(self) -> None:
        self._made: list[tuple[weakref.ref[Any], PlateauFacts]] = []

    def install(self) -> None:
        """Wrap the constructor and `step`. Their signatures stay readable through `__wrapped__`."""
        begin, step = ReduceLROnPlateau.__init__, ReduceLROnPlateau.step

        @functools.wraps(begin)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            begin(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                if len(self._made) < _SCHEDULERS:
                    self._made.append((weakref.ref(this), PlateauFacts(users_line(sys._getframe(1)))))

        @functools.wraps(step)
        def stepped(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(this, *args, **kwargs)
            with contextlib.suppress(Exception):  # a metric may be anything that has a float
                facts = next((facts for ref, facts in self._made if ref() is this), None)
                if facts is not None and len(facts.values) < _STEPS:
                    facts.values.append(float(args[0] if args else kwargs["metrics"]))
                    facts.rates.append(float(this.optimizer.param_groups[0]["lr"]))
                    facts.stepped_at = facts.stepped_at or users_line(sys._getframe(1))
            return result

        ReduceLROnPlateau.__init__ = made  # type: ignore[method-assign, assignment]
        ReduceLROnPlateau.step = stepped  # type: ignore[method-assign, assignment]

    def facts(self) -> list[PlateauFacts]:
        """Of all that were made."""
        return [facts for _, facts in self._made]
