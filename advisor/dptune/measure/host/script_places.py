"""Files of the script as its recording names them, where the trace names them by a part of their path.

`python scripts/train.py` puts `scripts` on `sys.path`, and torch cuts the names of files in a trace by the folders
there: `train.py`. Facts have paths below the folder that the script was started in: `scripts/train.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from pydantic import BaseModel

from dptune.measured import OptimizerLoop, UserCodeFigures
from dptune.runfile.facts import Facts

_FRAME = re.compile(r".*\((?P<file>.+):\d+\)")
_PLACES = ("at", "caller_at")  # fields of functions: `file:line`
_FUNCTION = re.compile(r"(?P<name>.+) at (?P<place>.+)")
_OF_TRACE = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<name>.+)")  # as a trace writes a function

Functions = TypeVar("Functions", bound=BaseModel)


def in_functions(found: UserCodeFigures | None, facts: Iterable[Facts]) -> UserCodeFigures | None:
    """The same figures with the files of the recording."""
    files = _files(facts)
    if found is None or not files:
        return found
    lists = {name: values for name, values in found if isinstance(values, list)}
    return found.model_copy(
        update={
            name: [_renamed(each, files) if isinstance(each, BaseModel) else each for each in values]
            for name, values in lists.items()
        }
    )


def in_each(found: Sequence[Functions] | None, facts: Iterable[Facts]) -> list[Functions] | None:
    """The same functions with the files of the recording."""
    files = _files(facts)
    return None if found is None else [_renamed(each, files) for each in found]


def in_optimizer_loops(found: Sequence[OptimizerLoop] | None, facts: Iterable[Facts]) -> list[OptimizerLoop] | None:
    """The same loops with the files of the recording."""
    if found is None:
        return None
    files = _files(facts)
    return [
        loop.model_copy(update={"functions": [_of_function(words, files) for words in loop.functions]})
        for loop in found
    ]


def recorded_place(place: str, files: Iterable[str]) -> str:
    """`file:line` with the only one of these files whose path ends like it; as it is if there are several or none."""
    file, _, line = place.rpartition(":")
    matching = [each for each in files if each == file or each.endswith(f"/{file}")]
    return f"{matching[0]}:{line}" if file and len(matching) == 1 else place


def _renamed(function: Functions, files: set[str]) -> Functions:
    fields = function.__dict__  # a figure that is missing is none of them
    places = {name: recorded_place(place, files) for name in _PLACES if (place := fields.get(name))}
    if match := _OF_TRACE.fullmatch(fields.get("function") or ""):
        file, _, line = recorded_place(f"{match['file']}:{match['line']}", files).rpartition(":")
        places["function"] = f"{file}({line}): {match['name']}"
    return function.model_copy(update=places) if places else function


def _of_function(words: str, files: set[str]) -> str:
    match = _FUNCTION.fullmatch(words)
    return f"{match['name']} at {recorded_place(match['place'], files)}" if match else words


def _files(facts: Iterable[Facts]) -> set[str]:
    """Those that stack samples of untraced steps, optimizers and loaders name."""
    return {file for rank in facts for file in _files_of(rank)}


def _files_of(facts: Facts) -> Iterator[str]:
    for window in facts.windows:
        for sample in window.sampled:
            yield from (match["file"] for frame in sample.path if (match := _FRAME.fullmatch(frame)))
    made_at = [*(optimizer.where for optimizer in facts.optimizers), *(loader.where for loader in facts.loaders)]
    yield from (where.rpartition(":")[0] for where in made_at if where)
