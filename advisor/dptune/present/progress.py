"""A progress line on stderr while files are read, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[str, int, int], None]


@contextmanager
def progress() -> Iterator[Show | None]:
    """A function to call with what is being done, how much of it is done, and how much there is; None if unseen."""
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
    task = bar.add_task("", total=1, visible=False)

    def show(what: str, done: int, total: int) -> None:
        bar.update(task, description=escape(visible(what)), completed=done, total=total, visible=True)

    with bar:
        yield show
