"""How old a measurement of links is."""

from datetime import datetime, timedelta

import pytest

from dptune.runfile import link_age

NOW = datetime.now().astimezone()
HALF = timedelta(minutes=30)


@pytest.mark.parametrize(
    ("old", "fresh"),
    [
        (timedelta(0), True),
        (link_age.MOST - HALF, True),
        (link_age.MOST + HALF, False),
        (timedelta(hours=26), False),
        (timedelta(hours=-2), False),  # a clock was wrong
    ],
)
def test_what_is_older_than_an_hour_is_measured_again(old: timedelta, fresh: bool) -> None:
    assert link_age.is_fresh((datetime.now().astimezone() - old).isoformat()) == fresh


@pytest.mark.parametrize("measured", ["", "yesterday", "2026-01-01T00:00:00"])  # the last has no time zone
def test_what_has_no_time_is_old(measured: str) -> None:
    assert not link_age.is_fresh(measured)
    assert link_age.age(measured, NOW) is None
    assert link_age.in_words(None) == ""


@pytest.mark.parametrize(
    ("old", "words"),
    [
        (timedelta(days=3, hours=5), "3 days"),
        (timedelta(hours=26), "26 hours"),
        (timedelta(minutes=61), "1 hour"),
        (timedelta(minutes=59), "59 minutes"),
        (timedelta(seconds=59), ""),
        (timedelta(hours=-3), ""),
    ],
)
def test_in_words(old: timedelta, words: str) -> None:
    assert link_age.in_words(old) == words
    assert link_age.in_words(link_age.age((NOW - old).isoformat(), NOW.isoformat())) == words
