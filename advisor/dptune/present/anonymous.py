"""A report that names no host, path, file, command or user: to be sent to others.

Names are replaced wherever they stand, in titles and evidence too, by `host 1`, `run 1`, `file1.py`; the same name by
the same word. What torch and the libraries call their operations stays: without it a report tells little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from dptune.advice import Report

_LINE = re.compile(r"(?<![\w/.-])((?:[\w.~-]*[/\\])*[\w.-]+\.py)(?=:\d+)")
_PATH = re.compile(r"(?<![\w.:/])(?:/|~/|[A-Za-z]:\\)[^\s'\"`,;)]+")
_LEAST = 3  # letters of a name that is looked for: shorter ones are parts of words


def anonymous(report: Report) -> Report:
    """The same report without names."""
    told = report.model_dump(mode="json")
    names = dict(_names(report, told))
    told["run"] |= {"command": None, "recorded": None}
    return Report.model_validate(_without(told, sorted(names.items(), key=lambda one: -len(one[0]))))


def _names(report: Report, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is to be replaced, and by what."""
    if report.run.command:
        yield report.run.command, "the command"
    sources = dict.fromkeys([*report.run.sources, *(rank.source for rank in report.measured.ranks)])
    folders = dict.fromkeys(str(PurePath(one).parent) for one in sources)
    for number, source in enumerate(sources, 1):
        yield source, f"trace {number}"
    for number, folder in enumerate(folders, 1):
        yield folder, f"run {number}"
    for number, host in enumerate(dict.fromkeys(str(rank.known("host") or "") for rank in report.measured.ranks), 1):
        yield host, f"host {number}"
    files = dict.fromkeys(found for words in _strings(told) for found in _LINE.findall(words))
    at = {change.at.file: None for one in report.advice for change in one.changes if change.at}
    for number, file in enumerate({**at, **files}, 1):
        yield file, f"file{number}.py"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _without(value: Any, names: list[tuple[str, str]]) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each, names) for each in value]
    if not isinstance(value, str):
        return value
    for name, word in names:
        if len(name) >= _LEAST and name in value:
            value = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, value)
    return _PATH.sub("a path", value)
