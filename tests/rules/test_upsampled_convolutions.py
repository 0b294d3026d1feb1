"""Tensors that are upsampled before a 1x1 convolution: figures are made up."""

import pytest

from dptune.measured import Missing, UpsampledConvolution, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES, spent_in


def enlarged(saved_share=0.35):
    return UpsampledConvolution(
        name="forward",
        at="fields.py:55",
        calls=1,
        rank=0,
        cost_ns=10_000_000,
        backward_ns=26_000_000,
        share=0.39,
        before=[8, 64, 24, 24],
        after=[8, 64, 96, 96],
        channels=8,
        saved_share=saved_share,
    )


def ask(*found, times_hold=True):
    code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], upsampled_convolutions=list(found))
    return list(RULES["DP624"].check(RunView(measured_run(user_code=code), [], times_hold=times_hold)))


def test_the_function_the_channels_and_both_sizes():
    (advice,) = ask(enlarged())
    assert advice.title == (
        "`forward` (fields.py:55) upsamples 64 channels to 96 x 96 before a 1x1 convolution to 8 channels, "
        "39 % of the step: run the convolution first"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.low_share, advice.saves.high_share) == (0, 0.35)
    assert ("upsampled", "8 x 64 x 24 x 24 to 8 x 64 x 96 x 96") in [(one.label, one.value) for one in advice.evidence]
    assert ask(enlarged(), times_hold=False)[0].confidence == "low"


def test_quiet_below_five_percent_of_saving():
    assert ask(enlarged(0.049)) == []
    assert len(ask(enlarged(0.05))) == 1


@pytest.mark.parametrize(("name", "asks"), [("aten::upsample_bilinear2d", True), ("aten::mm", False)])
def test_without_stacks_it_is_skipped_only_where_interpolation_takes_time(name, asks):
    view = spent_in(name)
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP624"].check(view))
    else:
        assert list(RULES["DP624"].check(view)) == []
