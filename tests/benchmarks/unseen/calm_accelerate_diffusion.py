"""Diffusion of small digits with Accelerate, with averaged weights for sampling."""

import argparse
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from drawn import draw
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, inside, out, dim):
        super().__init__()
        self.first, self.second = nn.Conv2d(inside, out, 3, 1, 1), nn.Conv2d(out, out, 3, 1, 1)
        self.of_time = nn.Linear(dim, out)
        self.norm, self.other = nn.GroupNorm(4, inside), nn.GroupNorm(4, out)
        self.skip = nn.Conv2d(inside, out, 1) if inside != out else nn.Identity()

    def forward(self, x, time):
        y = self.first(F.silu(self.norm(x))) + self.of_time(time)[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.other(y)))


class UNet(nn.Module):
    def __init__(self, width, dim=64):
        super().__init__()
        self.register_buffer("speeds", torch.exp(-math.log(10_000) * torch.arange(dim // 2) / (dim // 2)))
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU())
        self.enter = nn.Conv2d(1, width, 3, 1, 1)
        self.down = Residual(width, width, dim)
        self.shrink = nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.middle = Residual(2 * width, 2 * width, dim)
        self.grow = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.up = Residual(2 * width, width, dim)
        self.leave = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, x, t):
        angles = t[:, None] * self.speeds
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        high = self.down(self.enter(x), time)
        low = self.middle(self.shrink(high), time)
        return self.leave(self.up(torch.cat([high, self.grow(low)], 1), time))


def digits(count, size=20):
    generator = torch.Generator().manual_seed(9)
    pictures = -torch.ones(count, 1, size, size)
    places = torch.randint(2, size - 8, (count, 2), generator=generator)
    for picture, (y, x) in zip(pictures, places.tolist(), strict=True):
        picture[0, y : y + 6, x] = 1
        picture[0, y, x : x + 6] = 1
    return TensorDataset(pictures)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = UNet(args.width)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    loader = DataLoader(digits(3000), args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    torch.manual_seed(accelerator.process_index)
    alphas = torch.cos(torch.linspace(0, math.pi / 2 - 0.01, 1000)) ** 2
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for (x,) in loader:
            t = torch.randint(0, 1000, (len(x),))
            noise, alpha = torch.randn_like(x), alphas[t].view(-1, 1, 1, 1)
            loss = F.mse_loss(model(alpha.sqrt() * x + (1 - alpha).sqrt() * noise, t), noise)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            average.update_parameters(accelerator.unwrap_model(model))
            total += loss.detach()
        accelerator.print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    if accelerator.is_main_process:
        torch.save(average.module.state_dict(), "digits.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
