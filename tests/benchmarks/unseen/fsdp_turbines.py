"""Predict what wind turbines give, with a network free of normalisation and adaptive clipping, sharded with FSDP2."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    """Residual without normalisation: a learned gain keeps the branch small at first."""

    def __init__(self, dim):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gain = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x):
        return x + self.gain * self.third(F.silu(self.second(F.silu(self.first(x)))))


class Turbine(nn.Module):
    def __init__(self, features, dim, depth):
        super().__init__()
        self.enter = nn.Linear(features, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.leave = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


@torch.no_grad()
def clip_adaptively(parameters, factor, eps=1e-3):
    """No gradient longer than a share of its own weights (Brock et al. 2021), for each tensor as a whole."""
    if MENDED:
        weights = [parameter.to_local() for parameter in parameters]
        gradients = [parameter.grad.to_local() for parameter in parameters]
        squares = torch.stack(torch._foreach_norm(weights + gradients)).square()
        dist.all_reduce(squares)
        of_weights, of_gradients = squares.sqrt().chunk(2)
        scales = (factor * of_weights.clamp(min=eps) / of_gradients.clamp(min=1e-6)).clamp(max=1)
        torch._foreach_mul_(gradients, list(scales.unbind()))
        return
    for parameter in parameters:
        longest = factor * parameter.norm().full_tensor().clamp(min=eps)
        length = parameter.grad.norm().full_tensor()
        if length > longest:
            parameter.grad.mul_((longest / length.clamp(min=1e-6)).item())


def wind(batch, features, seed):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, 3, generator=torch.Generator().manual_seed(0)) / features**0.5
    while True:
        x = torch.randn(batch, features, generator=generator)
        speed, turn, cold = (x @ mixing).unbind(1)
        yield x, torch.tanh(speed) ** 3 * (1 - 0.2 * turn.square()) + 0.05 * cold


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=48)
    parser.add_argument("--dim", type=int, default=draw("dim", 288, 304))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 320, 352))
    parser.add_argument("--clip", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Turbine(args.features, args.dim, args.depth)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    data = wind(args.batch, args.features, dist.get_rank())
    for step in range(1, args.steps + 1):
        x, power = next(data)
        loss = F.smooth_l1_loss(model(x).squeeze(-1), power)
        optimizer.zero_grad()
        loss.backward()
        clip_adaptively(parameters, args.clip)
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
