"""A module that is called for one row after the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RowCallsFacts:
    """A loop of the script over the items of a list, each of which calls a module with one row.

    `function` is what the line `where` calls for each item: a function of the script, else the module's class.
    `items` is the largest number of items of a loop, `calls` how many calls one step makes.
    """

    function: str
    where: str
    module: str
    items: int = 0
    calls: int = 0
