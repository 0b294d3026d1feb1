"""Samples that a data set changes in what it keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ChangedSampleFacts:
    """A tensor, an array or a list of them that a data set keeps, and samples of it that drawing them has changed.

    `held_by` is `Class.attribute`; `read_by` the function that reads samples, with its line. Of `rows` that were
    compared before and after they were drawn, `changed` were handed out changed. `in_worker`: whether that was in a
    worker's copy of the data, which ends with the worker.
    """

    held_by: str
    read_by: str
    rows: int
    changed: int
    in_worker: bool = False
