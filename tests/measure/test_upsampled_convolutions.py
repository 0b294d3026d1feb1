"""Interpolation before a 1x1 convolution, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.upsampled_convolutions import upsampled_convolutions
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3
NODE = "autograd::engine::evaluate_function: "
SMALL, LARGE, KERNEL = [2, 64, 4, 4], [2, 64, 16, 16], [8, 64, 1, 1]


def called(name, start, end, *shapes, number=-1):
    return operator(name, start, end, **{"Sequence number": number, "Input Dims": list(shapes)})


def found_in(folder, large=LARGE, kernel=KERNEL, between=(), then="aten::conv2d"):
    """An interpolation of 100 and a convolution of 40, with nodes of 200 and 60."""
    events = []
    for n in range(STEPS):
        at, number = 1000 * n, 10 * n
        events += [
            step(n, at, at + 1000),
            python("net.py(12): forward", at + 5, at + 300),
            called("aten::upsample_bilinear2d", at + 10, at + 110, SMALL, [], [], number=number),
            *(called(name, at + 115, at + 118, large, number=number + 1) for name in between),
            called(then, at + 120, at + 160, large, kernel, [8], number=number + 2),
            python("torch/_tensor.py(500): backward", at + 390, at + 900),
            called(NODE + "ConvolutionBackward0", at + 400, at + 460, number=number + 2),
            called(NODE + "UpsampleBilinear2DBackward0", at + 500, at + 700, number=number),
        ]
    loop = python("net.py(90): main", 0, 1000 * STEPS)
    return upsampled_convolutions([view(0, load_events(folder, [loop, *events]).ranks[0].light)], {})


def test_what_the_other_order_saves(tmp_path):
    (found,) = found_in(tmp_path)
    assert (found.name, found.at, found.calls) == ("forward", "net.py:12", 1)
    assert (found.before, found.after, found.channels) == (SMALL, LARGE, 8)
    assert (found.cost_ns, found.backward_ns) == (140 * US, 260 * US)
    assert found.share == pytest.approx(0.4)
    # of the interpolation 56 of 64 channels, of the convolution 15 of 16 pixels
    assert found.saved_share == pytest.approx(0.3 * 56 / 64 + 0.1 * 15 / 16, abs=1e-5)


def test_views_may_be_between(tmp_path):
    (found,) = found_in(tmp_path, between=["aten::view"])
    assert found.calls == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"between": ["aten::relu"]},  # the order matters
        {"kernel": [8, 64, 3, 3]},
        {"then": "aten::view"},  # no convolution follows
        {"kernel": [64, 64, 1, 1]},  # no fewer channels
        {"large": [2, 96, 16, 16], "kernel": [8, 96, 1, 1]},  # another tensor
    ],
)
def test_what_cannot_run_first(tmp_path, changed):
    assert found_in(tmp_path, **changed) == []
