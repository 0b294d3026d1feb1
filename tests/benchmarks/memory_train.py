"""What benchmarks/memory.py trains: one of three models, on CPU ranks over gloo, in the way that its options say."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 1024
DTYPES = {"": None, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=True),
}


class Attention(nn.Module):
    """A transformer's block, with the norm first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = hidden.shape
        parts = self.queries(self.first(hidden)).view(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return hidden + self.narrow(nn.functional.gelu(self.wide(self.second(hidden))))


class Residual(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.then = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(hidden + self.then(self.second(nn.functional.relu(self.norm(self.first(hidden))))))


class Wide(nn.Module):
    """A linear layer and its nonlinearity: little is kept for the backward pass beside many parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + nn.functional.gelu(self.linear(hidden))


class Model(nn.Module):
    """A stem, equal blocks and a head."""

    def __init__(self, name: str, checkpoints: bool) -> None:
        super().__init__()
        if name == "transformer":
            self.stem, self.blocks = nn.Embedding(4000, 256), nn.ModuleList(Attention(256) for _ in range(6))
            self.head = nn.Linear(256, 4000)
        elif name == "conv":
            self.stem = nn.Conv2d(3, 48, 3, padding=1)
            self.blocks = nn.ModuleList(Residual(48) for _ in range(5))
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
        else:
            self.stem, self.blocks = nn.Linear(64, 768), nn.ModuleList(Wide(768) for _ in range(8))
            self.head = nn.Linear(768, 10)
        self.checkpoints = checkpoints

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpoints else block(hidden)
        return self.head(hidden)


def samples(name: str, count: int) -> TensorDataset:
    """Random inputs and targets, in fp32 whatever the model computes in."""
    if name == "transformer":
        return TensorDataset(torch.randint(4000, (count, 64)), torch.randint(4000, (count, 64)))
    shape = (3, 32, 32) if name == "conv" else (64,)
    return TensorDataset(torch.randn(count, *shape), torch.randint(10, (count,)))


def trained(options: argparse.Namespace) -> None:
    """The training, start to end."""
    torch.manual_seed(0)
    dtype = DTYPES[options.dtype]
    model: nn.Module = Model(options.model, options.checkpoint).to(dtype)
    dtypes = {"param_dtype": DTYPES[options.param_dtype], "reduce_dtype": DTYPES[options.reduce_dtype]}
    sharding = {"mp_policy": MixedPrecisionPolicy(**dtypes)}
    if options.strategy == "fsdp":
        for at in range(0, len(model.blocks), options.blocks_per_unit):  # type: ignore[arg-type]
            blocks = list(model.blocks[at : at + options.blocks_per_unit])  # type: ignore[index]
            fully_shard(blocks if len(blocks) > 1 else blocks[0], reshard_after_forward=options.reshard, **sharding)
        fully_shard(model, **sharding)
    else:
        model = DistributedDataParallel(model)
    optimizer = OPTIMIZERS[options.optimizer](model.parameters())
    loader = DataLoader(samples(options.model, SAMPLES), batch_size=options.batch)
    for inputs, targets in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), options.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=options.autocast):
            outputs = model(inputs.to(dtype) if inputs.is_floating_point() else inputs)
        nn.functional.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten()).backward()
        optimizer.step()


def _tracked(name: str, optimizer: str) -> Callable[[int], tuple[nn.Module, Any, Any]]:
    """What `dptune whatif --model` calls: the model, its optimizer and the loss of a batch of so many samples.

    As in the training, the outputs of a batch live until those of the next.
    """

    def build(batch: int) -> tuple[nn.Module, Any, Any]:
        kept: list[torch.Tensor] = []

        def loss(model: nn.Module) -> torch.Tensor:
            inputs, targets = samples(name, batch).tensors
            kept[:] = [model(inputs)]
            return nn.functional.cross_entropy(kept[0].flatten(0, -2).float(), targets.flatten())

        return Model(name, False), OPTIMIZERS[optimizer], loss

    return build


transformer, convolutions, wide_layers = (
    _tracked("transformer", "adamw"),
    _tracked("conv", "momentum"),
    _tracked("mlp", "adamw"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("transformer", "conv", "mlp"), default="transformer")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--reshard", type=json.loads, default=True)
    parser.add_argument("--blocks-per-unit", type=int, default=1)
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--param-dtype", choices=tuple(DTYPES), default="")
    parser.add_argument("--reduce-dtype", choices=tuple(DTYPES), default="")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trained(options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
