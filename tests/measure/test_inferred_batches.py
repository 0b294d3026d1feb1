"""The batch size that a trace shows: of public traces by hand, and where sources agree or disagree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dptune.measure.efficiency.tokens import Tokens
from dptune.measure.inferred import batches, inferred_samples
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.views import view
from dptune.measured import InferredBatch, Measured

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import Event, all_reduce, copy, launch, launched, load_events, measure_events, operator, step

ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
CONVOLUTION = ("aten::conv2d", [32, 3, 64, 64], [8, 3, 7, 7])
LABELS, IMAGES = 32 * 8, 32 * 3 * 64 * 64 * 4
Calls = Sequence[tuple[str, list[int], list[int]]]


def test_a_public_trace_of_images(real_traces: Path) -> None:
    """By hand: each step copies 256 bytes, 32 labels of int64, and 32 images of 3 x 224 x 224 floats."""
    path = real_traces / "kineto_resnet50_loader" / "234cf25_worker0.1623212756351.pt.trace.json.gz"
    measured = reading.measured(path)
    assert measured.inferred.batch.sources == [
        "input of the first convolution: 32 x 3 x 224 x 224",
        "loss: 32 rows",
        "copy to the device: 18.4 MiB",
    ]
    assert measured.samples_per_step == 32
    assert measured.efficiency.samples_per_s == pytest.approx(32 / measured.efficiency.step_ns * 1e9)
    assert measured.samples_inferred
    assert not measured.model_copy(update={"samples_given": True}).samples_inferred


def test_copies_alone_show_a_batch_with_low_confidence(real_traces: Path) -> None:
    """By hand: 1,024 bytes are 128 labels; 77,070,336 bytes are 128 x 3 x 224 x 224 floats. No sizes of operators."""
    measured = reading.measured(real_traces / "single_gpu" / "29571b7_resnet_kineto.json.gz")
    assert (measured.inferred.batch.samples, measured.inferred.batch.confidence) == (128, "low")
    assert "only one indication (batch 128)" in measured.missing["samples_per_step"]


def trained(
    tmp_path: Path,
    operators: Calls,
    copied: Sequence[int] = (),
    gradients: Sequence[int] = (1,),
    ranks: int = 1,
    group_size: int | None = None,
) -> Measured:
    """Two steps of backward passes that add so many gradients each, after the same operators."""
    events: list[dict[str, Any]] = []
    for number, start in enumerate((0, 1000)):
        events += [step(number, start, start + 1000), *launched("gemm", start + 2, start + 20, start + 990, number + 1)]
        at = start + 10
        for order, size in enumerate(copied):
            correlation = 100 + 10 * number + order
            events.append(launch(correlation, at, at + 1))
            events.append(copy("HtoD (Pinned -> Device)", at + 1, at + 2, correlation, bytes=size))
            at += 3
        for adds in gradients:
            for name, *shapes in operators:
                events.append(operator(name, at, at + 2, **{"Input Dims": shapes}))
                at += 3
            events.append(operator("aten::relu", at, at + 1))
            for _ in range(adds):
                events.append(operator(ACCUMULATES, at + 2, at + 4, thread=2))
                at += 3
        if group_size:  # from the last gradient, as DDP's reducer does
            events.append(launch(50 + number, at - 1, at, thread=2))
            events.append(all_reduce(at, at + 5, 50 + number, 100, "dp", group_size))
    return measure_events(tmp_path, *[events] * ranks)


def loss(rows: int, classes: int = 10) -> tuple[str, list[int], list[int]]:
    return ("aten::cross_entropy_loss", [rows, classes], [rows])


def test_sources_that_agree_give_medium_confidence(tmp_path: Path) -> None:
    measured = trained(tmp_path, [CONVOLUTION, loss(32)], [LABELS, IMAGES], gradients=(2, 2))
    assert (measured.inferred.batch.samples, measured.inferred.batch.confidence) == (32, "medium")
    assert measured.samples_per_step == 2 * 32  # two backward passes a step
    single = trained(tmp_path, [CONVOLUTION])
    assert single.inferred.batch.confidence == "low"
    assert single.known("samples_per_step") is None


@pytest.mark.parametrize(
    ("operators", "gradients"),
    [
        pytest.param([CONVOLUTION, loss(2048)], (1,), id="frames of videos"),
        pytest.param([CONVOLUTION, loss(32)], (2, 1), id="a GAN"),
        pytest.param([("aten::linear", [1024, 64], [8, 64]), loss(1024, 50257)], (1,), id="rows of tokens"),
        pytest.param([("aten::linear", [4, 256, 64], [8, 64]), loss(7), loss(9)], (1,), id="several losses"),
    ],
)
def test_sources_that_disagree_give_nothing(tmp_path: Path, operators: Calls, gradients: Sequence[int]) -> None:
    assert trained(tmp_path, operators, gradients=gradients).inferred.batch is None


@pytest.mark.parametrize("samples", [0, 10**9 + 1])
def test_sizes_of_no_real_tensor_give_nothing(tmp_path: Path, samples: int) -> None:
    assert trained(tmp_path, [("aten::conv2d", [samples, 3, 64, 64], [8, 3, 7, 7])]).inferred.batch is None


@pytest.mark.parametrize(("shape", "samples"), [((32, 7), 32), ((16, 14), None)])
def test_images_and_the_tokens_that_describe_them(tmp_path: Path, shape: tuple[int, int], samples: int | None) -> None:
    """A batch of 32 images: as many texts have as many samples; 16 texts disagree."""
    name, image, kernel = CONVOLUTION
    events: list[Event] = []
    for at in (0, 100):
        convolution = operator(name, at + 10, at + 20, **{"Input Dims": [image, kernel]})
        events += [step(at // 100, at, at + 100), convolution, operator(ACCUMULATES, at + 50, at + 60)]
    host = HostEvents(view(0, load_events(tmp_path, events).ranks[0].light))
    found = batches.batch(host, Tokens(per_step=224, shape=shape))
    assert (None if found is None else found.samples) == samples


def test_of_very_many_operators_no_sizes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = [CONVOLUTION, loss(32)]
    assert len(trained(tmp_path, operators, [LABELS, IMAGES]).inferred.batch.sources) == 3
    monkeypatch.setattr(batches, "_MOST", 3)  # both in both passes are four
    (source,) = trained(tmp_path, operators, [LABELS, IMAGES]).inferred.batch.sources
    assert source.startswith("copies to the device: 256 bytes (labels)")


@pytest.mark.parametrize(
    ("passes", "replicas", "samples", "why"),
    [
        (2, 1, 64, ""),
        (None, 1, None, "the trace does not show where gradients are accumulated"),
        (2, None, None, "the number of ranks, or of replicas of the model, is not known"),
    ],
)
def test_samples_of_a_step_need_passes_and_replicas(
    tmp_path: Path, passes: int | None, replicas: int | None, samples: int | None, why: str
) -> None:
    rank = view(0, load_events(tmp_path, [step(0, 0, 100), operator("aten::mm", 1, 99)]).ranks[0].light)
    taken = InferredBatch(samples=32, length=None, confidence="medium", sources=["loss: 32 rows"])
    assert inferred_samples(rank, [], replicas, taken, passes, sized=True) == (samples, why)


def test_copies_that_are_no_images_give_nothing(tmp_path: Path) -> None:
    assert trained(tmp_path, [], [LABELS, IMAGES]).inferred.batch.samples == 32
    for copied in ([1024, 65536], [LABELS, IMAGES, 512], [LABELS, IMAGES + 4], [4, 3895296]):
        assert trained(tmp_path, [], copied).inferred.batch is None


def test_ranks_of_a_model_that_is_split_share_their_samples(tmp_path: Path) -> None:
    operators = [CONVOLUTION, loss(32)]
    assert trained(tmp_path, operators, ranks=2, group_size=2).samples_per_step == 64
    split = trained(tmp_path, operators, ranks=4, group_size=2)
    assert split.inferred.batch.samples == 32
    assert "all ranks average gradients" in split.missing["samples_per_step"]
