"""Draw the pictures that the README shows: `make pictures`.

They are what the full-screen report shows of sample_traces/accumulation_without_no_sync, and what `dptune tune` printed
of docs/examples/agent/train.py (its result is pictures/tune.json), as SVG with nothing to fetch.
"""

from __future__ import annotations

import asyncio
import functools
import io
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dptune.advice import Report
from dptune.commands.shared.reading import run_and_report
from dptune.present.ink import paint
from dptune.present.sections.tuning import page
from dptune.present.tui.app import ReportApp
from dptune.trace.run import Run
from dptune.tune.result import Tuning

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
RUN = "sample_traces/accumulation_without_no_sync"
SIZE = (108, 32)
PICTURES: dict[str, Sequence[str]] = {
    "overview": (),
    "advice": ("2",),
    "timeline": ("6", "b", "down"),
    "what-if": ("7", "0", "right", "right", "down", "down", "right"),
}
_FONTS = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


@functools.cache
def _read() -> tuple[Run, Report]:
    return run_and_report([RUN], cached=False)


async def drawn(keys: Sequence[str]) -> str:
    """The screen after some keys, as SVG."""
    run, report = _read()
    app = ReportApp(report, run)
    async with app.run_test(size=SIZE) as pilot:
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.2)
            await app.workers.wait_for_complete()  # ranks are read, and steps replayed, beside the interface
        picture = before = ""
        while not (app.screen.query("FooterKey") and picture and words(picture) == words(before)):  # on a busy machine
            await pilot.pause(0.5)
            before, picture = picture, app.export_screenshot(title="dptune report")
    return _FONTS.sub("", picture) + "\n"


def tuned() -> str:
    """The report of a recorded search, as on a terminal."""
    tuning = Tuning.model_validate_json((FOLDER / "tune.json").read_text(encoding="utf-8"))
    console = Console(record=True, width=SIZE[0], file=io.StringIO())
    console.print(
        Text.from_ansi(
            "$ dptune tune --only loader.num_workers,optimizer.foreach --warmup 2 --steps 10 --seconds 0 train.py"
        )
    )
    console.print(Text.from_ansi(paint(page(tuning, SIZE[0]), colour=True)), soft_wrap=True)
    return _FONTS.sub("", console.export_svg(title="dptune tune", unique_id="tune")) + "\n"


def words(picture: str) -> list[str]:
    """What stands in a picture, row by row."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, pressed in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(asyncio.run(drawn(pressed)), encoding="utf-8")
    (FOLDER / "tune.svg").write_text(tuned(), encoding="utf-8")
    print(f"wrote {FOLDER}")
