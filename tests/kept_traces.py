"""Traces of the repository and public ones, decoded once for all processes of tests: nobody changes what is read.

Many tests load the same recordings. What `dptune.trace.loading` decodes of files that no test writes is kept; the least
recently used is given up first. What is computed once for each trace is kept with it, in each process.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dptune.trace.events import Trace
from dptune.trace.kineto.text import Tick
from dptune.trace.loading import reading

from . import sharing

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (*(ROOT / name for name in ("sample_traces", "tests", "advisor")), (ROOT / ".." / "shared").resolve())
MOST_EVENTS = 1_500_000  # of all that are kept, some 200 bytes each
MOST_OF_ONE = MOST_EVENTS // 8

Decode = Callable[..., Trace]


class KeptTraces:
    """`decode`, which reads files of the folders once."""

    def __init__(
        self, decode: Decode, folders: tuple[Path, ...] = FOLDERS, most: int = MOST_EVENTS, of_one: int = MOST_OF_ONE
    ) -> None:
        self._decode, self._folders = decode, tuple(f"{folder}{os.sep}" for folder in folders)
        self._most, self._of_one = most, of_one
        self._kept: OrderedDict[tuple[str, str, int, bool], Trace] = OrderedDict()

    def __call__(self, name: str, *, tick: Tick | None = None, keep_operators: bool = True) -> Trace:
        """As `dptune.trace.kineto.decode.decode`."""
        path = os.path.realpath(name)
        if not path.startswith(self._folders) or not Path(path).is_file():
            return self._decode(name, tick=tick, keep_operators=keep_operators)
        found = Path(path).stat()
        key = name, path, found.st_mtime_ns, keep_operators
        trace = self._kept.pop(key, None)
        if trace is None:
            read = partial(self._decode, name, tick=tick, keep_operators=keep_operators)
            trace = sharing.once(repr(key), read, lambda decoded: decoded.events <= self._of_one)
        elif tick is not None:
            tick(found.st_size)
        if trace.events <= self._of_one:
            self._kept[key] = trace
        while sum(each.events for each in self._kept.values()) > self._most:
            self._kept.popitem(last=False)
        return trace

    def name_of(self, trace: Trace) -> str | None:
        """The name it is kept by, in each process the same; None where it is not kept."""
        return next((repr(key) for key, each in self._kept.items() if each is trace), None)


@contextlib.contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Keep the traces of one more folder meanwhile: tests only read what a fixture has recorded there."""
    kept = keep()
    before, kept._folders = kept._folders, (*kept._folders, f"{folder.resolve()}{os.sep}")
    try:
        yield
    finally:
        kept._folders = before


def keep() -> KeptTraces:
    """From now on, in this process."""
    own = vars(reading)
    if "decode" not in own:
        raise LookupError(f"{reading.__name__} reads traces with `decode`, which tests replace here: keep that name")
    if not isinstance(own["decode"], KeptTraces):
        own["decode"] = KeptTraces(own["decode"])
    kept: KeptTraces = own["decode"]
    return kept
