"""Amounts as users write them."""

from __future__ import annotations

import argparse

import pytest

from dptune.commands.shared.amounts import per_step, seconds, seconds_or_none


@pytest.mark.parametrize(("text", "told"), [("600", 600), ("0.5", 0.5), ("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_times_have_units(text: str, told: float) -> None:
    assert seconds(text) == seconds_or_none(text) == told


def test_no_bound() -> None:
    assert seconds_or_none("0") == seconds_or_none("0.0") == 0


@pytest.mark.parametrize("text", ["", "m", "10d", "-1", "-1m", "inf", "nan", "0m", "ten"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)


def test_zero_is_a_time_only_where_it_means_no_bound() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="above 0"):
        seconds("0")


def test_tokens_and_samples_of_a_step_are_a_whole_number() -> None:
    assert per_step("524288") == 524288
    for text in ("1e30", "x", "2.5", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not a whole number"):
            per_step(text)
