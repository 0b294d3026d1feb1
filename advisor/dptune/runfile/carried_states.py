"""Recurrent layers that start a batch with the state that they had after the previous batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CarriedStateFacts:
    """A recurrent layer or cell, by its class, and the line of the script that calls it.

    `batches`: how many batches of the warm-up steps it starts with the state that it returned for the previous one, of
    the `batches_seen` that followed a batch.
    """

    module: str
    where: str | None
    batches: int = 0
    batches_seen: int = 0
