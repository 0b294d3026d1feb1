"""What a search that kept nothing says of its time."""

import pytest

from dptune.tune.conclusion import too_short
from dptune.tune.search import Found


@pytest.mark.parametrize(("trial_s", "limit_s", "minutes"), [(15.0, 360.0, 7), (2.0, 50.0, 1)])
def test_a_limit_that_allows_no_race_names_one_that_does(trial_s, limit_s, minutes):
    """12 trials in a race and 12 in the final comparison, with a fifth of these more as slack."""
    assert (12 + 1.2 * 12) * trial_s <= minutes * 60
    why = too_short(Found(ended="out of time", spent_s=30.0, trial_s=trial_s), limit_s=limit_s)
    assert why.startswith(f"a trial takes up to {trial_s:.0f} s, one race at least 12 trials")
    assert why.endswith(f"use --time-limit {minutes}m or more")


def test_a_limit_that_was_used_up_is_said_to_be():
    """26.4 trials of 15 s fit, and took longer than the search could know."""
    assert (12 + 1.2 * 12) * 15.0 <= 400.0
    found = Found(ended="out of time", spent_s=390.0, trial_s=15.0)
    assert too_short(found, limit_s=400.0) == "the time was up before a change was shown to save time"
    short = Found(ended="out of time", spent_s=300.0, trial_s=15.0)
    assert too_short(short, limit_s=360.0).endswith("use --time-limit 7m or more")
