"""The full-screen report of a run, started once for the tests of a file: a start takes as long as half a walk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot
from textual.widgets import DataTable

from dptune.advice import Report
from dptune.present.tui.advice import Cards
from dptune.present.tui.app import ReportApp
from dptune.present.tui.finder import Finder
from dptune.present.tui.rank_table import RankTable
from dptune.present.tui.timeline import Timeline
from dptune.present.tui.timeline_view import TimelineView
from dptune.present.tui.whatif import WhatIfPane
from dptune.trace.run import Run

THEME = "textual-dark"  # at the start


@asynccontextmanager
async def started(report: Report, run: Run | None, size: tuple[int, int]) -> AsyncIterator[Pilot[None]]:
    """The report on a screen of this size."""
    async with ReportApp(report, run).run_test(size=size, notifications=True) as pilot:
        yield pilot
        await pilot.app.workers.wait_for_complete()


async def at_its_start(pilot: Pilot[None], size: tuple[int, int]) -> Pilot[None]:
    """The same, as it was at its start, whatever the test before did; what is read and modelled stays so."""
    app = pilot.app
    await app.workers.wait_for_complete()
    while len(app.screen_stack) > 1:
        await app.pop_screen()
    app.clear_notifications()
    app.copy_to_clipboard("")
    app.theme = THEME
    app.query_one(Finder).action_close()
    await pilot.pause()  # what was filtered is all there again
    for cards in app.query(Cards):
        while cards._order != "as ranked":
            cards.action_sort()
        cards.find("")  # those of the report, whatever a test put in their place
    for ranks in app.query(RankTable):
        if ranks._by >= 0:
            ranks._by = -1
            ranks._fill()
    for table in app.query(DataTable):
        table.move_cursor(row=0)
    for pane in app.query(WhatIfPane):
        if pane._ground is not None:  # it was shown
            pane._set(pane._advised)
            pane._moved = False
            if pane._last is None or pane._last[0] != pane._advised:
                pane._ask()
    await app.workers.wait_for_complete()
    if app.size != size:
        await pilot.resize_terminal(*size)
    for timeline in app.query(Timeline):
        if timeline.view.run_time is not None:
            await pilot.press("6")  # its pictures are as wide as it is while it is shown
            _begin_again(timeline)
    await pilot.press("1", "home")
    return pilot


def _begin_again(timeline: Timeline) -> None:
    """Its first picture."""
    view, report = timeline.view, timeline.app._report  # type: ignore[attr-defined]
    run_time, read = view.run_time, view._lanes_of
    vars(view).update(vars(TimelineView(view.run, report, timeline._screen)), _lanes_of=read)
    timeline._keep(run_time)
