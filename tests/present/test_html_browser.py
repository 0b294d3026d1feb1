"""The page in a real browser: light, dark, narrow and printed; no message on its console, nothing fetched."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageStat

from dptune.advice import Report
from dptune.measure.lanes import Lane, Piece, StepLanes
from dptune.present.html import RunDetails, page
from dptune.present.html.document import document
from dptune.present.html.markup import Section
from dptune.present.html.tables import table
from dptune.present.table import Column

from .. import reading  # noqa: TID252 - tests are no installed package
from ..conftest import REAL_TRACES  # noqa: TID252
from .conftest import make_report
from .test_html import EVIL, LANES, page_of, whole_page

SAMPLES = Path(__file__).parents[2] / "sample_traces"
# Whenever it starts, the browser asks its maker's servers for the time, accounts and models: it finds no host.
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--password-store=basic", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
)
BROWSER_ITSELF = "not an origin"  # who asks for what no page asked for, such as the time
# A start takes 1 to 4 s; a browser that something stops would hold up the suite.
ENDS_WITHIN_S = (60, 240, 900)


@dataclass
class Browser:
    """The browser, with one profile for all pages: to make one takes longer."""

    program: str
    profiles: Iterator[Path]
    profile: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Start it with its options and these words to its end; with another profile where it does not end."""
        for within_s in ENDS_WITHIN_S:
            command = [self.program, *QUIET, f"--user-data-dir={self.profile}", *words]
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as started:
                try:
                    out, err = started.communicate(timeout=within_s)
                    break
                except subprocess.TimeoutExpired:
                    os.killpg(started.pid, signal.SIGKILL)
                    self.profile = next(self.profiles)
        else:
            pytest.fail(f"the browser did not end within {within_s} s: {words}")
        assert started.returncode == 0, err
        return subprocess.CompletedProcess(command, 0, out, err)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed to open the page in")
    profiles = (tmp_path_factory.mktemp("profile") for _ in itertools.count())
    return Browser(found, profiles, next(profiles))


HANGS_WITH_THE_FIRST = """#!/bin/sh
case "$1" in *=first) sleep 600 & wait;; esac
echo "$@"
"""


