"""Collectives that compute of the same step could overlap and does not: by what delays them."""

from dptune.measure.delayed.figures import UNSEEN, delayed

__all__ = ["UNSEEN", "delayed"]
