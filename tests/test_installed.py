"""Reports of tests ask once what is installed, and anew where a test installs something."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from . import installed


def test_what_is_installed_is_asked_again_only_where_a_folder_is_added(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def entry_points(group: str) -> EntryPoints:
        asked.append(group)
        return EntryPoints([EntryPoint(str(len(asked)), "acme", group)])

    answer = installed.asked_once(entry_points)
    assert [*answer(group="a").names, *answer(group="a").names, *answer(group="b").names] == ["1", "1", "2"]
    monkeypatch.syspath_prepend(tmp_path)
    assert [*answer(group="a").names, *answer(group="a").names] == ["3", "4"]
    monkeypatch.undo()
    assert {*answer(group="a").names} == {"1"}
    assert asked == ["a", "b", "a", "a"]


def test_reports_of_tests_ask_that_way() -> None:
    ours = importlib.metadata.entry_points(group="dptune.rules")
    assert ours.names == {"dptune"}
    assert importlib.metadata.entry_points(group="dptune.rules") is ours
