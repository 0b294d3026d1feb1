"""Long direct convolutions and their backward pass, by hand; times in microseconds, steps of 1000."""

import pytest

from dptune.measure.host.convolutions import long_convolutions, long_kernel
from dptune.measure.views import view

from .handmade import US, load_events, operator, python, step

STEPS = 3
NODE = "autograd::engine::evaluate_function: "


def sizes(signal, kernel, stride="[1]", padding="[0]", dilation="[1]", transposed="False"):
    return {
        "Input Dims": [signal, kernel, [], [], [], [], [], [], []],
        "Concrete Inputs": ["", "", "", stride, padding, dilation, transposed, "[0]", "1"],
    }


LONG = sizes([1, 32, 11199], [32, 1, 3200])
SHORT = sizes([32, 16, 8000], [16, 16, 5])


def events_of(at, number):
    """A long convolution from 10 to 110, a short one to 200; backward from 400: the long one's node takes 60."""
    return [
        step(at // 1000, at, at + 1000),
        python("echo.py(16): reverb", at + 1, at + 299),
        operator("aten::conv1d", at + 9, at + 111, **{"Sequence number": number}, **LONG),
        operator("aten::convolution", at + 10, at + 110, **{"Sequence number": number}, **LONG),
        operator("aten::convolution", at + 120, at + 200, **{"Sequence number": number + 1}, **SHORT),
        python("torch/_tensor.py(500): backward", at + 400, at + 600),
        operator(NODE + "ConvolutionBackward0", at + 410, at + 430, **{"Sequence number": number + 1}),
        operator(NODE + "ConvolutionBackward0", at + 440, at + 500, **{"Sequence number": number}),
    ]


def test_the_function_with_its_backward_pass_and_no_short_one(tmp_path):
    events = [one for n in range(STEPS) for one in events_of(1000 * n, 10 * n)]
    loop = python("echo.py(90): main", 0, 1000 * STEPS)
    views = [view(0, load_events(tmp_path, [loop, *events]).ranks[0].light)]
    (found,) = long_convolutions(views, {})
    assert (found.name, found.at, found.taps, found.length, found.calls) == ("reverb", "echo.py:16", 3200, 11199, 1)
    assert (found.cost_ns, found.backward_ns) == (100 * US, 60 * US)
    assert found.share == pytest.approx(0.16)
    (found,) = long_convolutions(views, {0: 800 * US})
    assert found.share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (LONG, (3200, 11199)),  # 8,000 outputs of 11,199 positions: 2,286 taps for each
        (sizes([8, 1, 1, 16000], [8, 1, 1, 1024], "[1, 1]", "[0, 512]", "[1, 1]"), (1024, 17024)),
        (sizes([8, 1, 16000, 40], [8, 1, 1024, 3], "[1, 1]", "[0]", "[1, 1]"), (1024, 16000)),
        (sizes([1, 1, 100_000], [1, 1, 512], padding="[511]"), None),  # 100,511 outputs of 101,022: 509.4 for each
        (sizes([1, 1, 100_000], [1, 1, 515], padding="[511]"), (515, 101_022)),  # 100,508 outputs: 512.4
        (SHORT, None),
        (sizes([8, 1, 16000], [514, 1, 1024], "[256]"), None),  # a short-time Fourier transform: 4 for each position
        (sizes([8, 3, 4096], [64, 3, 4096]), None),  # a linear layer: one output
        (sizes([8, 1, 4000], [1, 1, 3800]), None),  # 201 outputs: 191 for each position
        (sizes([8, 1, 4000], [1, 1, 600], dilation="[5]"), None),  # 1,005 outputs: 151 for each
        (sizes([8, 1, 4000], [1, 1, 5000]), None),  # longer than what it moves over
        (sizes([8, 3, 224, 224], [64, 3, 31, 31], "[1, 1]", "[15, 15]", "[1, 1]"), None),
        (sizes([8, 1, 16000], [1, 1, 2048], transposed="True"), None),
    ],
)
def test_what_counts_are_the_taps_for_each_position_of_the_input(call, expected):
    assert long_kernel(call) == expected


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"Input Dims": LONG["Input Dims"]},
        {"Concrete Inputs": LONG["Concrete Inputs"]},
        LONG | {"Input Dims": [[1, 32, "many"], [32, 1, 3200]]},
        LONG | {"Input Dims": [[1, 32, 11199], [32, 3200]]},
        LONG | {"Input Dims": [[[1, 2]], [3]]},
        LONG | {"Concrete Inputs": ["", "", "", "", "", "", "False"]},
        LONG | {"Concrete Inputs": ["", "", "", "[0]", "[0]", "[1]", "False"]},
        LONG | {"Concrete Inputs": ["", "", "", None, 3, "[", "False"]},
    ],
)
def test_without_sizes_nothing_is_known(call):
    assert long_kernel(call) is None
