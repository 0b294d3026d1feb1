"""Ready gradients, attention and TF32 of traces: by hand, and beside plain computations on public ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dptune.measured import Measured

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import Event, launched, measure_events, operator, step
from .test_inferred import ACCUMULATES, SAMPLES, stripped

NODE = "autograd::engine::evaluate_function: MmBackward0"
A100: dict[str, Any] = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}]
}


def traits(measured: Measured) -> dict[str, str]:
    return {trait.name: trait.value for trait in measured.inferred.traits}


def passes(*, on_gpu: bool) -> list[Event]:
    """Two steps of 5 ms. A pass starts at 1 ms; its five gradients are there at 1.5, 2.0, ... 3.5 ms on the host.

    The kernel of each is launched 0.1 ms before. They start at 1.2 ms and take 0.8 ms each, one after the other.
    """
    events, number = [], 0
    for index in range(2):
        at = 5000.0 * index
        events += [step(index, at, at + 5000), operator("aten::linear", at + 10, at + 100)]
        for place in range(5):
            node = at + 1000 + 500 * place
            events += [operator(NODE, node, node + 450, 2), operator(ACCUMULATES, node + 500, node + 540, 2)]
            if on_gpu:
                number += 1
                start = at + 1200 + 800 * place
                events += launched(
                    "gemm", node + 100 if not place else node + 400, start, start + 800, number, thread=2
                )
    return events


def test_on_the_host_a_gradient_is_ready_when_autograd_adds_it(tmp_path: Path) -> None:
    said = traits(measure_events(tmp_path, passes(on_gpu=False)))["gradients"]
    assert said == (
        "5 per backward pass: first ready 0.5 ms after the pass starts, half 1.5 ms, last 2.5 ms "
        "(traced times on the host)"
    )


@pytest.mark.parametrize("nodes", [True, False])
def test_before_torch_1_10_nodes_are_operators(tmp_path: Path, nodes: bool) -> None:
    """Operators inside AccumulateGrad do not split a pass; a pass without nodes has no start."""
    events = []
    for each in passes(on_gpu=False):
        name = each["name"].removeprefix("autograd::engine::evaluate_function: ")
        if nodes or not name.endswith("Backward0"):
            events.append(each | {"name": name})
        if name == ACCUMULATES.split(": ")[1]:
            events.append(operator("aten::detach", each["ts"] + 1, each["ts"] + 2, 2))
    said = traits(measure_events(tmp_path, events)).get("gradients", "")
    assert said.startswith("5 per backward pass: first ready 0.5 ms after the pass starts, half 1.5 ms") is nodes
    assert bool(said) is nodes


def test_on_a_gpu_a_gradient_is_ready_when_its_kernel_has_ended(tmp_path: Path) -> None:
    said = traits(measure_events(tmp_path, passes(on_gpu=True)))["gradients"]
    assert said == (
        "5 per backward pass: first ready 0.8 ms after the pass starts, half 2.4 ms, last 4 ms (traced "
        "times on the GPU)"
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["healthy", "gpu/ranks-nccl-ddp"])
def test_as_many_as_the_reducer_counted(name: str) -> None:
    run, measured = stripped(SAMPLES / name)
    recorded = len(run.facts[0].ddp[0].grad_ready_order)
    assert recorded > 0
    assert traits(measured)["gradients"].startswith(f"{recorded} per backward pass: ")


def test_beside_a_plain_computation_on_a_public_trace(real_traces: Path) -> None:
    """A gradient is ready at the latest end of the kernels launched in its pass before its node."""
    (path,) = (real_traces / "hta_training").glob("b4b6dce*")
    events = [each for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if each.get("ph") == "X"]
    nodes = sorted(e["ts"] for e in events if e["name"] == ACCUMULATES)
    calls = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") == "cuda_runtime" and "correlation" in e["args"]
    }
    kernels = [
        (calls[e["args"]["correlation"]], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") == "kernel" and not e["name"].startswith("nccl") and e["args"].get("correlation") in calls
    ]
    backward = sorted(e["ts"] for e in events if e["name"].startswith("autograd::engine::evaluate_function: "))
    found: list[tuple[float, float, float]] = []
    for number in range(0, len(nodes), 161):
        of_pass = nodes[number : number + 161]
        begin = min(at for at in backward if at > (nodes[number - 1] + 5000 if number else 0))
        started = min(start for called, start, _ in kernels if begin <= called < of_pass[0])
        ready = [
            max(end for called, _, end in kernels if begin <= called < at) - started
            for at in (of_pass[0], of_pass[80], of_pass[160])
        ]
        found.append(tuple(each / 1e3 for each in ready))
    first, half, last = (median(each) for each in zip(*found, strict=True))
    said = traits(reading.measured(path))["gradients"]
    assert said.startswith(
        f"161 per backward pass: first ready {first:.3g} ms after the pass starts, half {half:.3g} ms, "
        f"last {last:.3g} ms"
    )


@pytest.mark.parametrize(
    ("kernels", "value"),
    [
        (["ampere_sgemm_128x64_tn"], "off: 0 TF32 kernels, 1 fp32 kernel"),
        (["cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4"], "on: 1 TF32 kernel, 0 fp32 kernels"),
        (
            ["sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", "ampere_sgemm_128x64_tn"],
            "partly: 1 TF32 kernel, 1 fp32 kernel",
        ),
        (["ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn"], None),
    ],
)
def test_tf32(tmp_path: Path, kernels: list[str], value: str | None) -> None:
    assert traits(measure_events(tmp_path, stepped(kernels), **A100)).get("TF32") == value


def stepped(kernels: list[str]) -> list[Event]:
    events = [step(1, 0, 100), step(2, 100, 200)]
    for place, name in enumerate(kernels):
        for number, at in enumerate((10, 110)):
            events += launched(name, at + 10 * place, at + 10 * place + 2, at + 10 * place + 8, 10 * place + number + 1)
    return events


def test_a_gpu_without_tf32_has_no_line(tmp_path: Path) -> None:
    v100 = {"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0}]}
    assert "TF32" not in traits(measure_events(tmp_path, stepped(["volta_sgemm_128x64_tn"]), **v100))


def test_tf32_and_attention_of_public_traces(real_traces: Path) -> None:
    def of(pattern: str) -> dict[str, str]:
        (path,) = real_traces.glob(pattern)
        return traits(reading.measured(path))

    plain = of("single_gpu/d4c3f21*")  # `TF32 or bf16` is what an engineer says first of it
    assert (plain["TF32"][:3], plain["attention"]) == (
        "off",
        "memory-efficient attention (scaled_dot_product_attention)",
    )
    assert of("single_gpu/c4adadd*")["TF32"].startswith("on: 4 TF32 kernels")
    assert of("nanogpt_adam_hook_h100/3608dcf*")["attention"] == "flash attention (by its kernels)"
    assert of("single_gpu/1eeffb3*")["attention"] == "memory-efficient attention (by its kernels)"
