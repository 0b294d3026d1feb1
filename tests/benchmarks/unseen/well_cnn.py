"""Train a residual CNN on images, DistributedDataParallel, with evaluation and checkpoints."""

import argparse
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __init__(self, count, size, seed, augment):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 10, (count,), generator=generator)
        self.images = torch.rand(count, 3, size, size, generator=generator) + self.labels.view(-1, 1, 1, 1) / 10
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(4, outside), nn.GroupNorm(4, outside)
        self.skip = nn.Conv2d(inside, outside, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        return F.relu(y + self.skip(x))


def network(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        Residual(width, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for images, labels in loader:
        counts += torch.tensor([(model(images).argmax(1) == labels).sum().item(), len(labels)])
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 24))
    parser.add_argument("--width", type=int, default=draw("width", 12, 16))
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    out = args.out or Path(mkdtemp())
    train, test = Images(6000, 32, 0, True), Images(400, 32, 1, False)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    held_out = DataLoader(test, 50, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(network(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        schedule.step()
        accuracy = evaluate(model.module, held_out)
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f} accuracy {accuracy:.3f}", flush=True)
            torch.save(model.module.state_dict(), out / "last.pt")


if __name__ == "__main__":
    main()
