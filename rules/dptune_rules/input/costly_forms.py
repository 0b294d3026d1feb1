"""What replaces a line of a data set with a known costly pattern, or work that gives the same in each epoch."""

from __future__ import annotations

from dptune.measured import PreparingFigures
from dptune.rule import HotFunction, LoaderFacts, RunView
from dptune_rules import line_forms

_REMEDIES = {
    "mask": "The comparison reads the whole column for each sample: group the rows once in `__init__` (pandas: "
    "`dict(iter(frame.groupby(key)))` or `frame.groupby(key).indices`), and look the group up.",
    "archive": "The file is opened and its index read for each sample: open it once per process, on first use, and "
    "keep it in an attribute.",
    "file": "The same file is read for each sample: read it once in `__init__`, or map it: "
    '`np.load(path, mmap_mode="r")`.',
    "index": "`index()` searches the list for each sample: make a dict of the positions once in `__init__`.",
    "search": "`in` searches the list for each sample: make a set of its items once in `__init__`.",
    "statistics": "It reads all samples for each sample: compute it once in `__init__`, and keep the result.",
    "pop": "`pop(i)` moves all later items of a list: replace item i with the last one, then `pop()`.",
}


def remedy(run: RunView, loader: LoaderFacts | None, culprit: HotFunction, preparing: PreparingFigures | None) -> str:
    """For the function that takes most of batch preparation; empty where none is known."""
    return (
        _of_line(loader, culprit.where)
        or line_forms.of_function(run, culprit.name, culprit.where)
        or _once(run, loader, culprit, preparing)
    )


def _of_line(loader: LoaderFacts | None, where: str | None) -> str:
    """For the line where samples of the stack show the time; empty where its form is not known."""
    return _REMEDIES.get(loader.costly_lines.get(where or "", ""), "") if loader else ""


def _once(run: RunView, loader: LoaderFacts | None, culprit: HotFunction, preparing: PreparingFigures | None) -> str:
    """Samples that are read without random numbers are the same in each epoch."""
    epochs = run.any_facts().planned_epochs if run.facts else None
    if loader is None or preparing is None or loader.random_samples is not False or (epochs or 0) < 2:
        return ""
    if preparing.reading_share < preparing.collating_share:
        return ""
    return (
        f"`{culprit.name}` prepared its first batches without random numbers, so each of {epochs} epochs prepares the "
        "same samples: prepare each sample once, and keep the result in memory or in a file."
    )
