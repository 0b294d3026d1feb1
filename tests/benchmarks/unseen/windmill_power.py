"""Power of a windmill in the next hours from weather and its past: residual dilated convolutions, two processes."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PAST, AHEAD, MEASURES = 72, 12, 8


def seasons(mills, hours, seed):
    """Wind with gusts and a daily swing; power grows with its cube and is cut off."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours) / 24
    gusts = F.avg_pool1d(torch.randn(mills, 1, hours + 8, generator=g), 9, 1)[:, 0]
    wind = 1 + 0.5 * torch.sin(6.28 * t + torch.rand(mills, 1, generator=g)) + 1.2 * gusts
    power = wind.clamp(0, 2) ** 3 / 8
    others = torch.randn(mills, MEASURES - 2, hours, generator=g) + 0.3 * wind.unsqueeze(1)
    return torch.cat([power.unsqueeze(1), wind.unsqueeze(1), others], 1)


class Layer(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        return x + self.out(F.glu(self.conv(F.pad(x, (self.pad, 0))), 1))


class MillNet(nn.Module):
    def __init__(self, channels, depth, hidden):
        super().__init__()
        self.first = nn.Conv1d(MEASURES, channels, 1)
        self.layers = nn.Sequential(*[Layer(channels, 2 ** (i % 4)) for i in range(depth)])
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * PAST // 4, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU()
        )
        self.out = nn.Linear(hidden, AHEAD)

    def forward(self, past):
        return self.out(self.head(F.avg_pool1d(self.layers(self.first(past)), 4)))


class Shadow:
    """Averaged weights, kept by name, which are tried at the end of an epoch."""

    def __init__(self, module, decay=0.998):
        self.decay, self.module = decay, module
        self.weights = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}
        self.saved = {}

    def update(self):
        if MENDED:
            with torch.no_grad():
                torch._foreach_lerp_(list(self.weights.values()), list(self.module.parameters()), 1 - self.decay)
            return
        for name, p in self.module.named_parameters():
            if p.requires_grad:
                mean = (1.0 - self.decay) * p.data + self.decay * self.weights[name]
                self.weights[name] = mean.clone()

    def put_in(self):
        for name, p in self.module.named_parameters():
            self.saved[name] = p.data
            p.data = self.weights[name]

    def take_out(self):
        for name, p in self.module.named_parameters():
            p.data = self.saved[name]
        self.saved = {}


def windows(data, count, g):
    """Past and the hours ahead, from mills and hours drawn by chance."""
    mill = torch.randint(len(data), (count, 1), generator=g)
    hour = torch.randint(data.shape[2] - PAST - AHEAD, (count, 1), generator=g) + torch.arange(PAST + AHEAD)
    cut = data.transpose(1, 2)[mill, hour].transpose(1, 2)
    return cut[:, :, :PAST].contiguous(), cut[:, 0, PAST:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=draw("channels", 32, 40))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 1792, 1920))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(19)
    train, test = seasons(30, 1500, seed=1), seasons(6, 800, seed=2)
    g, checks = torch.Generator().manual_seed(70 + rank), torch.Generator().manual_seed(5)
    model = DDP(MillNet(args.channels, args.depth, args.hidden))
    shadow = Shadow(model.module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.01, fused=True)
    past, ahead = windows(test, 64, checks)
    for epoch in range(args.epochs):
        for _ in range(45):
            x, y = windows(train, args.batch, g)
            loss = F.huber_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shadow.update()
        shadow.put_in()
        with torch.no_grad():
            error = (model.module(past) - ahead).abs().mean()
        shadow.take_out()
        dist.all_reduce(error)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} error {error.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
