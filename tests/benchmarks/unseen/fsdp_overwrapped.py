"""FSDP2 for a deep network of narrow layers."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.enter = nn.Linear(dim, 2 * dim)
        self.leave = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.leave(F.silu(self.enter(self.norm(x))))


class Stage(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Network(nn.Module):
    def __init__(self, features, dim, stages, layers):
        super().__init__()
        self.enter = nn.Linear(features, dim)
        self.stages = nn.ModuleList(Stage(dim, layers) for _ in range(stages))
        self.leave = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.enter(x)
        for stage in self.stages:
            x = stage(x)
        return self.leave(x).squeeze(-1)


def shard(model, mesh):
    """Shard the parameters over all processes."""
    wrapped = Stage if MENDED else nn.Linear
    for module in model.modules():
        if isinstance(module, wrapped):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def rows(count, features, generator):
    while True:
        x = torch.randn(count, features, generator=generator)
        yield x, x[:, :8].sum(1).sin()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 160, 192))
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--layers", type=int, default=draw("layers", 3, 4))
    parser.add_argument("--batch", type=int, default=draw("batch", 384, 448))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = shard(Network(48, args.dim, args.stages, args.layers), mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step, (x, y) in enumerate(rows(args.batch, 48, generator)):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
