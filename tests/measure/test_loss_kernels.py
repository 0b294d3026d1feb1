"""Kernels of cross entropies by their names, and their share of the steps by hand and on a public trace."""

import gzip
import json

import pytest

from dptune.measure.device.loss_kernels import is_of_loss

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import launched, measure_events, step

ATEN = "void at::native::(anonymous namespace)::"
FORWARD = f"{ATEN}cunn_SoftMaxForwardReg<float, float, float, {ATEN[5:]}LogSoftMaxForwardEpilogue, long, 8>(float*)"
BACKWARD = f"{ATEN}cunn_SoftMaxBackwardSmem<4, float, float, float, {ATEN[5:]}LogSoftMaxBackwardEpilogue>(float*)"
LIKELIHOOD = f"{ATEN}nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*)"
COMPILED = "triton_red_fused__log_softmax__log_softmax_backward_data_div_mm_backward_mul_nll_loss_backward_view_0"
ATTENTION = f"{ATEN}cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, {ATEN[5:]}SoftMaxForwardEpilogue>(int)"


@pytest.mark.parametrize(
    ("name", "of_loss"),
    [
        *((name, True) for name in (FORWARD, BACKWARD, LIKELIHOOD, COMPILED)),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, int)", True),
        ("void (anonymous namespace)::softmax_warp_backward<c10::Half, c10::Half, float, 10, true>(c10::Half*)", True),
        ("void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 10, false, true>(int)", False),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, true, false>(float*, int)", False),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, int)", False),
        ("triton_per_fused__log_softmax_nll_loss_forward_3", False),
        (ATTENTION, False),
        (
            "triton_poi_fused__unsafe_view_mul_nll_loss_forward_pow_relu_threshold_backward_view_5",
            False,
        ),  # each layer's
        ("liger_cross_entropy_kernel", False),
        (
            f"{ATEN}cunn_SpatialSoftMaxForward<float, float, float, int, {ATEN[5:]}LogSoftMaxForwardEpilogue>(int)",
            False,
        ),
        (f"{ATEN}nll_loss2d_forward_kernel<float, float, int>(float*)", False),
        ("triton_red_fused__log_softmax_nll_loss2d_forward_3", False),
        ("ampere_sgemm_128x64_tn", False),
    ],
)
def test_names(name, of_loss):
    assert is_of_loss(name) is of_loss


def test_their_share_of_two_steps_by_hand(tmp_path):
    """Windows [10,110) and [110,150): 20 + 10 of eager kernels, two of which overlap by 5, and 10 of a compiled one."""
    ran = [
        *launched(FORWARD, 1, 10, 30, 1),
        *launched(LIKELIHOOD, 2, 25, 35, 2, stream=8),
        *launched(ATTENTION, 3, 40, 60, 3),
        *launched(COMPILED, 101, 110, 120, 4),
        *launched("ampere_sgemm_128x64_tn", 102, 120, 150, 5),
    ]
    found = measure_events(tmp_path, [step(3, 0, 100), step(4, 100, 200), *ran]).kernels
    assert (found.loss_share, found.loss_calls, found.loss_compiled_share) == (35 / 140, 1.5, 10 / 140)


def test_a_log_softmax_without_a_likelihood_is_of_another_loss(tmp_path):
    found = measure_events(tmp_path, [step(3, 0, 100), *launched(FORWARD, 1, 10, 30, 1)]).kernels
    assert (found.loss_share, found.loss_calls) == (0.0, 0.0)


def test_a_likelihood_of_ten_classes_does_not_count(tmp_path):
    few = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, int)"
    ran = [*launched(few, 1, 10, 30, 1), *launched(LIKELIHOOD, 2, 30, 40, 2)]
    found = measure_events(tmp_path, [step(3, 0, 100), *ran]).kernels
    assert (found.loss_share, found.loss_calls) == (0.0, 0.0)


def test_a_public_trace_by_a_plain_second_reading(real_traces):
    """All kernels of the loss start in a step, one after the other, so that a sum is their union."""
    path = real_traces / "single_gpu" / "1eeffb3_trace_05.json.gz"
    measured = reading.reported(path).measured
    with gzip.open(path) as file:
        listed = json.load(file)["traceEvents"]
    loss_us = sum(
        event["dur"]
        for event in listed
        if event.get("cat") == "kernel" and ("LogSoftMax" in event["name"] or "nll_loss" in event["name"])
    )
    windows_ns = measured.account.window_ns
    assert measured.kernels.loss_share == pytest.approx(loss_us * 1000 / windows_ns, rel=1e-3)
