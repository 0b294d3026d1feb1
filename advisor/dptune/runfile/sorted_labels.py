"""Training samples that come in the order of a data set that is sorted by label."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SortedLabelFacts:
    """A data set whose neighbouring samples have the same label, and a loader that draws them in that order.

    `labels` is the attribute of the data set with the labels that losses were given, `dataset` its class, `where` the
    line that makes the loader, `sampler` the class that orders samples. Of `samples` with `classes` different labels,
    `changes` differ from the one before; at random `expected_changes` would. `batch_size`: per batch of a rank.
    `passes`: backward passes whose targets were found in that order.
    """

    where: str | None = None
    dataset: str = ""
    labels: str = ""
    sampler: str = ""
    samples: int = 0
    classes: int = 0
    changes: int = 0
    expected_changes: float = 0.0
    batch_size: int = 0
    passes: int = 0

    @property
    def run_length(self) -> float:
        """Samples with one label after each other, on average."""
        return self.samples / (self.changes + 1)
