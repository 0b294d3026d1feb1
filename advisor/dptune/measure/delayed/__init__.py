"""Delayed collectives, by cause: compute of the same step could overlap them, but does not."""

from dptune.measure.delayed.figures import UNSEEN, delayed

__all__ = ["UNSEEN", "delayed"]
