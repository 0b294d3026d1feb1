"""What becomes of norms: the operators of functions as they call them, in their order."""

import pytest

from dptune.measure.host.norms import NormUse, norm_use

CLIPS = [*["aten::linalg_vector_norm"] * 4, "aten::stack", "aten::linalg_vector_norm", "aten::add", "aten::reciprocal"]


@pytest.mark.parametrize(
    ("operators", "use"),
    [
        ([*CLIPS, "aten::clamp", *["aten::mul_"] * 4], NormUse(4, True)),
        ([*CLIPS, "aten::clamp", *["aten::mul_"] * 4] * 3, NormUse(4, True)),  # of three steps
        (CLIPS, NormUse(4, False)),
        (["aten::norm"] * 4 + ["aten::stack", "aten::square", "aten::sum", "aten::sqrt"], NormUse(4, False)),
        (["aten::norm"] * 4 + ["aten::stack", "aten::to", "aten::norm"], NormUse(4, False)),
        # adaptive: each tensor is scaled by its own norm, or the norms are stacked and stay apart
        (["aten::norm", "aten::clamp", "aten::norm", "aten::gt", "aten::mul_"] * 4, NormUse()),
        (["aten::norm", "aten::mul_"] * 3 + ["aten::norm", "aten::stack", "aten::norm", "aten::mul_"], NormUse()),
        (["aten::norm"] * 4 + ["aten::stack", "aten::clamp", "aten::div", *["aten::mul_"] * 4], NormUse()),
        # read one by one: what Python makes of them is not seen
        (["aten::norm", "aten::item"] * 4 + ["aten::mul_"] * 4, NormUse()),
        # one total norm for each tensor
        (["aten::norm", "aten::stack", "aten::norm", "aten::mul_"] * 4, NormUse(1, True)),
        (["aten::add_"] * 4, NormUse()),
        ([], NormUse()),
    ],
)
def test_norm_use(operators, use):
    assert norm_use(operators) == use
