"""Which tests `make test-quick` runs, and how many examples of each property."""

from __future__ import annotations

import pytest
from hypothesis import settings

from . import reading


@pytest.fixture
def of_a_sample() -> str:
    return reading.SAMPLES.name


@pytest.fixture
def given_to_another(of_a_sample: str) -> str:
    return of_a_sample


def test_a_test_that_reads_is_not_quick(request: pytest.FixtureRequest) -> None:
    assert reading.SAMPLES.is_dir()
    assert request.node.get_closest_marker("quick") is None


@pytest.mark.usefixtures("given_to_another")
def test_nor_is_one_whose_fixtures_read(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("quick") is None


def test_another_is_quick_and_gets_fewer_examples(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("quick") is not None
    if not request.config.getoption("--hypothesis-profile"):
        assert settings().max_examples == (10 if request.config.option.markexpr == "quick" else 15)
