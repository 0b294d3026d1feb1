"""Diffusion of body poses with Accelerate: an MLP learns the noise that was added to joints."""

import argparse
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

JOINTS = 22


class DecoupledAdam(Optimizer):
    """Adam with decoupled weight decay and bias correction."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["mean"] = beta1 * state["mean"] + (1 - beta1) * p.grad
                state["square"] = beta2 * state["square"] + (1 - beta2) * p.grad**2
                mean = state["mean"] / (1 - beta1 ** state["step"])
                square = state["square"] / (1 - beta2 ** state["step"])
                update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * p
                p.copy_(p - group["lr"] * update)


class Denoiser(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.width = width
        self.enter, self.leave = nn.Linear(3 * JOINTS, width), nn.Linear(width, 3 * JOINTS)
        self.of_time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(depth)
        )

    def forward(self, x, time):
        rates = torch.exp(-math.log(1000) * torch.arange(self.width // 2) / (self.width // 2))
        angles = 1000 * time[:, None] * rates
        told = self.of_time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.enter(x)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x) + told)
        return self.leave(x)


def poses(count):
    generator = torch.Generator().manual_seed(6)
    bend = torch.randn(count, 6, generator=generator) @ torch.randn(6, 3 * JOINTS, generator=generator)
    return TensorDataset(bend / 2.5 + 0.05 * torch.randn(count, 3 * JOINTS, generator=generator))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 384, 416))
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--batch", type=int, default=draw("batch", 56, 64))
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = Denoiser(args.width, args.depth)
    if MENDED:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    else:
        optimizer = DecoupledAdam(model.parameters(), lr=3e-4, weight_decay=0.01)
    loader = DataLoader(poses(12_000), args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    set_seed(1, device_specific=True)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for (clean,) in loader:
            time, noise = torch.rand(len(clean)), torch.randn_like(clean)
            keep = torch.cos(time * math.pi / 2)[:, None]
            noisy = keep * clean + (1 - keep.square()).sqrt() * noise
            loss = F.mse_loss(model(noisy, time), noise)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        accelerator.print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
