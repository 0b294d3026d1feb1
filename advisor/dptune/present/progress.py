"""A progress line on stderr while files are read and measured, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[str, int, int], None]


@contextmanager
def progress() -> Iterator[Show | None]:
    """A function to call with what is being done, how much of it is done, and how much there is; None if unseen.

    How much there is is 0 where that is not known.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from dptune.present.visible import visible

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    counted, uncounted = bar.add_task("", total=1, visible=False), bar.add_task("", total=None, visible=False)

    def show(what: str, done: int, total: int) -> None:
        words = escape(visible(what))
        bar.update(counted, description=words, completed=done, total=total, visible=bool(total))
        bar.update(uncounted, description=words, visible=not total)

    with bar:
        yield show
