"""What tells the maker of a device, and the names of its runtime's calls."""

import pytest

from dptune.trace.vendors import (
    CAPTURE_NAME,
    COPY_CALL_NAME,
    DEVICE_TYPES,
    KERNEL_LAUNCH_NAME,
    LAUNCH_NAME,
    MEMORY_NAME,
    VENDORS,
    types_of,
    unread,
    vendor_of,
)


@pytest.mark.parametrize(
    ("categories", "calls", "devices", "kind"),
    [
        (["kernel", "cuda_runtime"], ["cudaLaunchKernel"], ["NVIDIA A100-SXM4-80GB"], "cuda"),
        (["kernel", "cuda_runtime"], ["hipLaunchKernel"], [""], "rocm"),
        (["kernel"], [], ["AMD Instinct MI300X"], "rocm"),
        (["kernel", "xpu_runtime"], ["urEnqueueKernelLaunch"], [], "xpu"),
        (["kernel"], [], ["Intel(R) Data Center GPU Max 1550"], "xpu"),
        (["mtia_ccp_events"], [], [], "mtia"),
        (["kernel", "hpu_op"], ["synLaunchExt"], [], "hpu"),
        (["kernel", "privateuse1_runtime"], [], [], "privateuse1"),
        (["Kernel", "Runtime"], ["cudaLaunchKernel"], [], "cuda"),
        (["kernel"], [], [], "cuda"),
    ],
)
def test_makers(categories, calls, devices, kind):
    assert vendor_of(categories, calls, devices).kind == kind


@pytest.mark.parametrize(
    ("name", "kernel", "any_work"),
    [
        ("cudaLaunchKernel", True, True),
        ("cudaLaunchKernelExC", True, True),
        ("cuLaunchKernelEx", True, True),
        ("cudaLaunchCooperativeKernel", True, True),
        ("hipExtModuleLaunchKernel", True, True),
        ("hipModuleLaunchKernel", True, True),
        ("zeCommandListAppendLaunchKernel", True, True),
        ("urEnqueueKernelLaunchWithArgsExp", True, True),
        ("piEnqueueKernelLaunch", True, True),
        ("runFunction - job_prep_and_submit_for_execution", True, True),
        ("cudaGraphLaunch", False, True),
        ("hipGraphLaunch", False, True),
        ("cudaMemcpyAsync", False, False),
        ("cudaStreamSynchronize", False, False),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessor", False, False),
    ],
)
def test_calls_that_launch(name, kernel, any_work):
    assert (KERNEL_LAUNCH_NAME.search(name) is not None) is kernel
    assert (LAUNCH_NAME.search(name) is not None) is any_work


ALLOCATE = [
    *("cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync", "cudaMallocManaged", "cudaMallocPitch"),
    *("cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemCreate", "cuMemUnmap"),
    *("hipMalloc", "hipFree", "hipMallocAsync", "hipExtMallocWithFlags", "hipMemMap"),
    *("zeMemAllocDevice", "zeMemFree", "urUSMDeviceAlloc", "urUSMFree", "synDeviceMalloc"),
]
OTHERS = ["cudaMallocHost", "cudaFreeHost", "hipHostMalloc", "cuMemAllocHost_v2", "cuMemcpyAsync", "hipMemGetInfo"]


def test_calls_that_allocate_or_free_memory_of_the_device():
    """By the APIs' references; memory of the host is none of the device's."""
    assert [name for name in [*ALLOCATE, *OTHERS] if MEMORY_NAME.search(name)] == ALLOCATE


def test_calls_that_copy_and_that_capture():
    assert COPY_CALL_NAME.search("cudaMemcpyAsync")
    assert COPY_CALL_NAME.search("hipMemcpyWithStream")
    assert not COPY_CALL_NAME.search("cudaMemsetAsync")
    assert CAPTURE_NAME.search("cudaStreamBeginCapture")
    assert not CAPTURE_NAME.search("cudaStreamIsCapturing")


@pytest.mark.parametrize(
    ("categories", "names", "kind"),
    [
        (["cpu_op", "enqueue", "dequeue", ""], ["Enqueue", "Dequeue@aclnnAdd"], "npu"),
        (["cpu_op", ""], ["AscendCL@aclrtMemcpy", "aten::add"], "npu"),
        (["cpu_op", ""], ["aclnnInplaceZero_ZerosLikeAiCore_ZerosLike"], "npu"),
        (["hpu_op"], [], "hpu"),
        (["cpu_op", "kernel"], ["aten::add", "Computing"], None),
    ],
)
def test_devices_that_are_refused_by_name(categories, names, kind):
    device = unread(categories, names)
    assert (device and device.kind) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::_mps_convolution", "mps"),
        ("aten::mps_convolution_backward", "mps"),
        ("aten::_scaled_dot_product_attention_math_for_mps", "mps"),
        ("aten::clamps", None),
        ("aten::_cudnn_rnn", None),
    ],
)
def test_apple_gpus_show_by_operators_alone(name, kind):
    found = unread(["cpu_op"], [name])
    assert (found and found.kind) == kind


def test_each_number_in_allocations_is_of_one_device():
    """As torch counts them in c10/core/DeviceType.h, of which Python shows the names."""
    assert {number: name for number, name in DEVICE_TYPES.items() if number != 6} == {
        **{0: "cpu", 1: "cuda", 12: "xpu", 15: "hpu", 19: "mtia"}
    }
    assert types_of("cuda") == [1, 6]  # HIP, which torch calls CUDA
    assert {vendor.torch for vendor in VENDORS if vendor.types} == {*DEVICE_TYPES.values()} - {"cpu"}
