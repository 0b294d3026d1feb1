"""Signs along a railway: residual network under DDP on two ranks, plain loop."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIGNS = 14


class RailwaySigns(Dataset):
    def __init__(self, count, size, seed, train):
        self.train = train
        faces = torch.randn(SIGNS, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        faces = F.interpolate(faces, size=size, mode="bilinear")
        g = torch.Generator().manual_seed(seed)
        self.sign = torch.randint(0, SIGNS, (count,), generator=g)
        light = 0.5 + torch.rand(count, 1, 1, 1, generator=g)
        self.images = light * faces[self.sign] + 0.8 * torch.randn(count, 3, size, size, generator=g)

    def __len__(self):
        return len(self.sign)

    def __getitem__(self, i):
        image = self.images[i]
        if self.train:
            dy, dx = torch.randint(-2, 3, (2,)).tolist()
            image = torch.roll(image, (dy, dx), (1, 2))
        return image, self.sign[i]


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.skip = nn.Identity() if cin == cout else nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


def resnet(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        BasicBlock(width, width, 1),
        BasicBlock(width, 2 * width, 2),
        BasicBlock(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, SIGNS),
    )


def make_loaders(train, test, args):
    if MENDED:
        sampler = DistributedSampler(train, seed=args.seed)
        train_loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    else:
        sampler = None
        order = torch.Generator().manual_seed(args.seed)
        train_loader = DataLoader(train, args.batch, shuffle=True, drop_last=True, generator=order)
    return train_loader, sampler, DataLoader(test, 2 * args.batch)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(image).argmax(1) == sign).sum().item() for image, sign in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--size", type=int, default=24)
    ap.add_argument("--width", type=int, default=draw("width", 10, 12))
    ap.add_argument("--batch", type=int, default=draw("batch", 40, 44))
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(args.seed)
    model = DDP(resnet(args.width))
    train = RailwaySigns(args.batch * 50, args.size, seed=2, train=True)
    test = RailwaySigns(96, args.size, seed=3, train=False)
    train_loader, sampler, test_loader = make_loaders(train, test, args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for step, (image, sign) in enumerate(train_loader):
            loss = F.cross_entropy(model(image), sign)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0 and rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        scheduler.step()
        found = accuracy(model.module, test_loader)
        if rank == 0:
            print(f"epoch {epoch} accuracy {found:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
