"""Which animal passed a trail camera, by day or by night: a mixer over patches with accumulation, Accelerate."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch.utils.data import DataLoader, Dataset, TensorDataset

ANIMALS = ["badger", "boar", "fox", "hare", "lynx", "marten", "roe deer"]


def cameras(count, size, seed):
    """An animal as stripes and a height in front of a thicket; pictures of the night have a single colour."""
    g = torch.Generator().manual_seed(seed)
    animal = torch.randint(len(ANIMALS), (count,), generator=g)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    kind = animal.view(-1, 1, 1)
    x = x + 0.6 * torch.rand(count, 1, 1, generator=g) - 0.3
    body = (x**2 / (0.1 + 0.05 * kind) + (y - 0.3) ** 2 / (0.3 - 0.03 * kind) < 1).float()
    coat = torch.cos((8 + 3 * (kind % 4)) * x + 4 * kind * y)
    thicket = F.interpolate(torch.randn(count, 1, 9, 9, generator=g), size=size, mode="bilinear").squeeze(1)
    grey = body * (0.5 + 0.5 * coat) + (1 - body) * 0.4 * thicket
    tint = torch.tensor([0.9, 1.0, 0.7]).view(1, 3, 1, 1)
    night = (torch.rand(count, 1, 1, 1, generator=g) < 0.4).float()
    photo = grey.unsqueeze(1) * (night + (1 - night) * tint) + 0.2 * torch.randn(count, 3, size, size, generator=g)
    return photo, animal


class Pictures(Dataset):
    def __init__(self, photo, animal):
        self.photo, self.animal = photo, animal

    def __getitem__(self, rows):
        flip = torch.rand(len(rows), 1, 1, 1) < 0.5
        photo = self.photo[rows]
        return torch.where(flip, photo.flip(3), photo), self.animal[rows]


class RankBatches:
    """Batches of a rank. All ranks draw the same order, another one in each pass, and take turns in it."""

    def __init__(self, count, batch, rank, world, seed):
        self.count, self.batch, self.rank, self.world, self.seed = count, batch, rank, world, seed
        self.passes = 0

    def __len__(self):
        return self.count // (self.batch * self.world)

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.seed + self.passes))
        self.passes += 1
        whole = order[: len(self) * self.world * self.batch].view(-1, self.world, self.batch)
        return iter(whole[:, self.rank])


class Mixer(nn.Module):
    """Patches are mixed in each channel, then channels in each patch."""

    def __init__(self, patches, dim, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.patches = nn.Sequential(nn.Linear(patches, hidden), nn.GELU(), nn.Linear(hidden, patches))
        self.channels = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class TrailNet(nn.Module):
    def __init__(self, size, patch, dim, depth):
        super().__init__()
        self.first = nn.Conv2d(3, dim, patch, patch)
        count = (size // patch) ** 2
        self.body = nn.Sequential(*[Mixer(count, dim, 2 * count) for _ in range(depth)], nn.LayerNorm(dim))
        self.out = nn.Linear(dim, len(ANIMALS))

    def forward(self, photo):
        return self.out(self.body(self.first(photo).flatten(2).transpose(1, 2)).mean(1))


@torch.no_grad()
def share_right(accelerator, model, check):
    model.eval()
    right = [accelerator.gather_for_metrics(model(photo).argmax(1) == animal) for photo, animal in check]
    model.train()
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--patch", type=int, default=6)
    parser.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    world, rank = accelerator.num_processes, accelerator.process_index
    set_seed(75, device_specific=True)
    count = 40 * args.accumulate * world * args.batch
    batches = RankBatches(count, args.batch, rank, world, seed=8)
    loader = DataLoader(Pictures(*cameras(count, args.size, seed=1)), batch_size=None, sampler=batches)
    check = DataLoader(TensorDataset(*cameras(6 * args.batch, args.size, seed=2)), args.batch)
    model = TrailNet(args.size, args.patch, args.dim, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    steps = args.epochs * len(batches) // args.accumulate
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    )
    model, optimizer, check = accelerator.prepare(model, optimizer, check)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for photo, animal in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(photo), animal, label_smoothing=0.05)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
            total += loss.detach()
        right = share_right(accelerator, model, check)
        accelerator.print(f"epoch {epoch} loss {total.item() / len(batches):.4f} right {right:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
