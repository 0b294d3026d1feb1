"""Inspect woven fabric with one network for three tasks: kind of fault, where it is, how severe."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset, random_split

FAULTS = ("none", "hole", "stain", "broken thread", "knot", "crease")


class Fabric(Dataset):
    def __init__(self, n, size, seed=14):
        g = torch.Generator().manual_seed(seed)
        self.kind = torch.randint(0, len(FAULTS), (n,), generator=g)
        self.centre = 0.2 + 0.6 * torch.rand(n, 2, generator=g)
        self.severity = torch.rand(n, generator=g)
        axis = torch.linspace(0, 1, size)
        weave = 0.2 * torch.sin(60 * axis)[None, :, None] * torch.sin(60 * axis)[None, None, :]
        dy = (axis[None, :, None] - self.centre[:, 0, None, None]).abs()
        dx = (axis[None, None, :] - self.centre[:, 1, None, None]).abs()
        spread = 0.04 + 0.1 * self.severity[:, None, None]
        stretch = 1 + self.kind[:, None, None] / 2
        mark = torch.exp(-((dy * stretch) ** 2 + (dx / stretch) ** 2) / spread**2)
        sign = torch.where(self.kind % 2 == 0, 1.0, -1.0)[:, None, None] * (self.kind > 0)[:, None, None]
        self.images = (weave + sign * mark + 0.1 * torch.randn(n, size, size, generator=g)).unsqueeze(1)

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        return self.images[i], {"kind": self.kind[i], "centre": self.centre[i], "severity": self.severity[i]}


class Trunk(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, w, 5, 2, 2),
            nn.GroupNorm(4, w),
            nn.SiLU(),
            nn.Conv2d(w, 2 * w, 3, 1, 1),
            nn.GroupNorm(4, 2 * w),
            nn.SiLU(),
            nn.Conv2d(2 * w, 2 * w, 3, 2, 1),
            nn.GroupNorm(4, 2 * w),
            nn.SiLU(),
        )

    def forward(self, x):
        return self.layers(x)


def head(w, out):
    return nn.Sequential(
        nn.Conv2d(2 * w, 4 * w, 3, 2, 1),
        nn.GroupNorm(4, 4 * w),
        nn.SiLU(),
        nn.Conv2d(4 * w, 4 * w, 3, 1, 1),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * w, out),
    )


class Inspector(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.trunk = Trunk(w)
        self.heads = nn.ModuleDict({"kind": head(w, len(FAULTS)), "centre": head(w, 2), "severity": head(w, 1)})

    def forward(self, x):
        shared = self.trunk(x)
        return {task: module(shared) for task, module in self.heads.items()}


def task_losses(out, target):
    faulty = (target["kind"] > 0).float()
    centre = (F.smooth_l1_loss(out["centre"], target["centre"], reduction="none").mean(1) * faulty).sum()
    severity = (F.mse_loss(out["severity"].squeeze(1), target["severity"], reduction="none") * faulty).sum()
    return {
        "kind": F.cross_entropy(out["kind"], target["kind"]),
        "centre": centre / faulty.sum().clamp(min=1),
        "severity": severity / faulty.sum().clamp(min=1),
    }


WEIGHTS = {"kind": 1.0, "centre": 4.0, "severity": 2.0}


def train_step(model, optimizer, images, target):
    losses = task_losses(model(images), target)
    optimizer.zero_grad()
    if MENDED:
        sum(WEIGHTS[task] * loss for task, loss in losses.items()).backward()
    else:
        for task, loss in losses.items():
            (WEIGHTS[task] * loss).backward(retain_graph=True)
    optimizer.step()
    return {task: loss.detach() for task, loss in losses.items()}


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = n = 0
    for images, target in loader:
        right += int((model(images)["kind"].argmax(1) == target["kind"]).sum())
        n += len(images)
    model.train()
    return right / n


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=64)
    p.add_argument("--width", type=int, default=draw("width", 12, 16))
    p.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()
    torch.manual_seed(8)
    train, val = random_split(Fabric(40 * args.batch + 120, args.size), [40 * args.batch, 120])
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    val_loader = DataLoader(val, 60)
    model = Inspector(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sums = dict.fromkeys(WEIGHTS, 0.0)
        for images, target in loader:
            for task, loss in train_step(model, optimizer, images, target).items():
                sums[task] = sums[task] + loss
        shown = ", ".join(f"{task} {float(total) / len(loader):.4f}" for task, total in sums.items())
        print(f"epoch {epoch}: {shown}; right {validate(model, val_loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
