"""The makers of devices: how their runtimes name the calls of the host, and what they communicate through.

`VENDORS` is the one table. Kineto writes kernels, copies and memsets of all of them under the same categories, except
MTIA's; what differs is the category and the names of the runtime's calls. `UNREAD` are devices whose events dptune
recognizes and cannot account for.

Sources: libkineto `ActivityType.cpp` (categories); CUDA Runtime and Driver API; HIP; oneAPI Unified Runtime and Level
Zero (`ur`, `ze`; `pi` before 2024.1); Intel Gaudi SynapseAI (`syn`); torch_npu's `trace_view.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Vendor:
    """One maker's runtime. `launch`, `graph`, `wait` and `memory` are regular expressions of the names of its calls:
    launching a kernel, launching a graph of operations, waiting for the device, and allocating or freeing its memory.
    Copies and full queues hold the host, too: `measure/host/blocked.py` says which of those do.

    `kind` is what a report calls the device, `torch` torch's name of the device type; `signs` are categories that only
    this maker's traces have, `call` how the names of its calls begin where the categories are shared, and `device` what
    names of its devices hold. `types` are torch's numbers of the device (c10/core/DeviceType.h) in recorded
    allocations, `allocating` is how a report names the calls of `memory`.
    """

    kind: str
    torch: str
    backend: str
    runtime: frozenset[str]
    launch: str
    graph: str = ""
    wait: str = ""
    memory: str = ""
    signs: frozenset[str] = frozenset()
    call: str = ""
    device: str = ""
    types: tuple[int, ...] = ()
    allocating: str = "allocation and free"


_CUPTI = frozenset({"cuda_runtime", "cuda_driver", "Runtime"})  # roctracer's calls have these categories too
_XPU = frozenset({"xpu_runtime", "xpu_driver"})
_PRIVATE = frozenset({"privateuse1_runtime", "privateuse1_driver"})

VENDORS = (
    Vendor(
        kind="rocm",
        torch="cuda",
        backend="nccl",  # RCCL registers under NCCL's name
        runtime=_CUPTI,
        launch=r"^hip\w*Launch\w*Kernel|^hipModuleLaunch",
        graph=r"^hipGraphLaunch",
        wait=r"^hip(Device|Ctx|Stream|Event)Synchronize",
        memory=r"^hip(Ext)?(Malloc|Free)(Async|Managed|Pitch|WithFlags|FromPoolAsync)?$|^hipMem(Create|Release|Map|Unmap)$",
        call="hip",
        device=r"(?i)\bAMD\b|Radeon|Instinct|\bgfx\d|\bMI\d{3}",
        types=(1, 6),  # torch counts HIP as CUDA, its profiler not always
        allocating="hipMalloc and hipFree",
    ),
    Vendor(
        kind="xpu",
        torch="xpu",
        backend="xccl",
        runtime=_XPU,
        launch=r"^(ze|ur|pi)\w*(LaunchKernel|KernelLaunch|LaunchCooperativeKernel|KernelsIndirect)",
        graph=r"^ur(EnqueueCommandBuffer|CommandBufferEnqueue)|^zeCommandListAppendGraph",
        wait=r"^ze\w*Synchronize|^(ur|pi)(QueueFinish|EventWait|EventsWait)",
        memory=r"^zeMem(AllocDevice|AllocShared|Free)|^(ur|pi\w*)USM(DeviceAlloc|SharedAlloc|Free)",
        signs=_XPU,
        device=r"(?i)\bIntel\b|\bXe\b|Data Center GPU Max|\bArc\b",
        types=(12,),
        allocating="urUSMDeviceAlloc and urUSMFree",
    ),
    Vendor(
        kind="mtia",
        torch="mtia",
        backend="hccl",
        runtime=frozenset({"mtia_runtime"}),
        launch=r"^runFunction - job_prep_and_submit_for_execution",
        signs=frozenset({"mtia_runtime", "mtia_ccp_events", "mtia_insight"}),
        device=r"(?i)\bMTIA\b",
        types=(19,),
    ),
    Vendor(
        kind="hpu",
        torch="hpu",
        backend="hccl",
        runtime=frozenset({"hpu_op"}),
        launch=r"^syn\w*Launch",
        wait=r"^syn(Stream|Device|Event)Synchronize",
        memory=r"^synDevice(Malloc|Free)",
        signs=frozenset({"hpu_op"}),
        device=r"(?i)Gaudi|\bHPU\b|\bHL-\d",
        types=(15,),
        allocating="synDeviceMalloc and synDeviceFree",
    ),
    Vendor(
        kind="privateuse1",
        torch="privateuseone",
        backend="",
        runtime=_PRIVATE,
        launch=r"(?i)launch\w*kernel|kernel\w*launch",
        wait=r"(?i)synchronize",
        signs=_PRIVATE,
    ),
    Vendor(
        kind="cuda",
        torch="cuda",
        backend="nccl",
        runtime=_CUPTI,
        launch=r"^(cuda|cu)[A-Z]\w*Launch\w*Kernel|^(cuda|cu)Launch\w*Kernel",
        graph=r"^(cuda|cu)GraphLaunch",
        wait=r"^(cuda|cu)(Device|Ctx|Stream|Event)Synchronize",
        memory=r"^cuda(Malloc|Free)(Async|Managed|Pitch|FromPoolAsync)?$|^cuMem(Create|Release|Map|Unmap)$"
        r"|^cuMem(Alloc|Free)(Async|Managed|Pitch|FromPoolAsync)?(_v2)?(_ptsz)?$",
        types=(1,),
        allocating="cudaMalloc and cudaFree",
    ),
)  # the last, DEFAULT, is what kernels of no other sign are of

CPU = "cpu"
DEVICE_TYPES = {0: CPU, **{number: vendor.torch for vendor in VENDORS for number in vendor.types}}
DEFAULT = VENDORS[-1]
OF_KIND = {vendor.kind: vendor for vendor in VENDORS}
RUNTIME_CATEGORIES = frozenset[str]().union(*(vendor.runtime for vendor in VENDORS))


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns if pattern))


# A name of one maker's call is no other's, but those of privateuse1, which any maker may choose.
_NAMED = [vendor for vendor in VENDORS if vendor.runtime != _PRIVATE]
KERNEL_LAUNCH_NAME = _any(vendor.launch for vendor in _NAMED)
GRAPH_LAUNCH_NAME = _any(vendor.graph for vendor in _NAMED)
LAUNCH_NAME = _any((KERNEL_LAUNCH_NAME.pattern, GRAPH_LAUNCH_NAME.pattern))
WAIT_NAME = _any(vendor.wait for vendor in _NAMED)
MEMORY_NAME = _any(vendor.memory for vendor in _NAMED)  # with expandable segments, memory is created and mapped
# Calls that copy without waiting for the copy; a fill of nothing may have no operation, and is not asked for one.
COPY_CALL_NAME = re.compile(r"^(cuda|hip)Memcpy(2D|3D|Peer|HtoD|DtoH|DtoD)?(Async|WithStream)$")
# Operations recorded into a graph between these run when the graph is launched, not when they are called.
CAPTURE_NAME = re.compile(r"^(cuda|cu|hip)(Stream|ThreadExchangeStream)(Begin|End)Capture")


def vendor_of(categories: Iterable[str], calls: Iterable[str], devices: Iterable[str]) -> Vendor:
    """The maker of the device of a trace, by the categories and the names of calls in it and the devices it lists."""
    present, named = frozenset(categories), " ".join(devices)
    for vendor in VENDORS:
        if vendor.signs & present or (vendor.device and re.search(vendor.device, named)):
            return vendor
    starts = tuple(vendor.call for vendor in VENDORS if vendor.call)
    called = next((call for call in calls if call.startswith(starts)), "")
    return next((vendor for vendor in VENDORS if vendor.call and called.startswith(vendor.call)), DEFAULT)


def types_of(device: str) -> list[int]:
    """The numbers in recorded allocations of a device type, by torch's name of it."""
    return [number for number, name in DEVICE_TYPES.items() if name == device]


