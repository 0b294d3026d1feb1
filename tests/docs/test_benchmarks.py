"""The documentation quotes benchmarks as they compute them from their raw results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("benchmark", "page"),
    [
        ("overhead", "recording"),
        ("effects", "proving"),
        ("error_rates", "proving"),
        ("interface", "reading-traces"),
        ("loading", "reading-traces"),
        ("predictions", "predicting"),
        ("real_replays", "predicting"),
        ("real_advice", "rules-tried"),
        ("advice", "rules-tried"),
        ("stragglers", "rules-tried"),
        ("gate", "ci"),
    ],
)
def test_tables_are_quoted_from_the_results(benchmark: str, page: str) -> None:
    assert table_of(benchmark) in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_runs_of_advice_before_are_quoted_beside_it() -> None:
    page = (ROOT / "docs" / "rules-tried.md").read_text(encoding="utf-8")
    before, between = (
        str(ROOT / "tests" / "benchmarks" / "results" / f"advice_{of}.json") for of in ("before", "between")
    )
    assert table_of("advice", before) in page
    assert table_of("advice", between).split("\n\n")[2] in page  # the summary


def test_unseen_scripts_are_quoted_by_halves() -> None:
    page = (ROOT / "docs" / "rules-tried.md").read_text(encoding="utf-8")
    assert table_of("unseen", "--half", "sealed") in page
    assert table_of("unseen", "--half", "second") in page
    assert table_of("unseen", "--half", "third") in page
    assert table_of("unseen", "--half", "fourth") in page
    assert table_of("unseen", "--earlier", "first", "--summary") in page
    assert table_of("unseen", "--earlier", "pairs", "--half", "all") in page


def table_of(benchmark: str, *results: str) -> str:
    script = ROOT / "tests" / "benchmarks" / f"{benchmark}.py"
    words = [sys.executable, str(script), "--table", *results]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.rstrip()
