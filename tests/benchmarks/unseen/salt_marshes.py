"""Plants of a salt marsh from the air: a small pyramid network that names each pixel, DistributedDataParallel."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PLANTS = ["mud", "water", "cordgrass", "sea lavender", "glasswort", "purslane"]


class Tiles(Dataset):
    """Tiles cut at random places of one large picture of the marsh."""

    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        side = 16 * size
        coarse = torch.randint(len(PLANTS), (1, 1, side // 16, side // 16), generator=g).float()
        self.map = F.interpolate(coarse, size=side, mode="nearest")[0, 0].long()
        colour = torch.randn(len(PLANTS), 4, generator=torch.Generator().manual_seed(5))
        self.photo = colour[self.map].permute(2, 0, 1) + 0.7 * torch.randn(4, side, side, generator=g)
        self.corner = torch.randint(side - size, (count, 2), generator=g).tolist()
        self.size = size

    def __len__(self):
        return len(self.corner)

    def __getitem__(self, i):
        y, x = self.corner[i]
        return (
            self.photo[:, y : y + self.size, x : x + self.size],
            self.map[y : y + self.size, x : x + self.size],
        )


def down(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, 2, 1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, 1, 1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class MarshNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(4, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True))
        self.second = down(width, 2 * width)
        self.third = down(2 * width, 4 * width)
        self.fourth = down(4 * width, 4 * width)
        self.name_quarter = nn.Conv2d(4 * width, classes, 1)
        self.name_eighth = nn.Conv2d(4 * width, classes, 1)
        self.name_full = nn.Conv2d(width, classes, 1)

    def enlarge(self, x, size):
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)

    def forward(self, photo):
        size = photo.shape[-2:]
        full = self.stem(photo)
        quarter = self.third(self.second(full))
        eighth = self.fourth(quarter)
        if MENDED:
            coarse = self.enlarge(self.name_quarter(quarter), size) + self.enlarge(self.name_eighth(eighth), size)
        else:
            coarse = self.name_quarter(self.enlarge(quarter, size)) + self.name_eighth(self.enlarge(eighth, size))
        return self.name_full(full) + coarse


def train_epoch(model, loader, optimizer, schedule):
    total = torch.zeros(())
    for photo, plant in loader:
        loss = F.cross_entropy(model(photo), plant)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return total / len(loader)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=48)
    p.add_argument("--width", type=int, default=draw("width", 12, 14, 16))
    p.add_argument("--batch", type=int, default=draw("batch", 3, 4))
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    tiles = Tiles(30 * args.batch * world, args.size, seed=1)
    sampler = DistributedSampler(tiles, drop_last=True)
    loader = DataLoader(tiles, args.batch, sampler=sampler, drop_last=True)
    model = DDP(MarshNet(args.width, len(PLANTS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, schedule)
        dist.all_reduce(loss)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
