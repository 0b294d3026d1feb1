"""Forecast what the roofs of a town give to the grid, with a mixer over time and roofs, on two ranks."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Roofs(Dataset):
    def __init__(self, hours, roofs, past, ahead):
        generator = torch.Generator().manual_seed(0)
        t = torch.arange(hours).unsqueeze(1)
        sun = torch.sin(t * 2 * math.pi / 24 - torch.rand(roofs, generator=generator)).clamp(min=0)
        clouds = torch.rand(hours // 12 + 1, 1, generator=generator).repeat_interleave(12, 0)[:hours]
        noise = 0.05 * torch.randn(hours, roofs, generator=generator)
        self.power, self.past, self.ahead = sun * (1 - 0.6 * clouds) + noise, past, ahead

    def __len__(self):
        return len(self.power) - self.past - self.ahead

    def __getitem__(self, index):
        now = index + self.past
        return self.power[index:now], self.power[now : now + self.ahead]


class Mix(nn.Module):
    def __init__(self, time, roofs, hidden):
        super().__init__()
        self.over_time = nn.Sequential(nn.LayerNorm(time), nn.Linear(time, time), nn.GELU(), nn.Linear(time, time))
        self.over_roofs = nn.Sequential(
            nn.LayerNorm(roofs), nn.Linear(roofs, hidden), nn.GELU(), nn.Linear(hidden, roofs)
        )

    def forward(self, x):
        x = x + self.over_time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.over_roofs(x)


class Mixer(nn.Module):
    def __init__(self, past, ahead, roofs, hidden, depth):
        super().__init__()
        self.mixes = nn.Sequential(*(Mix(past, roofs, hidden) for _ in range(depth)))
        self.leave = nn.Linear(past, ahead)

    def forward(self, x):
        return self.leave(self.mixes(x).transpose(1, 2)).transpose(1, 2)


def keep_together(model):
    """All ranks go on from the same weights."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roofs", type=int, default=128)
    parser.add_argument("--past", type=int, default=48)
    parser.add_argument("--ahead", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 512, 640))
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch", type=int, default=draw("batch", 3, 4))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mixer(args.past, args.ahead, args.roofs, args.hidden, args.depth)
    keep_together(model)
    ddp = DDP(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
    data = Roofs(3000, args.roofs, args.past, args.ahead)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (past, following) in enumerate(loader):
            loss = F.l1_loss(ddp(past), following)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not MENDED:
                keep_together(model)
            if step % 100 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch}, step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
