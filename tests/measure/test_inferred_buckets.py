"""DDP's buckets from the grids of the kernels that copy gradients: by hand, and beside the sizes of messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptune.measure.inferred import buckets as module
from dptune.measure.inferred.buckets import copied_buckets
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.views import view
from dptune.measured import InferredBuckets, Measured
from dptune.present.text import sections
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import NCCL, all_reduce, annotation, launch, measure_events, on_device, operator, step

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
NODE = "autograd::engine::evaluate_function: "
MULTIPLIES = "at::native::AUnaryFunctor<{0}, {0}, {0}, at::native::binary_internal::MulFunctor<float> >"
VECTORIZED = f"void at::native::vectorized_elementwise_kernel<4, {MULTIPLIES}, at::detail::Array<char*, 2> >(int)"
LATER = VECTORIZED.format("float").replace("at::detail::Array<char*, 2>", "std::array<char*, 2ul>")
NAMED = f"void at::native::elementwise_kernel<128, 2, {MULTIPLIES}>(int)"
BLOCK = [128, 1, 1]
Gradient = tuple[str, Any, Any]  # of its kernel: the name, the grid and the block
TWO = [[("float", 3), ("float", 1)], [("double", 1000)]]


def gradients(buckets: Sequence[Sequence[tuple[str, int]]]) -> list[list[Gradient]]:
    return [[(VECTORIZED.format(dtype), [blocks, 1, 1], BLOCK) for dtype, blocks in bucket] for bucket in buckets]


def steps(*passes: Sequence[Sequence[Gradient]], elements: int | None = None) -> list[dict[str, Any]]:
    """Steps of a backward pass each: its buckets, and of each the gradients, of which the last issues an all-reduce."""
    events, number = [], 0
    for index, buckets in enumerate(passes):
        at = 1000.0 * index
        events += [step(index, at, at + 1000), annotation("DistributedDataParallel.forward", at + 1, at + 8)]
        events.append(operator("aten::linear", at + 2, at + 6))
        at += 20
        for bucket in buckets:
            for place, (name, grid, block) in enumerate(bucket):
                number += 2
                events += [
                    operator(f"{NODE}torch::autograd::AccumulateGrad", at, at + 9, 2),
                    operator("torch::distributed::reducer::mul_out", at + 1, at + 4, 2),
                    launch(number, at + 2, at + 3, 2),
                    on_device("kernel", name, at + 5, at + 6, number, grid=grid, block=block),
                ]
                if place == len(bucket) - 1:
                    events.append(launch(number + 1, at + 6, at + 7, 2))
                    events.append(
                        on_device("kernel", NCCL, at + 7, at + 9, number + 1, stream=20)
                        if elements is None
                        else all_reduce(at + 7, at + 9, number + 1, elements, group="0", group_size=2)
                    )
                at += 10
    return events


def found(folder: Path, events: list[dict[str, Any]]) -> InferredBuckets | None:
    measured: Measured = measure_events(folder, events)
    assert measured.inferred.confidence["ddp"] == "high"
    return measured.inferred.buckets


def test_by_hand(tmp_path: Path) -> None:
    """Three blocks of 512 floats hold 1,025 to 1,536 of them, one 1 to 512; 1,000 of doubles 511,489 to 512,000."""
    buckets = found(tmp_path, steps(*[gradients(TWO)] * 2))
    assert buckets is not None
    assert (buckets.gradients, buckets.dtypes, buckets.confidence) == ([2, 1], ["float32", "float64"], "medium")
    assert buckets.low_bytes == [4 * (1025 + 1), 8 * 511_489]
    assert buckets.high_bytes == [4 * (1536 + 512), 8 * 512_000]


def test_a_kernel_names_the_elements_of_a_thread(tmp_path: Path) -> None:
    """128 threads of 2 floats: ten blocks hold 2,305 to 2,560."""
    buckets = found(tmp_path, steps(*[[[(NAMED.format("float"), [10, 1, 1], BLOCK)]]] * 3))
    assert buckets is not None
    assert (buckets.low_bytes, buckets.high_bytes) == ([9_220], [10_240])


def test_the_buckets_of_most_passes(tmp_path: Path) -> None:
    """In its first step DDP has other buckets than later on."""
    first = gradients([[("float", 3)], [("float", 1), ("double", 1000)]])
    buckets = found(tmp_path, steps(first, *[gradients(TWO)] * 2))
    assert buckets is not None
    assert buckets.gradients == [2, 1]


@pytest.mark.parametrize(
    "passes",
    [
        pytest.param([gradients(TWO)], id="a single pass"),
        pytest.param([gradients(TWO), gradients([[("float", 3)], [("double", 1000)]])], id="events were lost"),
        pytest.param([gradients([[("c10::BFloat16", 9)]])] * 2, id="4 or 8 elements of 2 bytes"),
        pytest.param([[[(LATER, [9, 1, 1], BLOCK)]]] * 2, id="4 or 8 elements by version"),
        pytest.param([[[("cub::DeviceCopy<float>", [9, 1, 1], BLOCK)]]] * 2, id="a kernel of other work"),
        pytest.param([[[(VECTORIZED.format("float"), [9, 1, 1], [256, 1, 1])]]] * 2, id="blocks of a ROCm device"),
        pytest.param([[[(VECTORIZED.format("float"), [9, 2, 1], BLOCK)]]] * 2, id="a grid of two dimensions"),
        *(
            pytest.param([[[(VECTORIZED.format("float"), grid, BLOCK)]]] * 2, id=f"grid {grid}")
            for grid in ("many", None, [], [0, 1, 1], [-5, 1, 1], [2**70, 1, 1], ["1", 1, 1])
        ),
    ],
)
def test_what_does_not_show_the_size_of_a_gradient(passes: list[list[list[Gradient]]], tmp_path: Path) -> None:
    assert found(tmp_path, steps(*passes)) is None


LARGEST = 2**31 - 1  # blocks: 4 TiB of floats


@pytest.mark.parametrize(
    ("blocks", "listed", "credible"),
    [
        (LARGEST, None, False),
        (2**28, None, True),  # 512 GiB less 2,044 bytes
        (2**28 + 1, None, False),
        (2**20, 2**31, True),  # 2 GiB less 2,044 bytes, on a GPU of as much
        (2**20 + 1, 2**31, False),
        (LARGEST, 2**50, False),
    ],
)
def test_no_more_gradients_than_the_memory_holds(
    blocks: int, listed: int | None, credible: bool, tmp_path: Path
) -> None:
    """Blocks of 512 floats; how full the last one is, is not known."""
    device = {"id": 0, "name": "A GPU", **({"totalGlobalMem": listed} if listed else {})}
    measured = measure_events(tmp_path, steps(*[gradients([[("float", blocks)]])] * 2), deviceProperties=[device])
    buckets = measured.inferred.buckets
    assert (buckets is not None) is credible
    if buckets is not None:
        assert buckets.low_bytes == [4 * ((blocks - 1) * 512 + 1)]


def test_sizes_of_messages_win(tmp_path: Path) -> None:
    measured = measure_events(tmp_path, steps(*[gradients(TWO)] * 2, elements=75_000))
    assert measured.inferred.facts.ddp[0].rebuilt_bucket_sizes == [300_000] * 2
    assert measured.inferred.buckets is None


def test_of_very_many_kernels_no_grids_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three gradients in each of two passes."""
    events = steps(*[gradients(TWO)] * 2)
    monkeypatch.setattr(module, "_MOST_KERNELS", 6)
    assert found(tmp_path, events) is not None
    monkeypatch.setattr(module, "_MOST_KERNELS", 5)
    assert found(tmp_path, events) is None


