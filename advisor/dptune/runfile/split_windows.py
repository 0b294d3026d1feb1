"""Windows of one series that were split at random into training and held-out samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SplitWindowFacts:
    """A data set whose neighbouring samples overlap, split into samples to train on and samples that are held out.

    `where` is the script's function and line that split it, `dataset` its class. Of `held_out` samples, `beside` have a
    neighbour, by index, among the `training` samples.
    """

    where: str | None = None
    dataset: str = ""
    training: int = 0
    held_out: int = 0
    beside: int = 0

    @property
    def share(self) -> float:
        """The part of the held-out samples that share values with a training sample."""
        return self.beside / self.held_out if 0 < self.beside <= self.held_out else 0.0
