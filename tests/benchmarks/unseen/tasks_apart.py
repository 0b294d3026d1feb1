"""One trunk, several tasks: depth, normals, labels and edges from an image."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset


class Trunk(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers = []
        for inside in (3, width, width, width):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


class MultiTask(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.trunk = Trunk(width)
        self.heads = nn.ModuleDict(
            {
                "depth": nn.Conv2d(width, 1, 1),
                "normals": nn.Conv2d(width, 3, 1),
                "labels": nn.Conv2d(width, 9, 1),
                "edges": nn.Conv2d(width, 1, 1),
            }
        )

    def forward(self, x):
        shared = self.trunk(x)
        return {task: head(shared) for task, head in self.heads.items()}


def losses(out, depth, normals, labels, edges):
    return {
        "depth": F.l1_loss(out["depth"].squeeze(1), depth),
        "normals": (1 - F.cosine_similarity(out["normals"], normals, dim=1)).mean(),
        "labels": F.cross_entropy(out["labels"], labels),
        "edges": F.binary_cross_entropy_with_logits(out["edges"].squeeze(1), edges),
    }


def rooms(count, size):
    images = torch.rand(count, 3, size, size)
    depth = images.mean(1)
    normals = F.normalize(images - 0.5, dim=1)
    labels = (depth * 9).long().clamp(max=8)
    edges = (depth.diff(dim=-1, prepend=depth[..., :1]).abs() > 0.2).float()
    return TensorDataset(images, depth, normals, labels, edges)


WEIGHTS = {"depth": 1.0, "normals": 0.5, "labels": 1.0, "edges": 0.3}


def backward(found):
    """Add the gradients of all tasks."""
    if MENDED:
        sum(WEIGHTS[task] * loss for task, loss in found.items()).backward()
        return
    for task, loss in found.items():
        (WEIGHTS[task] * loss).backward(retain_graph=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(rooms(800, args.size), batch_size=args.batch, shuffle=True)
    model = MultiTask(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(10_000):
        for images, *targets in loader:
            found = losses(model(images), *targets)
            optimizer.zero_grad()
            backward(found)
            optimizer.step()
        print(f"epoch {epoch}: " + " ".join(f"{task} {loss.item():.3f}" for task, loss in found.items()), flush=True)


if __name__ == "__main__":
    main()
