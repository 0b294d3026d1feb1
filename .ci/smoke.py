"""Report on a run in every format and open the full-screen report: `python .ci/smoke.py RUN FOLDER`."""

import asyncio
import json
import sys
from pathlib import Path

from dptune.cli import main
from dptune.commands.shared.reading import report_of
from dptune.present.tui.app import ReportApp

run, folder = sys.argv[1], Path(sys.argv[2])


def written(name: str, *words: str) -> str:
    """The content that the command writes to a file of this name."""
    status = main([*words, "-o", str(folder / name)])
    assert status == 0, f"dptune {' '.join(words)} ended with {status}"
    return (folder / name).read_text(encoding="utf-8")


async def walk() -> None:
    """Open the full-screen report, a card and the help, and find the first advice on the screen."""
    report = report_of([run], cached=False)
    async with ReportApp(report).run_test(size=(120, 40)) as pilot:
        await pilot.press("down", "enter", "escape", "question_mark", "escape")
        await pilot.pause()
        seen = "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips())
        assert report.advice[0].rule in seen, seen


assert json.loads(written("report.json", "report", run, "--no-cache", "--format", "json"))["advice"]
assert "</html>" in written("report.html", "report", run, "--no-cache", "--format", "html")
assert main(["report", run, "--no-cache", "--no-tui"]) == 0
assert main(["report", run, "--no-cache", "--full"]) == 0
assert main(["whatif", run, "--no-cache"]) == 0
asyncio.run(walk())
print("report (text, JSON, HTML, full screen) and whatif: passed")
