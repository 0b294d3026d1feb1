"""Different matrix products and convolutions of a CPU, by hand."""

from typing import Any

from dptune.measure.device.primitives import cpu_primitives
from dptune.measure.views import view
from dptune.measured import CpuPrimitives
from dptune.trace import load

from .handmade import operator, step, write


def called(name: str, sizes: list[list[int]], kind: str, at: int, strides: list[list[int]] | None = None) -> Any:
    event = operator(name, at, at + 1)
    types = [kind] * len(sizes)
    event["args"] = {"Input Dims": sizes, "Input type": types, "Input Strides": strides or [], "Sequence number": at}
    return event


def counted(tmp_path, *events) -> CpuPrimitives:
    write(tmp_path / "0.json", [step(0, 0, 1000), *events])
    (rank,) = load([tmp_path]).ranks
    return cpu_primitives(view(0, rank.light))


def test_each_product_counts_once_by_sizes_layouts_and_types(tmp_path):
    bias, rows, weight = [64], [32, 48], [48, 64]
    found = counted(
        tmp_path,
        called("aten::addmm", [bias, rows, weight], "float", 10),
        called("aten::addmm", [bias, rows, weight], "float", 20),
        called("aten::addmm", [bias, rows, weight], "c10::BFloat16", 30),
        called("aten::mm", [rows, weight], "c10::Half", 40),
        called("aten::mm", [rows, weight], "c10::Half", 50, [[1, 32], [64, 1]]),
        called("aten::mm", [[16, 16], [16, 16]], "c10::Half", 60),  # 16 ** 3: too small for oneDNN
        called("aten::bmm", [[2, 16, 16], [2, 16, 16]], "float", 70),
        called("aten::add", [rows, rows], "float", 80),
        called("aten::mm", [weight, []], "float", 90),  # of one matrix
    )
    assert found == CpuPrimitives(products=5, half_products=3)


def test_attention_multiplies_three_times_as_it_goes_back(tmp_path):
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    found = counted(tmp_path, called(name, [[8, 4, 64, 64]] * 6, "c10::BFloat16", 10))
    assert found == CpuPrimitives(products=3, half_products=3)


def test_convolutions_and_their_backward_passes(tmp_path):
    images, weight = [16, 48, 32, 32], [48, 48, 3, 3]
    found = counted(
        tmp_path,
        called("aten::convolution", [images, weight], "float", 10),
        called("aten::convolution_backward", [images, images, weight], "float", 20),
        called("aten::convolution", [images, weight], "c10::BFloat16", 30),
    )
    assert found == CpuPrimitives(convolutions=3, half_convolutions=1)


def test_without_sizes_nothing_is_counted(tmp_path):
    assert counted(tmp_path, operator("aten::mm", 10, 20)) == CpuPrimitives()
