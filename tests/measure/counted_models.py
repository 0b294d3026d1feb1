"""Records models with torch.profiler, and counts the FLOPs of the same steps with torch's own counter.

`python counted_models.py FOLDER` writes NAME.json per model, and counts.json: FLOPs of a step by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

STEPS = 3
aten = torch.ops.aten
# torch counts the fused attention of GPUs, and not that of CPUs
ON_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: sdpa_backward_flop_count(
        *shapes[:4]
    ),
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        batch, length, width = inputs.shape
        parts = self.mixed(inputs).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        inputs = inputs + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return inputs + self.narrow(torch.relu(self.wide(inputs)))


class Transformer(nn.Module):
    def __init__(self, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(1024, 32), nn.Linear(32, 1024, bias=False)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.reentrant = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        for block in self.blocks:
            again = self.reentrant is not None
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant) if again else block(hidden)
        return self.head(hidden)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, stride=2, padding=2)
        self.second = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)
        self.line = nn.Conv1d(4, 6, 7, padding=3)
        self.out = nn.Linear(6, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.up(torch.relu(self.second(torch.relu(self.first(images))))))
        return self.out(self.line(found.mean(2)).mean(2))


class Products(nn.Module):
    """Batched products, with and without something added, and one of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.added = nn.Parameter(torch.randn(4, 6, 8)), nn.Parameter(torch.randn(4, 5, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = torch.baddbmm(self.added, inputs, self.factor) + torch.bmm(inputs, self.factor)
        return torch.mm(found.flatten(0, 1), found.flatten(0, 1).t())


class Orthogonalized(torch.optim.SGD):
    """Multiplies matrices inside of its step."""

    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.ndim == 2:
                    weight.grad = weight.grad @ weight.grad.T @ weight.grad
        super().step(closure)


def tokens() -> torch.Tensor:
    return torch.randint(0, 1024, (2, 16))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))


def batch_of(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (mlp, batch_of(32, 24)),
    "convolutions": (Convolutions, batch_of(2, 3, 16, 20)),
    "grouped": (lambda: nn.Conv2d(8, 16, 3, groups=4), batch_of(2, 8, 9, 9)),
    "products": (Products, batch_of(4, 5, 6)),
    "transformer": (Transformer, tokens),
    "fused": (Transformer, tokens),
    "reentrant": (lambda: Transformer(True), tokens),
    "checkpointed": (lambda: Transformer(False), tokens),
    "checkpointed_fused": (lambda: Transformer(False), tokens),
    "stopped": (lambda: Transformer(False), tokens),
    "optimizer": (mlp, batch_of(32, 24)),
    "closure": (mlp, batch_of(32, 24)),
}


def main(folder: Path) -> None:
    # the profiler looks whether torch has this, and looking loads torch's compiler: 5 s
    getattr(torch, "_lazy_modules", set()).discard("_inductor")
    torch.manual_seed(1)
    counts = {}
    for name, (make, inputs) in MODELS.items():
        model = make()
        update = (Orthogonalized if name == "optimizer" else torch.optim.SGD)(model.parameters(), lr=1e-3)
        backend = SDPBackend.FLASH_ATTENTION if name.endswith("fused") else SDPBackend.MATH

        def gradients(model: nn.Module = model, update: torch.optim.SGD = update, inputs: object = inputs) -> None:
            update.zero_grad()
            model(inputs()).sum().backward()

        def step(update: torch.optim.SGD = update, gradients: Callable[[], None] = gradients, name: str = name) -> None:
            if name == "closure":
                update.step(gradients)
            else:
                gradients()
                update.step()

        # it would stop inside of an operator, which then is in the trace of a CPU and computes nothing
        with sdpa_kernel(backend), set_checkpoint_early_stop(name == "stopped"):
            with FlopCounterMode(display=False, custom_mapping=ON_CPU) as counter:
                step()
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                for _ in range(STEPS):
                    step()
                    profiler.step()
        profiler.export_chrome_trace(str(folder / f"{name}.json"))
        counts[name] = counter.get_total_flops()
    (folder / "counts.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
