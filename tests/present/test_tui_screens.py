"""Every tab as it looks on a recording, at two sizes; `pytest --snapshot-update` after a change that is meant."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.terminal_theme import TerminalTheme
from syrupy.assertion import SnapshotAssertion
from textual.color import Color
from textual.pilot import Pilot
from textual.theme import BUILTIN_THEMES

from dptune.advice import Report
from dptune.present.tui.advice import _cells
from dptune.present.tui.app import ReportApp
from dptune.present.tui.palette import DARK, LIGHT
from dptune.trace.run import Run

from .. import reading  # noqa: TID252 - tests are no installed package
from . import shared_app
from .test_tui import LARGE, SMALL, flat, see, settled

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TABS = {
    "1": "21 % of each step is exposed communication, 10 % is waiting for",
    "2": "high impact, high confidence: DP102 no-sync-missing",
    "3": "late ms by step",
    "4": "Collectives (traced times)",
    "5": "Selected gap",
    "6": "█ compute ▓ exposed comm ▒ waiting",
    "7": "dptune whatif",
}


HUES = ("red", "green", "yellow", "blue", "magenta", "cyan")


def luminance(color: Color) -> float:
    """WCAG 2: relative luminance."""
    parts = [part / 255 for part in (color.r, color.g, color.b)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Color, other: Color) -> float:
    """WCAG 2: 4.5 is the least for text."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("name", "hues"), [("textual-dark", DARK), ("textual-light", LIGHT)])
@pytest.mark.parametrize("where", ["background", "surface", "panel"])
def test_colored_text_can_be_read(name: str, hues: TerminalTheme, where: str) -> None:
    """4.5 to 1, the least that WCAG 2 asks of text, wherever colored text is."""
    back = Color.parse(BUILTIN_THEMES[name].to_color_system().generate()[where])
    for number in range(1, 7):
        assert contrast(back, Color(*hues.ansi_colors[number])) >= 4.5, HUES[number - 1]


@pytest.fixture(scope="module")
def recorded() -> tuple[Run, Report]:
    run, report = reading.sample("accumulation_without_no_sync")
    ranks = [one.model_copy(update={"source": Path(one.source).name}) for one in report.measured.ranks]
    read = report.run.model_copy(update={"sources": [Path(one).name for one in report.run.sources]})
    named = report.measured.model_copy(update={"ranks": ranks})
    return run, report.model_copy(update={"measured": named, "run": read})


@pytest.fixture(scope="module")
async def app(recorded: tuple[Run, Report]) -> AsyncIterator[Pilot[None]]:
    run, report = recorded
    async with shared_app.started(report, run, SMALL) as pilot:
        yield pilot


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
async def test_the_title_of_a_page_can_be_read(app: Pilot[None], theme: str) -> None:
    pilot = await shared_app.at_its_start(app, SMALL)
    pilot.app.theme = theme
    await settled(pilot, "Keys (Escape closes)", "question_mark")
    segments = (segment for strip in pilot.app.screen._compositor.render_strips() for segment in strip)
    (style,) = [segment.style for segment in segments if "Keys (Escape closes)" in segment.text]
    assert style is not None
    assert style.color is not None
    assert style.bgcolor is not None
    assert contrast(Color.from_rich_color(style.color), Color.from_rich_color(style.bgcolor)) >= 4.5


def test_a_row_of_low_confidence_is_not_dim(recorded: tuple[Run, Report]) -> None:
    """Selected, under NO_COLOR, dim text has 3.6 to 1."""
    _, report = recorded
    (low,) = [advice for advice in report.advice if advice.confidence == "low"]
    assert "dim" not in str(_cells(low, report)["fix"].style)


async def test_what_to_do_next_is_whole_on_a_small_screen(real_traces: Path) -> None:
    run, report = reading.run_and_report_of(real_traces / "nanogpt_8xh100")
    async with ReportApp(report, run).run_test(size=SMALL) as pilot:
        seen = flat(await settled(pilot, "Next"))
    assert "work that only this rank does." in seen
    assert "rules explain" not in seen, "w on tab 2 explains it"


def without_scroll_bar(row: str) -> str:
    """The row without the end of a scroll bar, in its last columns or before a border: it follows the layout."""
    return re.sub(r"[▁-█](?=[▁-█]?(?: │)?$)", " ", row).rstrip()


@pytest.fixture(scope="module")
async def screens(app: Pilot[None]) -> dict[tuple[tuple[int, int], str], str]:
    """Every tab at both sizes, in one walk."""
    seen = {}
    for size in (SMALL, LARGE):
        pilot = await shared_app.at_its_start(app, size)
        for key, words in TABS.items():
            if key == "7":
                await see(pilot, "Advised by DP102 no-sync-missing", "7")
            seen[size, key] = await settled(pilot, words, key)
    return seen


@pytest.mark.parametrize(
    ("size", "key"),
    [
        *(pytest.param(SMALL, key, id=f"80x24-{key}") for key in TABS),
        *(pytest.param(LARGE, key, id=f"140x40-{key}") for key in TABS),
    ],
)
def test_a_tab_looks_as_it_did(
    screens: dict[tuple[tuple[int, int], str], str], key: str, size: tuple[int, int], snapshot: SnapshotAssertion
) -> None:
    rows = screens[size, key].splitlines()
    assert len(rows) == size[1]
    assert all(len(row) <= size[0] for row in rows)
    assert "\n".join(map(without_scroll_bar, rows)) == snapshot