def test_a_browser_that_hangs_is_ended_and_started_with_another_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it started holds its output open, and is ended with it."""
    monkeypatch.setitem(globals(), "QUIET", ())
    monkeypatch.setitem(globals(), "ENDS_WITHIN_S", (1, 300))
    (tmp_path / "browser").write_text(HANGS_WITH_THE_FIRST)
    (tmp_path / "browser").chmod(0o755)
    browser = Browser(str(tmp_path / "browser"), iter([Path("second")]), Path("first"))
    assert browser("page.html").stdout == "--user-data-dir=second page.html\n"


def opened(chromium: Browser, file: Path, *options: str) -> str:
    """What the browser writes on stderr while it opens the file."""
    return chromium("--enable-logging=stderr", *options, file.as_uri()).stderr


def told(chromium: Browser, file: Path) -> tuple[list[str], list[str]]:
    """What stands on the page's console, and the addresses that the page asked for."""
    log = file.parent / "net.json"
    written = opened(chromium, file, f"--log-net-log={log}", "--dump-dom")
    read = json.loads(log.read_text())
    begun = read["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = (event["params"] for event in read["events"] if event["type"] == begun and "params" in event)
    return (
        re.findall(r":CONSOLE.*", written),
        [one["url"] for one in asked if one.get("initiator", BROWSER_ITSELF) != BROWSER_ITSELF],
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page_of("accumulation_without_no_sync"))
    return file


def seen(chromium: Browser, file: Path, wide: int, *options: str) -> Image.Image:
    picture = file.parent / "picture.png"
    opened(chromium, file, f"--screenshot={picture}", f"--window-size={wide},900", *options)
    with Image.open(picture) as image:
        return image.convert("RGB")


def brightness(image: Image.Image) -> float:
    return ImageStat.Stat(image.convert("L")).mean[0]


TALKS = '<!doctype html><img src="http://127.0.0.1:9/seen.png"><script>console.log("hello")</script>'


def test_no_message_and_no_request(chromium: Browser, recorded: Path, report: Report, tmp_path: Path) -> None:
    """Nor where names of a trace would make both; beside a page that runs a script and fetches a picture."""
    worse = f"{EVIL}<img src=http://127.0.0.1:9/x.png onerror=alert(1)><svg onload=console.log(1)>]]>--></style>"
    trap = report.model_copy(
        update={
            "advice": [one.model_copy(update={"title": worse, "why": worse}) for one in report.advice],
            "run": report.run.model_copy(update={"command": worse, "sources": [worse]}),
        }
    )
    written = {"talks": TALKS, "recorded": recorded.read_text(), "trap": page(trap, RunDetails([LANES]))}
    for name, text in written.items():
        (tmp_path / f"{name}.html").write_text(text)
    frames = "".join(f'<iframe src="{name}.html"></iframe>' for name in written)
    (tmp_path / "all.html").write_text(f"<!doctype html>{frames}")
    (message,), (asked,) = told(chromium, tmp_path / "all.html")
    assert "hello" in message
    assert asked == "http://127.0.0.1:9/seen.png"


@pytest.mark.parametrize(
    ("scheme", "least", "most"),
    [pytest.param(0, 0, 80, id="dark"), pytest.param(1, 180, 255, marks=pytest.mark.thorough, id="light")],
)
def test_light_and_dark(chromium: Browser, recorded: Path, scheme: int, least: int, most: int) -> None:
    picture = seen(chromium, recorded, 1200, f"--blink-settings=preferredColorScheme={scheme}")
    assert least < brightness(picture) < most
    assert len(picture.getcolors(1 << 20) or []) > 100  # words and pictures, no empty page


@pytest.mark.thorough  # narrower ones, and that nothing runs over their edge, are seen below
def test_a_narrow_window_shows_it_too(chromium: Browser, recorded: Path) -> None:
    picture = seen(chromium, recorded, 500, "--blink-settings=preferredColorScheme=1")
    assert picture.size[0] == 500
    edge = picture.crop((490, 0, 500, 900))
    assert len(edge.getcolors() or []) <= 2  # nothing runs over the edge


# Opens pages in frames of a phone's width, does something in each, and writes what comes of it into its own body.
FRAMES = """<!doctype html><body><script>
const pages = [{pages}], found = pages.map(() => null);
pages.forEach(([file, look], place) => {{
  const frame = document.createElement("iframe");
  frame.style = "width:390px;height:900px;border:0";
  frame.addEventListener("load", () => {{
    found[place] = look(frame.contentDocument);
    if (!found.includes(null)) document.body.textContent = "found:" + JSON.stringify(found) + ":end";
  }});
  frame.src = file;
  document.body.append(frame);
}});
</script>"""


def framed(chromium: Browser, looks: list[tuple[Path, str]]) -> list[Any]:
    """What functions of JavaScript return of their pages, 390 px wide, in one start of the browser."""
    frames = looks[0][0].parent / "frames.html"
    pages = ", ".join(f"[{json.dumps(file.as_uri())}, {look}]" for file, look in looks)
    frames.write_text(FRAMES.format(pages=pages))
    done = chromium("--allow-file-access-from-files", "--dump-dom", "--virtual-time-budget=5000", frames.as_uri())
    found = re.search(r"found:(.*):end", done.stdout, re.DOTALL)
    assert found, done.stdout[:500]
    read: list[Any] = json.loads(unescape(found[1]))
    return read


# How wide the page is, and what of it ends beyond the edge, tables included.
OVERFLOW = """page => {
  const over = element => !element.closest("pre, svg") && element.getBoundingClientRect().right > 391;
  const found = [...page.querySelectorAll("main *")].filter(over);
  return [page.documentElement.scrollWidth, found.map(element => element.outerHTML)];
}"""


def with_long_names(report: Report) -> str:
    long = "x" * 400
    card = report.advice[0].model_copy(update={"title": long, "why": long, "slug": long})
    run = report.run.model_copy(update={"command": f"python {long}.py", "sources": [long]})
    lanes = StepLanes(0, 7, 10, [Lane(long, [Piece(0, 5, "compute", long, 1)])])
    return page(report.model_copy(update={"advice": [card], "run": run}), RunDetails([lanes]))


@pytest.mark.thorough  # its page has more of the same; another public trace is seen each time
def test_eight_ranks_do_not_run_over_the_edge_of_a_phone(chromium: Browser, tmp_path: Path, real_traces: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(whole_page(*reading.run_and_report_of(real_traces / "nanogpt_8xh100")))
    assert framed(chromium, [(file, OVERFLOW)]) == [[390, []]]


# How wide each part of a bar is.
PARTS = 'page => [...page.querySelectorAll("#summary .bar span")].map(part => part.getBoundingClientRect().width)'
# The parts with a caption: the color of the line before each, and whether its name is seen beside the caption.
NAMED = """page => [...page.querySelectorAll("#summary .bar span:not(:empty)")].map(part => [
  getComputedStyle(part).boxShadow, part.querySelector("i").offsetTop < part.offsetTop + 5])"""
SORTED = """page => {
  const table = page.querySelector("#kernel-table table"), shares = () => [...table.tBodies[0].rows].map(
    row => row.cells[row.cells.length - 1].dataset.v);
  const seen = [shares()];
  const click = column => table.tHead.rows[0].cells[column].querySelector("button").click();
  click(table.tHead.rows[0].cells.length - 1); seen.push(shares());
  click(table.tHead.rows[0].cells.length - 1); seen.push(shares());
  click(0); seen.push([...table.tBodies[0].rows].map(row => row.cells[0].textContent));
  seen.push([...table.tHead.rows[0].cells].map(header => header.getAttribute("aria-sort")));
  return seen;
}"""


@pytest.fixture(scope="module")
def found(chromium: Browser, recorded: Path) -> dict[str, Any]:
    """What OVERFLOW, PARTS, SORTED and NAMED find in the sample; what OVERFLOW finds in other pages."""
    looks = {"sample": (recorded, f"page => [{OVERFLOW}, {PARTS}, {SORTED}, {NAMED}].map(find => find(page))")}
    others = {"names of any length": with_long_names(make_report())}
    if REAL_TRACES.is_dir():
        others["public"] = whole_page(*reading.run_and_report_of(REAL_TRACES / "torchrec_straggler_4xv100"))
    for name, text in others.items():
        file = recorded.with_name(f"{name}.html")
        file.write_text(text)
        looks[name] = file, OVERFLOW
    return dict(zip(looks, framed(chromium, [*looks.values()]), strict=True))


@pytest.fixture(scope="module")
def found_in_sample(found: dict[str, Any]) -> Any:
    return found["sample"]


def test_names_of_any_length_do_not_run_over_the_edge_of_a_phone(found: dict[str, Any]) -> None:
    assert found["names of any length"] == [390, []]


def test_a_public_trace_does_not_run_over_the_edge_of_a_phone(found: dict[str, Any], real_traces: Path) -> None:
    assert found["public"] == [390, []]


def test_a_sample_fits_a_phone_and_its_bars_show_every_part(found_in_sample: list[Any]) -> None:
    overflow, widths, *_ = found_in_sample
    assert overflow == [390, []]
    assert len(widths) >= 4  # compute, communication, waiting, idle
    assert all(width > 2 for width in widths)
    assert sum(widths) < 390


def test_parts_are_told_apart_without_color(found_in_sample: list[Any]) -> None:
    """In grey, compute and exposed communication are nearly the same."""
    (first_line, is_named), *others = found_in_sample[3]
    assert (first_line, is_named) == ("none", True)
    assert others
    assert all("2px" in line for line, _ in others)
    assert [named for _, named in others][-1] is False  # it has room for its share alone


def test_a_click_on_a_header_sorts_its_table(found_in_sample: list[Any]) -> None:
    before, down, up, names, states = found_in_sample[2]
    assert [float(share) for share in down] == sorted(map(float, before), reverse=True)
    assert [float(share) for share in up] == sorted(map(float, before))
    assert names == sorted(names, reverse=True)
    assert states[0] == "descending"
    assert set(states[1:]) == {None}


def test_a_long_table_is_cut_on_paper_and_a_long_name_takes_three_lines(chromium: Browser, tmp_path: Path) -> None:
    """Whole, either takes ten pages and more."""
    rows = [[f"row {number}"] for number in range(1_000)]
    ranks = Section("ranks", "Ranks", "Ranks", table([Column("rank")], rows, "Ranks"))
    names = [[f"{number}{'x' * 4_000}", "1"] for number in range(24)]
    kernels = table([Column("kernel", right=False), Column("per step")], names, "Kernels")
    file, paper = tmp_path / "long.html", tmp_path / "long.pdf"
    file.write_text(document("long", [], [ranks, Section("kernel-table", "Kernels", "Kernels", kernels)], ""))
    opened(chromium, file, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) <= 4


def test_it_prints(chromium: Browser, recorded: Path) -> None:
    paper = recorded.parent / "report.pdf"
    opened(chromium, recorded, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    written = paper.read_bytes()
    assert written.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", written)) <= 9
