"""Draw the pictures that the README and the pages show: `make pictures`.

They are what the full-screen report shows of recordings in sample_traces and of public traces (which are not in the
repository: their picture is kept where they are absent), what `dptune check` prints of one, and what `dptune tune`
printed of docs/examples/agent/train.py (its result is pictures/tune.json), as SVG with nothing to fetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from rich.console import Console
from rich.text import Text

from dptune.advice import Report
from dptune.cli import main
from dptune.commands.shared.reading import run_and_report
from dptune.present.ink import paint
from dptune.present.sections.tuning import page
from dptune.present.tui.app import ReportApp
from dptune.trace.run import Run
from dptune.tune.result import Tuning

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
RUN = "sample_traces/accumulation_without_no_sync"
UNITS = "sample_traces/gpu/ranks-nccl-fsdp"
PUBLIC = "../shared/real_traces/nanogpt_8xh100"
SIZE = (108, 32)
CHECK = f"dptune check {RUN} --fail-on medium"


class Screen(NamedTuple):
    """The full-screen report of a run after some keys."""

    run: str
    keys: Sequence[str]


PICTURES = {
    "overview": Screen(RUN, ()),
    "advice": Screen(RUN, ("2",)),
    "timeline": Screen(RUN, ("6", "b", "down")),
    "what-if": Screen(RUN, ("7", "0", "right", "right", "down", "down", "right")),
    "eight-gpus": Screen(PUBLIC, ("6",)),
    "fsdp2": Screen(UNITS, ()),
}
_FONTS = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


@functools.cache
def _read(path: str) -> tuple[Run, Report]:
    return run_and_report([path], cached=False)


async def drawn(screen: Screen) -> str:
    """The screen as SVG."""
    run, report = _read(screen.run)
    app = ReportApp(report, run)
    async with app.run_test(size=SIZE) as pilot:
        for key in screen.keys:
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
    command = "dptune tune --only loader.num_workers,optimizer.foreach --warmup 2 --steps 10 --seconds 0 train.py"
    return _terminal("tune", command, paint(page(tuning, SIZE[0]), colour=True))


def checked() -> str:
    """What `dptune check` prints on a terminal."""
    printed = _Terminal()
    columns = {"COLUMNS": str(SIZE[0]), "TERM": "xterm", "NO_COLOR": ""}
    with contextlib.redirect_stdout(printed), mock.patch.dict(os.environ, columns):
        main(CHECK.split()[1:])
    return _terminal("check", CHECK, printed.getvalue())


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _terminal(name: str, command: str, output: str) -> str:
    console = Console(record=True, width=SIZE[0], file=io.StringIO())
    console.print(Text.from_ansi(f"$ {command}"))
    console.print(Text.from_ansi(output), soft_wrap=True)
    return _FONTS.sub("", console.export_svg(title=f"dptune {name}", unique_id=name)) + "\n"


def words(picture: str) -> list[str]:
    """What stands in a picture, row by row."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    os.chdir(ROOT)
    for name, screen in PICTURES.items():
        if Path(screen.run).exists():
            (FOLDER / f"{name}.svg").write_text(asyncio.run(drawn(screen)), encoding="utf-8")
    (FOLDER / "tune.svg").write_text(tuned(), encoding="utf-8")
    (FOLDER / "check.svg").write_text(checked(), encoding="utf-8")
    print(f"wrote {FOLDER}")
