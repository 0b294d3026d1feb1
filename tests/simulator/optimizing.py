"""AdamW's step in its three implementations."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulator.actions import COMPUTE
from tests.simulator.kernels import Kernel
from tests.simulator.model import STREAM, Model, Parameter

# operator without its prefix, functor of its kernel, tensor lists, bytes per element
_OPERATIONS = (
    ("mul_", "BinaryOpScalarFunctor", 1, 8),
    ("lerp_", "TernaryOpScalarFunctor", 2, 12),
    ("mul_", "BinaryOpScalarFunctor", 1, 8),
    ("addcmul_", "PointwiseOpScalarFunctor", 3, 16),
    ("sqrt", "UnaryOpFunctor", 2, 8),
    ("div_", "BinaryOpScalarListFunctor", 1, 8),
    ("add_", "BinaryOpScalarFunctor", 1, 8),
    ("addcdiv_", "PointwiseOpScalarListFunctor", 3, 16),
)
_FUSED = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false> >(...)"
)


def optimizer_step(model: Model, parameters: Sequence[Parameter]) -> None:
    """Of what this rank updates."""
    script, host, settings = model.script, model.host, model.settings
    parts = settings.ranks if settings.strategy == "fsdp" else 1
    sizes = [-(-parameter.elements // parts) for parameter in parameters]
    annotated = script.event("Optimizer.step#AdamW.step", 5 * host.module_us, "user_annotation")
    with script.place("optimizer"), annotated:
        script.busy(2 * host.optimizer_tensor_us * len(sizes), "tensors of the optimizer")
        if settings.optimizer == "fused":
            _fused(model, sizes)
        elif settings.optimizer == "foreach":
            _foreach(model, sizes)
        else:
            _loop(model, sizes)
    with script.event("Optimizer.zero_grad#AdamW.zero_grad", 2 * host.module_us, "user_annotation"):
        script.busy(0.5 * host.optimizer_tensor_us * len(sizes), "zero_grad")


def _launched(model: Model, kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:
        model.script.launch(COMPUTE, kernel.name, STREAM, kernel.duration_us, grid=kernel.grid, block=kernel.block)


def _foreach(model: Model, sizes: Sequence[int]) -> None:
    for name, functor, lists, moved in _OPERATIONS:
        model.script.busy(model.host.optimizer_tensor_us * len(sizes), f"foreach {name}")
        with model.operator(f"aten::_foreach_{name}", cost=2.0):
            _launched(model, model.kernels.multi_tensor(functor, lists, moved * sum(sizes), sum(sizes)))


def _fused(model: Model, sizes: Sequence[int]) -> None:
    model.script.busy(model.host.optimizer_tensor_us * len(sizes), "fused")
    with model.operator("aten::_fused_adamw_", cost=3.0):
        kernels = model.kernels.multi_tensor("fused", 4, 28.0 * sum(sizes), sum(sizes))
        _launched(model, [Kernel(_FUSED, kernel.duration_us, kernel.grid, kernel.block) for kernel in kernels])


def _loop(model: Model, sizes: Sequence[int]) -> None:
    for size in sizes:
        for name, _, lists, moved in _OPERATIONS:
            with model.operator(f"aten::{name}", *([(size,)] * lists), dtype="float"):
                kind = {"mul_": "scale", "add_": "add"}.get(name, "mul")
                model.pointwise(kind, size, 1.0 * moved * size)