def torch_device(kind: str | None) -> str:
    """Torch's name of the device type of a kind of device: ROCm's is called `cuda`."""
    return next((vendor.torch for vendor in VENDORS if vendor.kind == kind), kind or "cuda")


@dataclass(frozen=True)
class Unread:
    """A device that cannot be accounted for: its name in a sentence, and what its traces are recognized by."""

    kind: str
    title: str
    categories: frozenset[str]
    name: str = r"(?!)"


UNREAD = (
    Unread(
        "npu",
        "an Ascend NPU (recorded by torch_npu)",
        frozenset({"enqueue", "dequeue", "async_npu", "async_task_queue"}),
        r"^AscendCL@|^Dequeue@|^Enqueue@|^Node@launch|^Communication\(Not Overlapped\)$|^aclnn",
    ),
    Unread("mtia", "an MTIA accelerator whose kernels were not recorded", frozenset({"mtia_insight"})),
    Unread("hpu", "an Intel Gaudi accelerator whose kernels were not recorded", frozenset({"hpu_op"})),
    Unread("mps", "an Apple GPU (MPS)", frozenset(), r"^aten::(?:\w*_)?mps(?:_|$)"),
    Unread("glow", "an accelerator of the Glow runtime", frozenset({"glow_runtime"})),
)


def unread(categories: Iterable[str], names: Iterable[str]) -> Unread | None:
    """The device of events of these categories and names, where it is one that cannot be accounted for."""
    present, listed = frozenset(categories), list(names)
    for device in UNREAD:
        named = re.compile(device.name)
        if device.categories & present or any(named.search(name) for name in listed):
            return device
    return None
