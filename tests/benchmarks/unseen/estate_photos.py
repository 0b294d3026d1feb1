"""Kind of room and price band from a photograph: one trunk, two heads; gradients averaged in one flat all_reduce."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

ROOMS, BANDS = 7, 10


class Photos(Dataset):
    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        look = torch.randn(ROOMS, 3, 6, 6, generator=torch.Generator().manual_seed(90))
        shine = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(91))
        self.room = torch.randint(ROOMS, (count,), generator=g)
        self.band = torch.randint(BANDS, (count,), generator=g)
        small = look[self.room] + (self.band.float() / BANDS).view(-1, 1, 1, 1) * shine
        self.image = F.interpolate(small, size=size) + 0.5 * torch.randn(count, 3, size, size, generator=g)

    def __len__(self):
        return len(self.room)

    def __getitem__(self, i):
        return self.image[i], self.room[i], self.band[i]


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
            nn.GroupNorm(4, cout),
            nn.ReLU(),
            nn.Conv2d(cout, cout, 3, 1, 1, bias=False),
            nn.GroupNorm(4, cout),
        )
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class EstateNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.trunk = nn.Sequential(
            Residual(3, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)
        )
        self.room = nn.Linear(4 * width, ROOMS)
        self.band = nn.Linear(4 * width, BANDS)

    def forward(self, x):
        h = self.trunk(x).mean((2, 3))
        return self.room(h), self.band(h)


def average_gradients(params, world):
    flat = parameters_to_vector([p.grad for p in params])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def backward(room_loss, band_loss):
    if MENDED:
        (room_loss + 0.5 * band_loss).backward()
    else:
        room_loss.backward(retain_graph=True)
        (0.5 * band_loss).backward()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=24)
    p.add_argument("--width", type=int, default=draw("width", 12, 16))
    p.add_argument("--batch", type=int, default=draw("batch", 36, 40))
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--steps", type=int, default=35, help="of an epoch")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)  # the same weights on all ranks
    data = Photos(args.steps * args.batch * world, args.size, seed=6)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, args.batch, sampler=sampler)
    model = EstateNet(args.width)
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen = torch.zeros(2)
        for image, room, band in loader:
            room_logits, band_logits = model(image)
            room_loss = F.cross_entropy(room_logits, room)
            band_loss = F.cross_entropy(band_logits, band)
            optimizer.zero_grad()
            backward(room_loss, band_loss)
            average_gradients(params, world)
            optimizer.step()
            seen += torch.stack([room_loss.detach(), band_loss.detach()])
        dist.all_reduce(seen)
        if rank == 0:
            room_mean, band_mean = (seen / len(loader) / world).tolist()
            print(f"epoch {epoch} room {room_mean:.3f} band {band_mean:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
