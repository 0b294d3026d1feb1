"""The pictures of the README and of the pages show what the interface shows now."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from dptune.advice import Report
from dptune.trace.run import Run

from .. import reading  # noqa: TID252 - tests are no installed package

ROOT = Path(__file__).parents[2]
MAIN_PAGES = (
    *("index.md", "getting-started.md", "tutorial.md", "eight-gpus.md", "fsdp2.md", "ci.md"),
    *("predicting.md", "proving.md"),
)


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._read = read_for_all
    return module


def read_for_all(path: str) -> tuple[Run, Report]:
    """As other tests read it, with its files named as in the picture."""
    place = (ROOT / path).resolve()
    run, report = reading.run_and_report_of(place)

    def named(source: str) -> str:
        return source.replace(str(place), path)

    ranks = [
        replace(rank, source=named(rank.source), detailed_source=rank.detailed_source and named(rank.detailed_source))
        for rank in run.ranks
    ]
    read = report.run.model_copy(update={"sources": [named(source) for source in report.run.sources]})
    return replace(run, ranks=ranks), report.model_copy(update={"run": read})


# The first screen of eight GPUs is compared each time by test_walkthroughs.py, other tabs by test_tui_screens.py.
RARELY = [pytest.param(name, marks=pytest.mark.thorough) for name in ("advice", "timeline", "what-if", "eight-gpus")]


@pytest.mark.parametrize("name", ["overview", "fsdp2", *RARELY])
async def test_a_picture_is_current(pictures: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    if not Path(pictures.PICTURES[name].run).exists():
        pytest.skip(f"{pictures.PICTURES[name].run} is not here")
    kept = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(pictures.words(kept)) > 20
    assert pictures.words(kept) == pictures.words(await pictures.drawn(pictures.PICTURES[name])), "run `make pictures`"


def test_the_picture_of_a_search_is_current(pictures: ModuleType) -> None:
    kept = (pictures.FOLDER / "tune.svg").read_text(encoding="utf-8")
    assert any("less&#160;time&#160;per&#160;sample" in row for row in pictures.words(kept))
    assert kept == pictures.tuned(), "run `make pictures`"


@pytest.mark.thorough  # of another width than what test_readme.py compares each time
def test_the_picture_of_a_gate_is_current(pictures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    kept = (pictures.FOLDER / "check.svg").read_text(encoding="utf-8")
    assert any("FAILED" in row for row in pictures.words(kept))
    assert pictures.words(kept) == pictures.words(pictures.checked()), "run `make pictures`"


def test_nothing_is_fetched_and_each_is_shown(pictures: ModuleType) -> None:
    pages = {
        path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *pictures.ROOT.glob("docs/*.md")]
    }
    shown = {
        name: set(re.findall(r"!\[[^\]]+\]\((?:docs/)?pictures/([\w-]+)\.svg\)", text)) for name, text in pages.items()
    }
    names = {*pictures.PICTURES, "tune", "check"}
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == names
    assert set().union(*shown.values()) == names
    for name in names:
        text = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert not re.search(r"url\((?!#)|<image|<script|@import|@font-face", text)
    linked = re.findall(r"\(docs/pictures/([\w-]+)\.svg\)", pages["README.md"])
    assert set(linked) <= names
    assert shown["README.md"]
    assert all(shown[page] for page in MAIN_PAGES), {page: shown[page] for page in MAIN_PAGES}
