"""Counts the optimizer steps whose learning rate is zero in every group: they leave the weights unchanged."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from dptune.capture.injected.observe.places import Places
from dptune.runfile.schedules import ZeroRateFacts

_OPTIMIZERS = 16


class ZeroRates:
    """By optimizer, all steps and those at a rate of zero. Rates that are tensors are not read: reading could wait."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._counts: dict[int, tuple[weakref.ref[Any], ZeroRateFacts]] = {}

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has taken a step."""
        with contextlib.suppress(Exception):
            ref, facts = self._counts.get(id(optimizer), (None, None))
            if ref is None or facts is None or ref() is not optimizer:
                if len(self._counts) >= _OPTIMIZERS:
                    return
                facts = ZeroRateFacts(type(optimizer).__name__, self._places.line(optimizer))
                self._counts[id(optimizer)] = weakref.ref(optimizer), facts
            rates = [group["lr"] for group in optimizer.param_groups]
            facts.steps += 1
            facts.zero += all(isinstance(rate, (int, float)) and rate == 0 for rate in rates) and bool(rates)
            facts.last_zero = facts.zero > 0 and all(rate == 0 for rate in rates if isinstance(rate, (int, float)))

    def facts(self) -> list[ZeroRateFacts]:
        """The facts of optimizers with such steps."""
        return [facts for _, facts in self._counts.values() if facts.zero]
