"""Matrix products on unaligned operands, and transposes around convolutions: by hand, and in public traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.measure.device.alignment import is_unaligned
from dptune.measured import MatmulFigures

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import Event, launched, measure_events, operator, step

TF32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1>(Params)"
BF16 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align2>(Params)"
LAYOUT = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)"


@pytest.mark.parametrize(
    ("name", "unaligned"),
    [
        (TF32, True),
        (BF16, True),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_32x1_nn_align2>(Params)", True),
        ("cutlass_80_tensorop_s16816gemm_bf16_64x64_32x6_nt_align2", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", False),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align8", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)", False),  # no tensor cores
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_tn_align1>(Params)", False),  # 8 bytes each
        ("cutlass_tensorop_s1688wgrad_optimized_tf32_256x128_16x3_nhwc_align1", False),  # a convolution
        ("cutlass_80_tensorop_s1688gemm_64x64_nn_align16", False),
    ],
)
def test_names_of_kernels(name: str, unaligned: bool) -> None:
    assert is_unaligned(name) is unaligned


def products(name: str, operator_name: str, **args: object) -> list[Event]:
    """Four steps of 100, each with a product of 20 and an aligned one of 30, and two transposes of 5."""
    events: list[Event] = []
    for number in range(4):
        at, first = 100 * number, 10 * number
        events += [step(number, at, at + 100), operator(operator_name, at, at + 4, **args)]
        events += launched(name, at + 1, at + 10, at + 30, first + 1)
        events += launched("cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", at + 5, at + 30, at + 60, first + 2)
        events += [operator("aten::convolution", at + 6, at + 9)]
        events += launched(LAYOUT, at + 7, at + 60, at + 65, first + 3)
        events += launched(LAYOUT.replace("nchwToNhwc", "nhwcToNchw"), at + 8, at + 65, at + 70, first + 4)
    return events


def found(tmp_path: Path, *args: object, **more: object) -> MatmulFigures:
    return measure_events(tmp_path, products(*args, **more)).matmul  # type: ignore[arg-type]


def test_sizes_and_shares(tmp_path: Path) -> None:
    figures = found(tmp_path, TF32, "aten::addmm", **{"Input Dims": [[30], [64, 647], [647, 30], [], []]})
    assert (
        figures.unaligned_share == figures.unaligned_sized_share == pytest.approx(3 * 20 / 270)
    )  # steps begin at their first kernel, at 10
    assert figures.layout_share == pytest.approx(3 * 10 / 270)
    assert figures.layout_calls == 2
    (product,) = figures.unaligned
    assert (product.operator, product.dtype, product.multiple) == ("aten::addmm", "tf32", 4)
    assert (product.sizes, product.lengths) == ([[64, 647], [647, 30]], [30, 647])
    assert (product.calls_per_step, product.part) == (1, 1)


@pytest.mark.parametrize(
    ("dims", "strides", "lengths"),
    [
        ([[141, 512], [512, 30522]], None, [141, 30522]),
        ([[141, 512], [512, 30522]], [[512, 1], [1, 512]], [30522]),  # 141 is only a number of rows
        ([[6, 64], [64, 16]], [[1, 6], [16, 1]], [6]),  # transposed: its columns are rows in memory
        ([[8, 512], [512, 8192]], None, []),  # all are multiples: the memory starts elsewhere
        ([[4, 6], [8, 8]], None, []),  # no product
    ],
)
def test_lengths_of_rows(tmp_path: Path, dims: object, strides: object, lengths: list[int]) -> None:
    figures = found(tmp_path, BF16, "aten::mm", **{"Input Dims": dims, "Input Strides": strides})
    (product,) = figures.unaligned
    assert (product.dtype, product.lengths) == ("bf16", lengths)
    assert figures.known("unaligned_sized_share") == (
        (figures.unaligned_share if lengths else 0) if product.sizes else None
    )


@pytest.mark.parametrize(
    "dims", ["[[1, 2]]", [[None, 7], [7, 3]], [[7], [7, 3]], {}, [[2**80, 7], [7, 3]], [[-3, 7], [7, True]]]
)
def test_damaged_sizes_are_not_read(tmp_path: Path, dims: object) -> None:
    figures = found(tmp_path, BF16, "aten::mm", **{"Input Dims": dims})
    assert [product.sizes for product in figures.unaligned] == [[]]
    assert figures.unaligned_share > 0
    assert figures.known("unaligned_sized_share") is None


def test_a_public_trace(real_traces: Path) -> None:
    """Recommendation training in TF32 on an A100; the raw events sum to 6.26 ms of such kernels per step."""
    figures = reading.measured(real_traces / "hta_training" / "b1ceb4c_control.json.gz").matmul
    assert figures.unaligned_share == pytest.approx(6.263 / 77.43, rel=0.01)
    assert figures.unaligned[0].sizes == [[1024, 647, 96], [1024, 96, 30]]
    assert {length for product in figures.unaligned for length in product.lengths} >= {30, 647, 9375}
