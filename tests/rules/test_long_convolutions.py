import pytest

from dptune import testing
from dptune.measured import KernelFigures, KernelTime, LongConvolution, Missing, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES


def convolution(share=0.35, backward_ns=1_000_000):
    return LongConvolution(
        name="reverb",
        at="echo.py:16",
        taps=3200,
        length=11199,
        calls=1.0,
        rank=0,
        cost_ns=round(share * 10_000_000) - backward_ns,
        backward_ns=backward_ns,
        share=share,
    )


def ask(*found, basis="untraced"):
    code = UserCodeFigures(ranks=[0], steps=2, basis=basis, sites=[], long_convolutions=list(found))
    return list(RULES["DP615"].check(RunView(measured_run(user_code=code), [])))


def test_the_line_its_share_with_the_backward_pass_and_what_to_use_instead():
    (advice,) = ask(convolution())
    assert advice.title == (
        "`reverb` (echo.py:16) spends 35 % of the step in direct convolutions with 3,200 taps and their backward pass: "
        "use FFT (torch.fft.rfft, multiply, torch.fft.irfft)"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.35)
    assert "fftconvolve" in advice.watch
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("reverb at echo.py:16", 2.5),
        ("their backward pass", 1.0),
        ("taps of the longest kernel", 3200),
        ("padded length of its input", 11199),
        ("long convolutions", 1.0),
    ]


def test_an_augmentation_without_gradients_has_no_backward_pass():
    (advice,) = ask(convolution(backward_ns=0), basis="traced")
    assert "backward" not in advice.title
    assert advice.confidence == "low"
    assert len(advice.evidence) == 4


def test_quiet_below_five_percent():
    assert ask(convolution(share=0.049, backward_ns=0)) == []
    assert [one.impact for one in ask(convolution(share=0.05, backward_ns=0))] == ["medium"]


@pytest.mark.parametrize(
    ("name", "share", "asks"),
    [
        ("aten::mkldnn_convolution", 0.3, True),
        ("void conv_depthwise1d<float>", 0.05, True),
        ("aten::mkldnn_convolution", 0.04, False),
        ("aten::mm", 0.9, False),
    ],
)
def test_without_stacks_it_is_skipped_only_where_convolutions_take_their_share(name, share, asks):
    top = [KernelTime(name=name, kind="other", calls_per_step=1, total_ns=9, median_ns=9, step_share=share)]
    known = {"short_share": 0.0, "launch_bound_share": 0.0, "kinds_ns": {}}
    kernels = testing.figures(KernelFigures, counted="operators", per_step=1, median_ns=1, total_ns=9, top=top, **known)
    view = RunView(measured_run(kernels=kernels), [])
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP615"].check(view))
    else:
        assert list(RULES["DP615"].check(view)) == []