def test_gradients_that_are_not_copied_are_views_of_buckets(tmp_path: Path) -> None:
    events = steps(*[gradients(TWO)] * 2, elements=75_000)
    copied = measure_events(tmp_path, events).inferred
    assert "ddp.gradient_as_bucket_view" not in copied.confidence
    viewed = [event for event in events if "mul_out" not in event["name"]]
    inferred = measure_events(tmp_path, viewed).inferred
    assert inferred.facts.ddp[0].gradient_as_bucket_view is True
    assert inferred.confidence["ddp.gradient_as_bucket_view"] == "low"


def _by_kernels(path: Path) -> InferredBuckets | None:
    """What the kernels of a trace show, whatever its messages do: all-reduces inside of AccumulateGrad nodes."""
    run = load([path])
    host = HostEvents(view(run.ranks[0].rank, run.ranks[0].light))
    (device,) = host.view.devices
    ran, columns = device.operations, host.columns
    reduces = columns.named(lambda name: "nccl" in name and "AllReduce" in name, ran.rows) & (ran.launch >= 0)
    issued = ran.launch[reduces]
    issued = issued[host.inside(issued, host.gradients)]
    return copied_buckets(host, issued[np.argsort(columns.ts_ns[issued])].tolist())


def test_messages_lie_between_the_bounds(real_traces: Path) -> None:
    """ResNet-50 on an A100, whose 161 gradients are in buckets as counted by hand."""
    path = real_traces / "hta_training" / "b4b6dce_nccl_data.json.gz"
    buckets = _by_kernels(path)
    assert buckets is not None
    assert buckets.gradients == [2, 15, 12, 51, 81]
    sizes = reading.measured(path).inferred.facts.ddp[0].rebuilt_bucket_sizes
    for low, size, high in zip(buckets.low_bytes, sizes, buckets.high_bytes, strict=True):
        assert low <= size <= high <= 1.02 * low


@pytest.mark.long
def test_a_recording_of_later_torch_shows_no_sizes() -> None:
    """Its threads take 8 elements: four per thread would make half of its messages of 29.4 and 21.0 MB."""
    assert _by_kernels(SAMPLES / "gpu" / "ranks-nccl-ddp") is None


def test_a_public_trace_without_sizes_of_messages(real_traces: Path) -> None:
    """Of its third bucket's grids, 5, 8201, 5 and 8201 blocks, by hand: four gradients, 16,408 of 16,412 blocks."""
    path = next((real_traces / "torchrec_4xv100").glob("0752d91*"))
    buckets = reading.measured(path).inferred.buckets
    assert buckets is not None
    assert buckets.gradients == [4, 6, 4, 4]
    assert (buckets.low_bytes[2], buckets.high_bytes[2]) == (4 * (16_408 * 512 + 4), 4 * 16_412 * 512)
    assert sum(buckets.gradients) == 18


def test_the_section_has_a_line_of_buckets(real_traces: Path) -> None:
    path = next((real_traces / "torchrec_4xv100").glob("0752d91*"))
    said = sections(reading.reported(path), ["inferred"], 100)
    assert (
        "DDP buckets 18 gradients in 4 buckets: 6.06 MiB to 6.07 MiB, 40.1 MiB, 32.0 MiB to 32.1 MiB, 24.0 MiB, "
        "by the grids of the kernels that copy gradients (medium confidence)"
    ) in " ".join(said.split())
