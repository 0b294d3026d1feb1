"""Forward and backward of a transformer as torch does them: operators, launches and autograd nodes.

Blocks are those of GPT: layer norm, attention, layer norm, a perceptron of four times the width, residual additions.
The loss is the mean of the squared output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from tests.simulator.actions import COMPUTE, Script
from tests.simulator.kernels import Kernel, Kernels
from tests.simulator.machine import Host
from tests.simulator.settings import Settings

STREAM = 7  # of compute


@dataclass(frozen=True)
class Parameter:
    """A tensor that is trained; `layer` is the block that it belongs to."""

    name: str
    shape: tuple[int, ...]
    layer: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


def parameters(settings: Settings) -> list[Parameter]:
    """In the order in which modules register them."""
    width = settings.width
    shapes = {
        "norm1.weight": (width,),
        "norm1.bias": (width,),
        "qkv.weight": (3 * width, width),
        "qkv.bias": (3 * width,),
        "out.weight": (width, width),
        "out.bias": (width,),
        "norm2.weight": (width,),
        "norm2.bias": (width,),
        "up.weight": (4 * width, width),
        "up.bias": (4 * width,),
        "down.weight": (width, 4 * width),
        "down.bias": (width,),
    }
    return [
        Parameter(f"layers.{layer}.{name}", shape, layer)
        for layer in range(settings.layers)
        for name, shape in shapes.items()
    ]


class Model:
    """Writes forward and backward passes into a script."""

    def __init__(self, settings: Settings, kernels: Kernels, host: Host, script: Script) -> None:
        self.settings = settings
        self.kernels = kernels
        self.host = host
        self.script = script
        self.parameters = {parameter.name: parameter for parameter in parameters(settings)}
        self.sequence = 0
        self.autocast = settings.precision == "bf16" and settings.strategy == "ddp"
        self.size = 2 if settings.precision == "bf16" else 4  # bytes of an activation of matrix products
        self.norm_size = 2 if settings.precision == "bf16" and settings.strategy == "fsdp" else 4
        self._tape: list[tuple[str, int, Callable[[], list[Parameter]]]] = []

    # -- parts of operators

    @contextmanager
    def operator(
        self,
        name: str,
        *dims: tuple[int, ...] | list[Any],
        cost: float = 1.0,
        sequence: int | None = None,
        dtype: str = "",
    ) -> Iterator[None]:
        arguments: dict[str, Any] = {}
        if dims:
            arguments["Input Dims"] = [list(dim) for dim in dims]
            arguments["Input type"] = [(dtype or self._dtype()) if dim else "Scalar" for dim in dims]
        if sequence is not None:
            arguments |= {"Sequence number": sequence, "Fwd thread id": 0}
        with self.script.event(name, cost * self.host.operator_us, arguments=arguments):
            yield

    def _dtype(self) -> str:
        return "c10::BFloat16" if self.settings.precision == "bf16" else "float"

    def launch(self, kernel: Kernel) -> None:
        self.script.launch(COMPUTE, kernel.name, STREAM, kernel.duration_us, grid=kernel.grid, block=kernel.block)

    def pointwise(self, name: str, elements: int, moved_bytes: float) -> None:
        self.launch(self.kernels.pointwise(name, moved_bytes, elements))

    def _node(self, name: str, backward: Callable[[], list[Parameter]]) -> int:
        """A forward operator has done its work: its node is on the tape. Returns its sequence number."""
        self.sequence += 1
        self._tape.append((name, self.sequence, backward))
        return self.sequence

    def _cast(self, shape: tuple[int, ...]) -> None:
        """Autocast: a copy in bf16, whose gradient is cast back to fp32."""
        elements = prod(shape)
        with (
            self.operator("aten::to", shape, dtype="float", cost=0.6),
            self.operator("aten::_to_copy", shape, dtype="float"),
            self.operator("aten::copy_", shape, shape, dtype="float", cost=0.8),
        ):
            self.pointwise("cast", elements, 6.0 * elements)
        self._node("ToCopyBackward0", lambda: self._cast_back(shape))

    def _cast_back(self, shape: tuple[int, ...]) -> list[Parameter]:
        elements = prod(shape)
        with self.operator("aten::_to_copy", shape, cost=1.2), self.operator("aten::copy_", shape, shape):
            self.pointwise("cast", elements, 6.0 * elements)
        return []

    # -- layers

    def linear(self, name: str, rows: int, inner: int, columns: int) -> None:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        inputs = (self.settings.batch, self.settings.tokens, inner)
        with self.operator("aten::linear", inputs, weight.shape, bias.shape):
            if self.autocast:
                self._cast((rows, inner))
                self._cast(weight.shape)
            sequence = self.sequence + 1
            with (
                self.operator("aten::t", weight.shape, cost=0.5),
                self.operator("aten::transpose", weight.shape, cost=0.4),
            ):
                pass
            dims = (bias.shape, (rows, inner), (inner, columns), (), ())
            with self.operator("aten::addmm", *dims, sequence=sequence):
                self.launch(self.kernels.matmul(rows, columns, inner, self.settings.precision, "tn"))
        self._node("AddmmBackward0", lambda: self._linear_backward(name, rows, inner, columns))

    def _linear_backward(self, name: str, rows: int, inner: int, columns: int) -> list[Parameter]:
        precision = self.settings.precision
        with self.operator("aten::t", (columns, inner), cost=0.5):
            pass
        with self.operator("aten::mm", (rows, columns), (columns, inner)):
            self.launch(self.kernels.matmul(rows, inner, columns, precision, "nn"))
        with self.operator("aten::t", (rows, columns), cost=0.5):
            pass
        with self.operator("aten::mm", (columns, rows), (rows, inner)):
            self.launch(self.kernels.matmul(columns, inner, rows, precision, "nt"))
        with self.operator("aten::sum", (rows, columns), (), (), ()):
            self.pointwise("sum", rows * columns, self.size * rows * columns)
        return [self.parameters[f"{name}.bias"], self.parameters[f"{name}.weight"]]

    def layer_norm(self, name: str) -> None:
        settings = self.settings
        shape = (settings.batch, settings.tokens, settings.width)
        elements = prod(shape)
        with (
            self.operator("aten::layer_norm", shape, cost=0.5),
            self.operator(
                "aten::native_layer_norm",
                shape,
                (),
                (settings.width,),
                (settings.width,),
                (),
                sequence=self.sequence + 1,
            ),
        ):
            self.pointwise("layer_norm", elements, 2.0 * self.norm_size * elements)
        self._node("NativeLayerNormBackward0", lambda: self._layer_norm_backward(name, shape))

    def _layer_norm_backward(self, name: str, shape: tuple[int, ...]) -> list[Parameter]:
        elements = prod(shape)
        with self.operator("aten::native_layer_norm_backward", shape, shape, (), (), (), (), ()):
            self.pointwise("layer_norm_input", elements, 3.0 * self.norm_size * elements)
            self.pointwise("layer_norm_weight", elements, 2.0 * self.norm_size * elements)
        return [self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]]

    def attention(self) -> None:
        settings = self.settings
        shape = (settings.batch, settings.heads, settings.tokens, settings.width // settings.heads)
        if settings.attention == "sdpa":
            name = (
                "aten::_scaled_dot_product_flash_attention"
                if self.size == 2
                else "aten::_scaled_dot_product_efficient_attention"
            )
            sequence = self.sequence + 1
            with (
                self.operator("aten::scaled_dot_product_attention", shape, shape, shape, (), (), ()),
                self.operator(name, shape, shape, shape, (), (), sequence=sequence),
            ):
                self.launch(self.kernels.attention(shape, settings.precision, backward=False))
            node = (
                "ScaledDotProductFlashAttentionBackward0"
                if self.size == 2
                else "ScaledDotProductEfficientAttentionBackward0"
            )
            self._node(node, lambda: self._attention_backward(name, shape))
        else:
            self._naive_attention(shape)
        self._copied(shape)

    def _attention_backward(self, name: str, shape: tuple[int, ...]) -> list[Parameter]:
        with self.operator(f"{name}_backward", shape, shape, shape, shape):
            self.launch(self.kernels.attention(shape, self.settings.precision, backward=True))
        return []

    def _naive_attention(self, shape: tuple[int, ...]) -> None:
        """Products, scale, mask and softmax one by one, with all scores in memory."""
        batch, heads, tokens, width = shape
        scores = batch * heads * tokens * tokens
        self._batched_product(batch * heads, tokens, tokens, width)
        for operator, name, node in (
            ("aten::div", "scale", "DivBackward0"),
            ("aten::masked_fill", "masked_fill", "MaskedFillBackward0"),
            ("aten::softmax", "softmax", "SoftmaxBackward0"),
        ):
            with self.operator(operator, (batch, heads, tokens, tokens), (), sequence=self.sequence + 1):
                self.pointwise(name, scores, 2.0 * self.size * scores)
            self._node(node, lambda name=name, operator=operator: self._scores_backward(operator, name, scores, shape))  # type: ignore[misc]
        self._batched_product(batch * heads, tokens, width, tokens)

    def _scores_backward(self, operator: str, name: str, scores: int, shape: tuple[int, ...]) -> list[Parameter]:
        batch, heads, tokens, _ = shape
        softmax = name == "softmax"
        with self.operator("aten::_softmax_backward_data" if softmax else operator, (batch, heads, tokens, tokens), ()):
            self.pointwise(
                "softmax_backward" if softmax else name, scores, (3.0 if softmax else 2.0) * self.size * scores
            )
        return []

    def _batched_product(self, batch: int, rows: int, columns: int, inner: int) -> None:
        dims = (batch, rows, inner), (batch, inner, columns)
        with self.operator("aten::matmul", *dims), self.operator("aten::bmm", *dims, sequence=self.sequence + 1):
            self.launch(self.kernels.matmul(rows, columns, inner, self.settings.precision, "tn", batch))
        self._node("BmmBackward0", lambda: self._batched_product_backward(batch, rows, columns, inner))

    def _batched_product_backward(self, batch: int, rows: int, columns: int, inner: int) -> list[Parameter]:
        precision = self.settings.precision
        with self.operator("aten::bmm", (batch, inner, rows), (batch, rows, columns)):
            self.launch(self.kernels.matmul(inner, columns, rows, precision, "nt", batch))
        with self.operator("aten::bmm", (batch, rows, columns), (batch, columns, inner)):
            self.launch(self.kernels.matmul(rows, inner, columns, precision, "nn", batch))
        return []

    def _copied(self, shape: tuple[int, ...]) -> None:
        """A copy in another layout, in both passes."""
        elements = prod(shape)
        with (
            self.operator("aten::clone", shape, (), sequence=self.sequence + 1),
            self.operator("aten::copy_", shape, shape),
        ):
            self.pointwise("copy", elements, 2.0 * self.size * elements)
        self._node("CloneBackward0", lambda: self._elementwise("aten::copy_", "copy", shape, 2))

    def elementwise(
        self, operator: str, name: str, node: str, columns: int, backward: str = "", inputs: int = 1
    ) -> None:
        """A pointwise operator on the activations; `backward` names its kernel, where its node launches one."""
        settings = self.settings
        shape = (settings.batch, settings.tokens, columns)
        elements = prod(shape)
        with self.operator(operator, *([shape] * inputs), sequence=self.sequence + 1):
            self.pointwise(name, elements, (inputs + 1.0) * self.size * elements)
        if backward:
            self._node(node, lambda: self._elementwise(f"{operator}_backward", backward, shape, 3))
        else:
            self._node(node, list)

    def _elementwise(self, operator: str, name: str, shape: tuple[int, ...], moved: int) -> list[Parameter]:
        elements = prod(shape)
        with self.operator(operator, shape, shape):
            self.pointwise(name, elements, 1.0 * moved * self.size * elements)
        return []

    def block(self, layer: int) -> None:
        settings = self.settings
        width, rows, name = settings.width, settings.rows, f"layers.{layer}"
        with self.script.place(name):
            self.script.busy(self.host.module_us)
            self.layer_norm(f"{name}.norm1")
            self.script.busy(0.5 * self.host.module_us)
            self.linear(f"{name}.qkv", rows, width, 3 * width)
            self.attention()
            self.script.busy(0.5 * self.host.module_us)
            self.linear(f"{name}.out", rows, width, width)
            self.elementwise("aten::add", "add", "AddBackward0", width, inputs=2)
            self.script.busy(0.5 * self.host.module_us)
            self.layer_norm(f"{name}.norm2")
            self.script.busy(0.5 * self.host.module_us)
            self.linear(f"{name}.up", rows, width, 4 * width)
            self.elementwise("aten::gelu", "gelu", "GeluBackward0", 4 * width, "gelu_backward")
            self.script.busy(0.5 * self.host.module_us)
            self.linear(f"{name}.down", rows, 4 * width, width)
            self.elementwise("aten::add", "add", "AddBackward0", width, inputs=2)

    def loss(self) -> None:
        width = self.settings.width
        self.elementwise("aten::square", "square", "PowBackward0", width, "mul")
        shape = (self.settings.batch, self.settings.tokens, width)
        elements = prod(shape)
        with self.operator("aten::mean", shape, (), sequence=self.sequence + 1):
            self.pointwise("mean", elements, 1.0 * self.size * elements)
        self._node("MeanBackward0", lambda: self._elementwise("aten::div", "scale", shape, 2))

    def mark(self) -> int:
        """Where the tape is now: nodes put on it later are behind this."""
        return len(self._tape)

    def backward(self, until: int, gradient: Callable[[Parameter], None]) -> None:
        """Nodes back to a mark; `gradient` is called as each parameter's AccumulateGrad runs."""
        while len(self._tape) > until:
            name, sequence, backward = self._tape.pop()
            numbered = {"Sequence number": sequence, "Fwd thread id": 1}
            with (
                self.script.event(
                    f"autograd::engine::evaluate_function: {name}", self.host.node_us, arguments=dict(numbered)
                ),
                self.script.event(name, 0.5 * self.host.node_us, arguments=dict(numbered)),
            ):
                ready = backward()
            for parameter in ready:
                with self.script.place(parameter.name):
                    gradient(parameter)
