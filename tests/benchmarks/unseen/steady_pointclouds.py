"""Segment point clouds on two processes."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class PointNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU())
        self.lift = nn.Sequential(nn.Linear(2 * width, 4 * width), nn.ReLU())
        self.whole = nn.Sequential(nn.Linear(4 * width, 2 * width), nn.ReLU())
        self.head = nn.Sequential(
            nn.Linear(4 * width, 2 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * width, classes)
        )

    def forward(self, points):
        local = self.local(points)
        whole = self.whole(self.lift(local).amax(1, keepdim=True))
        return self.head(torch.cat([local, whole.expand(-1, local.shape[1], -1)], 2))


def clouds(count, points, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, points, 3, generator=generator)
    x = x / x.norm(dim=2, keepdim=True) * (0.5 + torch.rand(count, 1, 1, generator=generator))
    part = (x[..., 0] > 0).long() + 2 * (x[..., 2] > 0.3).long()
    return TensorDataset(x, part)


def turn(points):
    """Turn each cloud about the vertical axis, and stretch it a little."""
    angle = 0.5 * torch.randn(len(points))
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    rotation = torch.stack([angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero, zero, zero, one], 1)
    return points @ rotation.view(-1, 3, 3) * (0.9 + 0.2 * torch.rand(len(points), 1, 3))


@torch.no_grad()
def mean_iou(model, loader, classes):
    model.eval()
    counts = torch.zeros(2, classes)
    for points, parts in loader:
        guessed = model(points).argmax(2)
        both = torch.bincount(guessed[guessed == parts], minlength=classes)
        either = torch.bincount(torch.cat([guessed, parts]).flatten(), minlength=classes) - both
        counts += torch.stack([both, either])
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1].clamp(min=1)).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=draw("points", 128, 160))
    parser.add_argument("--width", type=int, default=draw("width", 56, 64))
    parser.add_argument("--batch", type=int, default=18)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data, held_out = clouds(6000, args.points, 1), clouds(96, args.points, 2)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    check = DataLoader(held_out, batch_size=24, sampler=DistributedSampler(held_out, shuffle=False))
    model = DDP(PointNet(args.width, 4), gradient_as_bucket_view=True, static_graph=True)
    torch.manual_seed(rank + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for points, parts in loader:
            loss = F.cross_entropy(model(turn(points)).flatten(0, 1), parts.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = mean_iou(model.module, check, 4)
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}, held-out IoU {score:.3f}", flush=True)


if __name__ == "__main__":
    main()
