"""The pictures of the README show what the interface shows now."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["overview", "advice", "timeline", "what-if"])
async def test_a_picture_is_current(pictures: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    kept = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(pictures.words(kept)) > 20
    assert pictures.words(kept) == pictures.words(await pictures.drawn(pictures.PICTURES[name])), "run `make pictures`"


def test_the_picture_of_a_search_is_current(pictures: ModuleType) -> None:
    kept = (pictures.FOLDER / "tune.svg").read_text(encoding="utf-8")
    assert any("less&#160;time&#160;per&#160;sample" in row for row in pictures.words(kept))
    assert kept == pictures.tuned(), "run `make pictures`"


def test_nothing_is_fetched_and_each_is_shown(pictures: ModuleType) -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    names = {*pictures.PICTURES, "tune"}
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == names
    for name in names:
        text = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert not re.search(r"url\((?!#)|<image|<script|@import|@font-face", text)
        assert f"docs/pictures/{name}.svg" in shown
