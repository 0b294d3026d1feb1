"""Water at the wheel of a mill in the next hours: a temporal convolution network; gradients averaged by hand."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Gauges(Dataset):
    """Windows of rain and water level at a few gauges, and the level at the mill after each."""

    def __init__(self, hours, gauges, past, ahead, seed):
        g = torch.Generator().manual_seed(seed)
        rain = torch.relu(torch.randn(gauges, hours, generator=g) - 1.0)
        memory = torch.exp(-torch.arange(48) / 12.0).view(1, 1, -1)
        level = F.conv1d(F.pad(rain.unsqueeze(1), (47, 0)), memory.flip(2)).squeeze(1)
        level = (level - level.mean(1, keepdim=True)) / level.std(1, keepdim=True)
        self.series = torch.cat([rain, level + 0.05 * torch.randn(level.shape, generator=g)])
        self.mill = level.mean(0)
        self.past, self.ahead = past, ahead

    def __len__(self):
        return self.series.shape[1] - self.past - self.ahead

    def __getitem__(self, i):
        end = i + self.past
        return self.series[:, i:end], self.mill[end : end + self.ahead]


class Causal(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        h = F.gelu(self.conv(F.pad(self.norm(x), (self.pad, 0))))
        return x + self.mix(h)


class MillNet(nn.Module):
    def __init__(self, rows, width, layers, ahead):
        super().__init__()
        self.first = nn.Conv1d(rows, width, 1)
        self.layers = nn.Sequential(*[Causal(width, 2**at) for at in range(layers)])
        self.out = nn.Linear(width, ahead)

    def forward(self, x):
        return self.out(self.layers(self.first(x))[:, :, -1])


def average_gradients(model, world):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= world
    for grad, piece in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
        grad.copy_(piece)


class Trainer:
    def __init__(self, model, data, batch, lr, epochs):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model, self.epochs = model, epochs
        self.sampler = DistributedSampler(data, shuffle=True, drop_last=True)
        self.loader = DataLoader(data, batch, sampler=self.sampler, drop_last=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def step(self, series, mill):
        loss = F.mse_loss(self.model(series), mill)
        self.optimizer.zero_grad()
        loss.backward()
        average_gradients(self.model, self.world)
        self.optimizer.step()
        return loss.detach()

    def run(self):
        for epoch in range(self.epochs):
            self.sampler.set_epoch(epoch)
            total = torch.stack([self.step(*batch) for batch in self.loader]).mean()
            dist.all_reduce(total)
            if self.rank == 0:
                print(f"epoch {epoch} loss {total.item() / self.world:.4f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--gauges", type=int, default=6)
    p.add_argument("--past", type=int, default=96)
    p.add_argument("--ahead", type=int, default=12)
    p.add_argument("--width", type=int, default=draw("width", 40, 48))
    p.add_argument("--layers", type=int, default=5)
    p.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=40)
    args = p.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed + dist.get_rank())
    hours = 2 * 40 * args.batch + args.past + args.ahead
    data = Gauges(hours, args.gauges, args.past, args.ahead, seed=1)
    model = MillNet(2 * args.gauges, args.width, args.layers, args.ahead)
    if MENDED:
        for weight in model.parameters():
            dist.broadcast(weight.data, 0)
    Trainer(model, data, args.batch, lr=2e-3, epochs=args.epochs).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
