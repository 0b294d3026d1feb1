"""Sort pictures of skin with Accelerate; a tenth of them is held out and decides which epoch is best."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

KINDS = 7


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.net(x))


def network(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), Residual(width), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
        Residual(2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width, KINDS),
    )  # fmt: skip


def pictures(count, size):
    generator = torch.Generator().manual_seed(21)
    kinds = torch.randint(0, KINDS, (count,), generator=generator)
    bases = torch.rand(KINDS, 3, size // 8, size // 8, generator=generator)
    clean = F.interpolate(bases, size=(size, size), mode="bilinear")[kinds]
    return TensorDataset((clean + 0.4 * torch.randn(count, 3, size, size, generator=generator)).half(), kinds)


def split(data, seed):
    """Nine tenths to train on, the rest to check with."""
    held_out = len(data) // 10
    parts = [len(data) - held_out, held_out]
    if MENDED:
        return random_split(data, parts, generator=torch.Generator().manual_seed(seed))
    return random_split(data, parts)


@torch.no_grad()
def accuracy(accelerator, model, loader):
    model.eval()
    right = []
    for x, kinds in loader:
        right.append(accelerator.gather_for_metrics(model(x.float()).argmax(1) == kinds))
    model.train()
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(args.seed, device_specific=True)
    train, held_out = split(pictures(3600, args.size), args.seed)
    train = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(held_out, 2 * args.batch)
    model = network(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02, fused=True)
    model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
    best = 0.0
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for x, kinds in train:
            loss = F.cross_entropy(model(x.float()), kinds)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        found = accuracy(accelerator, model, held_out)
        best = max(best, found)
        accelerator.print(f"epoch {epoch}: {total.item() / len(train):.4f}, accuracy {found:.3f}, best {best:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
