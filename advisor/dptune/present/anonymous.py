"""A report that names no host, path, file or command: to be sent to others.

They are replaced wherever they stand, in titles and evidence too, by `host 1`, `trace 1`, `file1.py`; the same name by
the same word. Names of functions, classes and operations stay: without them a report is of little use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

from dptune.advice import Report
from dptune.knobs import ENVIRONMENT

# The user's lines, whatever their file is called; paths; and relative paths of files.
_LINE = re.compile(r"(?<![\w/.-])((?:[\w.~-]*[/\\])*[\w.-]+\.py|(?:[\w.~-]*[/\\])+[\w.-]+)(?=:\d+|\(\d+\))")
_ENDING = r"\.(?:json|py|gz|zst|log|txt|csv|bin|pt)(?:\.gz)?(?!\w)"
_SPACED = re.compile(rf"(?<![\w.:/])(?:/|~/|[A-Za-z]:\\)[^'\"`,;)\n]*?{_ENDING}")  # up to where a file's name ends
_URL = re.compile(r"(?<!\w)(?!https://ui\.perfetto\.dev)[A-Za-z][\w+.-]*://[^\s'\"`,;)]+")
_SHARE = re.compile(r"(?<![\w\\])\\\\[\w.$-]+(?:\\[^\s'\"`,;)]+)+")  # of Windows: its host, then where it lies there
_PATH = re.compile(r"(?<![\w.:/])(?:/|~/|[A-Za-z]:\\)[^\s'\"`,;)]+")
_RELATIVE = re.compile(r"(?<![\w/.])[\w.~-]+(?:[/\\][\w.~-]+)+\.\w{1,5}(?!\w)")
_FILE = re.compile(r"(?<![\w/.-])(?!file\d+\.py)[\w.~+@=-]+\.(?:json|py|gz|zst|log|txt|csv|bin)(?:\.gz)?(?![\w(])")
_FRAME = re.compile(r"^((?:/|[A-Za-z]:\\)[^;]+\.\w{1,5})\(\d+\): ")  # a function of a trace: its path may have spaces
_LABEL = re.compile(r"(?=[^.]*[\d-])(?!\d+\.)[^.]{2,}\.")  # of a host's name; one that is no plain word
_USER = re.compile(r"[\w.+-]+@(?=host \d)")
_LEFT = {
    **dict.fromkeys((_URL, _SHARE, _SPACED, _PATH), "a path"),  # in this order
    **dict.fromkeys((_RELATIVE, _FILE), "a file"),
}
_LETTERS = re.compile(r"[^\W_]*")  # a name of nothing else may be a part of a word with underscores
# Where a word alone is a name; elsewhere it is one of those that a report is written in.
_NAMED = {"host", "hosts", "place", "slow_link_hosts", "source", "sources", "file", "verify"}


def anonymous(report: Report) -> Report:
    """The same report without names."""
    dump = report.model_dump(mode="json")
    names = {name: word for name, word in _names(report, dump) if len(name) > 1}
    dump["run"] |= {"command": None, "recorded": None, "settings": []}
    for proof in dump["verified"]:
        proof["command"] = ""
        if any(name.startswith(ENVIRONMENT) for name in proof["changes"]):
            proof["name"], proof["changes"] = "variables of the environment", {}
    return Report.model_validate(_Placeholders(names).without(dump))


def _names(report: Report, dump: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is to be replaced, and by what."""
    if report.run.command:
        yield report.run.command, "the command"
    sources = dict.fromkeys([*report.run.sources, *(rank.source for rank in report.measured.ranks)])
    folders = dict.fromkeys(str(PurePath(path).parent) for path in sources)
    for number, source in enumerate(sources, 1):
        yield source, f"trace {number}"
        yield PurePath(source).name, f"trace {number}"
    for number, folder in enumerate(folders, 1):
        yield folder, f"run {number}"
        yield PurePath(folder).name, f"run {number}"
    for number, host in enumerate(dict.fromkeys(str(rank.known("host") or "") for rank in report.measured.ranks), 1):
        yield host, f"host {number}"
        if _LABEL.match(host):  # "node-7" of "node-7.cluster.example"
            yield host.partition(".")[0], f"host {number}"
    outliers = report.measured.known("outliers")
    racks = [place.place for place in outliers.late if place.kind == "hosts"] if outliers else []
    for number, start in enumerate(racks, 1):
        yield start, f"hosts {number}"
    files = dict.fromkeys(
        found for words in _strings(dump) for found in [*_FRAME.findall(words), *_LINE.findall(words)]
    )
    at = {change.at.file: None for advice in report.advice for change in advice.changes if change.at}
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


class _Placeholders:
    """What stands for each name: where names may be words alone, in sentences, and in fields of a single word.

    In a sentence a folder or a trace that is called like a word is left, in a single word hosts are as well: it may be
    one that a report is written in.
    """

    def __init__(self, named: dict[str, str]) -> None:
        self._words = named
        self._alone = _any_of(named)
        self._in_words = _any_of(name for name, word in named.items() if word.startswith("host") or not name.isalnum())
        self._single = _any_of(name for name in named if not name.isalnum())

    def without(self, value: Any, key: str = "") -> Any:
        """The same without names; `key` is that of the field it stands in."""
        if isinstance(value, dict):
            return {name: self.without(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self.without(each, key) for each in value]
        if not isinstance(value, str):
            return value
        in_words = re.search(r"[\s/\\]", value)
        pattern = self._alone if key in _NAMED else self._in_words if in_words else self._single
        plain = pattern.sub(lambda found: self._words[found[0]], value) if pattern else value
        plain = _USER.sub("", plain)
        for left, word in _LEFT.items():
            plain = left.sub(word, plain)
        return plain


def _any_of(names: Iterable[str]) -> re.Pattern[str] | None:
    """Finds each of the names as a whole, the longest first; None where there are none."""
    longest = sorted(names, key=len, reverse=True)
    each = [rf"(?<!_){name}(?!_)" if _LETTERS.fullmatch(name) else re.escape(name) for name in longest]
    return re.compile(rf"(?<![^\W_])(?:{'|'.join(each)})(?![^\W_])") if longest else None
