"""The table of kernel classes, on names written by hand and on every distinct name of the real traces."""

import gzip
import json
import math
import re
from typing import Any

import msgspec
import pytest

from dptune.trace.kernels import TABLE, Work, waits, work_of

from .. import reading  # noqa: TID252 - tests are no installed package


@pytest.mark.parametrize(
    ("category", "name", "work"),
    [
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Work.COMMUNICATION),
        ("kernel", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", Work.COMMUNICATION),
        ("Kernel", "ncclAllReduceRingLLKernel_sum_f32(ncclColl)", Work.COMMUNICATION),
        ("kernel", "ncclDevKernel_Generic_1(ncclDevComm*, channelMasks, ncclWork*)", Work.COMMUNICATION),
        ("kernel", "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", Work.COMMUNICATION),
        ("kernel", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", Work.COMMUNICATION),
        ("kernel", "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16>()", Work.COMMUNICATION),
        ("kernel", "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", Work.COMMUNICATION),
        ("kernel", "void (anonymous namespace)::multimem_all_gather_kernel<16>()", Work.COMMUNICATION),
        ("kernel", "nvshmemi_transfer_rma_kernel", Work.COMMUNICATION),
        ("kernel", "__amd_rocclr_copyBuffer.kd", Work.COPY),
        ("kernel", "__amd_rocclr_fillBufferAligned.kd", Work.MEMSET),
        ("kernel", "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SE.kd", Work.COMPUTE),
        ("kernel", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()", Work.COMPUTE),
        ("kernel", "triton_red_fused_all_gather_into_tensor_mean_0", Work.COMPUTE),
        ("kernel", "", Work.COMPUTE),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", Work.COPY),
        ("gpu_memcpy", "CopyDeviceToHost", Work.COPY),
        ("Memset", "Memset (Device)", Work.MEMSET),
        ("mtia_ccp_events", "dma_request", Work.COPY),
        ("mtia_ccp_events", "fc-dtype_Float", Work.COMPUTE),
        ("gpu_user_annotation", "nccl:all_reduce", None),
        ("cuda_profiler_range", "ampere_sgemm_32x32", None),
        ("cuda_sync", "Stream Sync", None),
        ("cpu_op", "triton_poi_fused_add_0", None),
    ],
)
def test_names_written_by_hand(category, name, work):
    assert work_of(category, name) is work


def test_every_row_of_the_table_decides_for_some_name():
    """By a name that holds what the row looks for: no row stands behind one that takes all of its names."""
    examples = {
        r"^dma_request$": "dma_request",
        r"": "anything",
    }
    for row in TABLE:
        name = examples.get(row.name, row.name.lstrip("^"))
        assert re.search(row.name, name)
        assert {work_of(category, name) for category in row.categories} == {row.work}, row
        assert row.source


@pytest.mark.parametrize(
    ("category", "name", "waiting"),
    [
        ("cuda_runtime", "cudaDeviceSynchronize", True),
        ("cuda_runtime", "cudaStreamSynchronize", True),
        ("cuda_runtime", "cudaEventSynchronize", True),
        ("cuda_driver", "cuCtxSynchronize", True),
        ("Runtime", "cudaMemcpy", False),
        ("cuda_runtime", "hipDeviceSynchronize", True),
        ("cuda_runtime", "hipMemcpy", False),
        ("cuda_runtime", "hipMemcpyWithStream", False),
        ("cuda_sync", "Event Sync", True),
        ("cuda_sync", "Stream Wait Event", False),
        ("cuda_runtime", "cudaMemcpyAsync", False),
        ("cuda_runtime", "cudaStreamWaitEvent", False),
        ("cuda_runtime", "cudaLaunchKernel", False),
        ("cuda_runtime", "cudaEventQuery", False),
        ("cpu_op", "cudaDeviceSynchronize", False),
    ],
)
def test_where_the_host_waits(category, name, waiting):
    assert waits(category, name) is waiting


class Named(msgspec.Struct):
    """What of an event its kind goes by."""

    ph: Any = None
    cat: Any = None
    name: Any = None


class Document(msgspec.Struct):
    traceEvents: list[Named]  # noqa: N815 - as the file spells it


def names_in(text):
    """Categories and names of the complete events."""
    try:
        events = msgspec.json.decode(text, type=list[Named] | Document)
        events = events if isinstance(events, list) else events.traceEvents
    except ValueError:  # msgspec refuses what json takes
        document = json.loads(text)
        found = document if isinstance(document, list) else document["traceEvents"]
        events = [Named(event.get("ph"), event.get("cat"), event["name"]) for event in found]
    return {(str(event.cat), str(event.name)) for event in events if event.ph == "X"}


@pytest.mark.parametrize(("largest", "least"), [(4e6, 500), pytest.param(math.inf, 1400, marks=pytest.mark.thorough)])
def test_every_distinct_name_of_the_real_traces(real_traces, largest, least):
    """Against the definitions in the manifest of the traces, and for where the host waits a list read by eye."""
    names = set()
    for entry in json.loads((real_traces / "MANIFEST.json").read_text()):
        if entry["torch_trace"] and entry["uncompressed_bytes"] <= largest:
            raw = (real_traces / entry["file"]).read_bytes()
            names |= names_in(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    expected = {}
    for category, name in names:
        if category in ("kernel", "Kernel"):
            communicates = any(word in name.lower() for word in ("nccl", "rccl"))
            expected[category, name] = Work.COMMUNICATION if communicates else Work.COMPUTE
        elif category in ("gpu_memcpy", "Memcpy"):
            expected[category, name] = Work.COPY
        elif category in ("gpu_memset", "Memset"):
            expected[category, name] = Work.MEMSET
        elif category == "mtia_ccp_events":
            expected[category, name] = Work.COPY if name == "dma_request" else Work.COMPUTE
    assert len(expected) > least
    found = {pair: work for pair in names if (work := work_of(*pair)) is not None}
    assert found == expected
    waiting = {pair for pair in names if waits(*pair)}
    assert waiting == (WAITS if largest == math.inf else WAITS & names)


WAITS = {
    *((kind, call) for kind in ("Runtime", "cuda_runtime") for call in (
        "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaStreamSynchronize"
    )),
    *(("cuda_runtime", call) for call in ("hipDeviceSynchronize", "hipEventSynchronize")),
    *(("cuda_sync", kind) for kind in ("Context Sync", "Event Sync", "Stream Sync")),
}  # fmt: skip


@pytest.mark.thorough
def test_mtia_has_an_account(real_traces):
    """Its largest kernel class by hand: the union of its events from the file is what the account calls busy."""
    (path,) = (real_traces / "mtia").glob("*.gz")
    (device,) = reading.measured(path.parent).ranks[0].devices  # which other tests ask for, too
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)["traceEvents"]
    spans = sorted(
        (round(float(e["ts"]) * 1000), round(float(e["ts"]) * 1000) + round(float(e["dur"]) * 1000))
        for e in events
        if e.get("cat") == "mtia_ccp_events"
    )
    busy, reached = 0, 0
    for start, end in spans:
        busy += max(end - max(start, reached), 0)
        reached = max(reached, end)
    assert device.device == "mtia:9"
    assert (device.device_operations, device.kernels) == (len(spans), 0)
    assert device.whole.busy_ns == busy
    assert 0 < device.whole.copy_ns < device.whole.compute_ns
