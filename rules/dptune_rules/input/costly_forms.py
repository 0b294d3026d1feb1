"""What replaces a line of a data set that goes through all samples, or opens a file, for each sample."""

from __future__ import annotations

from dptune.rule import LoaderFacts

_REMEDIES = {
    "mask": "The comparison reads the whole column for each sample: group the rows once in `__init__` (pandas: "
    "`dict(iter(frame.groupby(key)))` or `frame.groupby(key).indices`), and look the group up.",
    "archive": "The file is opened and its index read for each sample: open it once per process, on first use, and "
    "keep it in an attribute.",
    "index": "`index()` searches the list for each sample: make a dict of the positions once in `__init__`.",
    "search": "`in` searches the list for each sample: make a set of its items once in `__init__`.",
    "pop": "`pop(i)` moves all later items of a list: replace item i with the last one, then `pop()`.",
}


def remedy(loader: LoaderFacts | None, where: str | None) -> str:
    """For the line where samples of the stack show the time; empty where its form is not known."""
    return _REMEDIES.get(loader.costly_lines.get(where or "", ""), "") if loader else ""
