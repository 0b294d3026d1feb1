import pytest

from dptune.measured import MatmulFigures


def run(make_measured, hand_made, share, **changed):
    figures = hand_made.figures(MatmulFigures, fp32_share=0.0, layout_share=share, layout_calls=211.0)
    return make_measured(matmul=figures, **changed)


def test_transposes_around_convolutions(ask, make_measured, hand_made):
    (advice,) = ask("DP410", run(make_measured, hand_made, 0.045))
    assert advice.title == (
        "Convolutions transpose their tensors 211 times per step (4.5 % of a step): use the channels_last memory format"
    )
    assert (advice.saves.basis, advice.saves.high_share, advice.numerics) == ("bound", 0.045, "same")


@pytest.mark.parametrize(("share", "device"), [(0.0, "cuda"), (0.019, "cuda"), (0.1, "cpu")])
def test_quiet(ask, make_measured, hand_made, share, device):
    assert ask("DP410", run(make_measured, hand_made, share, device=device)) == []
