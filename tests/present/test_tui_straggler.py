"""The full-screen report of four ranks, three of which wait a second in every step for the other: a public trace."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from textual.pilot import Pilot

from dptune.present.tui.timeline import Timeline
from dptune.present.tui.whatif import WhatIfPane

from .. import reading  # noqa: TID252 - tests are no installed package
from ..conftest import ABSENT, REAL_TRACES  # noqa: TID252
from . import shared_app
from .test_tui import SMALL, flat, see
from .test_tui_run import named_rows, picture


@pytest.fixture(scope="module")
async def app() -> AsyncIterator[Pilot[None]]:
    if not REAL_TRACES.is_dir():
        pytest.skip(ABSENT)
    run, report = reading.run_and_report_of(REAL_TRACES / "torchrec_straggler_4xv100")
    async with shared_app.started(report, run, SMALL) as pilot:
        yield pilot


@pytest.fixture
async def small(app: Pilot[None]) -> Pilot[None]:
    return await shared_app.at_its_start(app, SMALL)


async def test_all_ranks_are_seen_at_once_the_straggler_first(small: Pilot[None]) -> None:
    """Four ranks; three wait a second in every step for rank 2, which is in one range of its script meanwhile."""
    await see(small, "4 ranks, around step", "6")
    await see(small, "⏎ Open + - Zoom")  # all ranks are shown: Escape leads nowhere
    rows = named_rows(small)
    assert [row.split()[0].lstrip(">▶") for row in rows] == ["r2", "r0", "r1", "r3"]
    assert rows[0].count("·") > 40
    assert all(row.count("▒") > 40 for row in rows[1:])
    seen = await see(small, "# running sparse arch (1,010 ms)")
    assert seen.splitlines()[0].endswith("STRAGGLER  1,097 ms/step (traced mean)")
    await see(small, "rank 2 vs rank", "b")
    await see(small, "⏎ Open esc Back + - Zoom")
    assert [row[1:].split()[0] for row in picture(small).splitlines()[2:-1] if row[1:3] != "  "].count("r2") == 1
    assert {row[1:].split()[0] for row in picture(small).splitlines()[2:-1] if row[1:3] != "  "} & {
        "r0",
        "r1",
        "r3",
    }
    await see(small, "4 ranks, around step", "escape")
    await see(small, "rank 2, around step", "enter")
    await small.press(*["down"] * 12)
    assert "# running sparse arch" in picture(small)
    ranks = flat(await see(small, "Straggler: rank 2", "3"))
    assert ranks.index("▶2 1,005 ███") < ranks.index("cuda:0") < ranks.index("cuda:1")
    heading = (await see(small, "DP701", "2")).splitlines()[4]
    assert heading.strip("│ ").split() == ["fix", "saves", "confidence", "results"]  # nothing has a place


async def test_evidence_of_a_straggler_leads_to_the_range_that_holds_it_up(small: Pilot[None]) -> None:
    await see(small, "rank 2, around step", "e")  # from the overview, of the first recommendation
    view = small.app.query_one(Timeline).view
    assert view.end - view.begin < 1.2 * view.steps[view.step].length_ns  # the whole step, and little around it
    await see(small, "range: # running sparse arch")
    await small.app.workers.wait_for_complete()  # all ranks on one clock: a row more, the same one chosen
    assert small.app.query_one(Timeline).view.rows[0].label == "r2 +1,005 ms"
    await see(small, "range: # running sparse arch")


async def test_settings_without_a_prediction_come_last_and_are_not_selected_first(small: Pilot[None]) -> None:
    """A straggler's removal is selected first, as advised; of the link, nothing is known on this run."""
    seen = await see(small, "no prediction world_size", "7")
    rows = [flat(row).strip("│ ") for row in seen.splitlines() if re.search(r" [a-z]+[._][a-z_]+ *│$", row)]
    assert [row for row in rows if row.startswith(">")] == ["> remove straggler < true straggler.removed"]
    assert [row.rpartition(" ")[2] for row in rows if "no prediction" in row] == ["ddp.comm_hook", "world_size"]
    assert rows[-2:] == [row for row in rows if "no prediction" in row]
    await see(small, "Advised by DP701 late-rank")
    await see(small, "remove straggler unchanged", "0")
    await see(small, "> ranks", *["down"] * (len(rows) - 1))
    await see(small, "not predicted: the traces do not record the sizes of collectives", "right")
    pane = small.app.query_one(WhatIfPane)
    pane._put_last(frozenset({"world_size"}))
    assert [*pane.changes] == ["world_size"], "what is set stays set, wherever its row is"
    assert pane._dials[pane._chosen].knob == "world_size"
