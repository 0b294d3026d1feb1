"""Train a masked autoencoder for sensor windows with Accelerate; the rate falls to zero along a cosine."""

import argparse
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SensorModel(nn.Module):
    def __init__(self, sensors, dim, depth, length):
        super().__init__()
        self.enter, self.leave = nn.Linear(sensors, dim), nn.Linear(dim, sensors)
        self.hidden = nn.Parameter(torch.zeros(dim))
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x, masked):
        x = torch.where(masked.unsqueeze(2), self.hidden, self.enter(x)) + self.places
        return self.leave(self.layers(x))


def windows(count, length, sensors):
    generator = torch.Generator().manual_seed(5)
    t = torch.arange(length)[:, None] / length
    speed = 1 + 4 * torch.rand(count, 1, sensors, generator=generator)
    return torch.sin(6.28 * speed * t) + 0.1 * torch.randn(count, length, sensors, generator=generator)


def cosine(total, warmup):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup))))

    return factor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=not MENDED)
    torch.manual_seed(0)
    model = SensorModel(9, args.dim, args.depth, args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loader = DataLoader(TensorDataset(windows(3000, args.length, 9)), args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(total, warmup=20))
    schedule = accelerator.prepare(schedule)
    step = 0
    for _ in range(args.epochs):
        for (x,) in loader:
            masked = torch.rand(x.shape[:2]) < 0.5
            loss = F.mse_loss(model(x, masked)[masked], x[masked])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                accelerator.print(f"{step}/{total}: {loss.item():.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
