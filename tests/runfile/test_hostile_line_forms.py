"""Forms of lines in a recording that another program wrote or changed."""

from types import SimpleNamespace

import pytest

from dptune.runfile.line_forms import line_form
from dptune.runfile.window import SampledFacts


@pytest.mark.parametrize(("form_at", "spent_ns"), [(-3, 5), (10**9, 5), (0, 0), (0, -5)])
def test_positions_and_times_that_cannot_be(form_at, spent_ns):
    sample = SampledFacts(["f (a.py:1)"], form="copy", form_at=form_at, looks=9, steps=[0], spent_ns=[spent_ns])
    window = SimpleNamespace(sampled=[sample])
    assert line_form([SimpleNamespace(window=lambda kind: window)], "f", "a.py") is None
