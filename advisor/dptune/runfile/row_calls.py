"""A module that is called for one row or one slice after the other."""

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


@dataclass
class CellLoopFacts:
    """A loop of the script over calls of a recurrent cell, for example `nn.LSTMCell`.

    `function` is the function with the loop and `at` its first line. `inputs_known`: whether the source shows that all
    inputs but the state are known before the loop.
    """

    function: str
    at: str
    inputs_known: bool = False


@dataclass
class SliceCallsFacts:
    """A loop of the script that calls a module with one slice of a tensor after the other.

    `function` is the function with the loop and `at` its first line; `where` the line that calls the module, and
    `module` its class. `slices` is the least number of slices of a loop, `calls` how many calls one step makes.
    `norms`: whether the module has BatchNorm layers that normalize over the batch. `siblings`: each call is of another
    module of this class on the same input instead; `slices` is then the least number of modules.
    """

    function: str
    at: str
    where: str
    module: str
    slices: int = 0
    calls: int = 0
    norms: bool = False
    siblings: bool = False
