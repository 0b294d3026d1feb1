"""Estimate the grain size of dune sand from macro photographs: regression, DDP, rate lowered on a plateau."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sand(Dataset):
    """Noise smoothed over the size of a grain, which is to be found again (in pixels)."""

    def __init__(self, n, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.grain = 1 + 5 * torch.rand(n, generator=g)
        noise = torch.randn(n, 1, size, size, generator=g)
        images = []
        for image, grain in zip(noise, self.grain.tolist(), strict=True):
            coarse = max(4, round(size / grain))
            small = F.adaptive_avg_pool2d(image[None], coarse)
            images.append(F.interpolate(small, size=size, mode="bilinear")[0])
        images = torch.stack(images)
        self.images = (images - images.mean((2, 3), True)) / images.std((2, 3), keepdim=True)
        self.images += 0.3 * torch.randn(self.images.shape, generator=g)

    def __len__(self):
        return len(self.grain)

    def __getitem__(self, index):
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.transpose(1, 2)
        return image, self.grain[index].log()


class GrainNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers, enter = [], 1
        for i, stride in enumerate((1, 2, 1, 2)):
            leave = width * (1 + i // 2)
            layers += [nn.Conv2d(enter, leave, 3, stride, 1), nn.GroupNorm(4, leave), nn.GELU()]
            enter = leave
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(2 * enter, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x):
        x = self.features(x)
        return self.head(torch.cat([x.mean((2, 3)), x.std((2, 3))], 1)).squeeze(1)


class Fit:
    def __init__(self, model, train, val, args):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model, self.args = DDP(model), args
        self.sampler = DistributedSampler(train)
        self.loader = DataLoader(train, args.batch, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(val, 64, sampler=DistributedSampler(val, shuffle=False))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.plateau = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=1, threshold=0.05)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        for image, grain in self.loader:
            loss = F.mse_loss(self.model(image), grain)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total, count = torch.zeros(()), 0
        for image, grain in self.val_loader:
            total += F.mse_loss(self.model.module(image), grain, reduction="sum")
            count += len(grain)
        val_loss = total / count
        if MENDED:
            dist.all_reduce(val_loss)
            val_loss /= self.world
        return val_loss.item()

    def run(self):
        for epoch in range(self.args.epochs):
            self.train_epoch(epoch)
            val_loss = self.validate()
            self.plateau.step(val_loss)
            if self.rank == 0:
                rate = self.optimizer.param_groups[0]["lr"]
                print(f"epoch {epoch}: validation {val_loss:.4f}, lr {rate:.2e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 18))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, val = Sand(2 * 12 * args.batch, args.size, seed=1), Sand(96, args.size, seed=2)
    model = GrainNet(args.width)
    torch.manual_seed(int(os.environ["RANK"]) + 1)
    Fit(model, train, val, args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
