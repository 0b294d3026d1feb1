"""Own time of a CPU's operators by kind, by hand. Times in microseconds."""

import pytest

from dptune.measured import Missing

from .handmade import measure_events, operator, step

STEPS = [
    step(0, 0, 1000),
    operator("aten::linear", 0, 300),
    operator("aten::addmm", 10, 290),  # of its 280, 30 are a copy
    operator("aten::copy_", 20, 50),
    operator("aten::conv2d", 300, 500),
    operator("aten::mkldnn_convolution", 310, 490),
    operator("aten::upsample_bilinear2d", 500, 600),
    operator("aten::scaled_dot_product_attention", 600, 700),
    operator("aten::convolution_backward", 700, 900),
    step(1, 1000, 2000),
    operator("aten::mm", 1000, 1400),
    step(2, 2000, 3000),
    operator("aten::mm", 2000, 2400),
]


def test_own_time_by_kind(tmp_path):
    shares = measure_events(tmp_path, STEPS).matmul.operator_shares
    # 300 - 30 of the first linear, 400 and 400; 200 and 200; of 3,000
    assert shares == pytest.approx(
        {"matrix product": 1070 / 3000, "attention": 100 / 3000, "convolution": 400 / 3000, "copy": 30 / 3000}
    )


def test_none_ran(tmp_path):
    events = [one for one in STEPS if one["name"] == "aten::upsample_bilinear2d" or one["name"].startswith("Profiler")]
    events += [operator("aten::add", at, at + 10) for at in (1100, 2100)]
    with pytest.raises(Missing, match="no matrix product and no convolution"):
        _ = measure_events(tmp_path, events).matmul.operator_shares
