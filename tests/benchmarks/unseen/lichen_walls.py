"""Lichens on churchyard walls, five kinds: a small residual network, trained by a class, with averaged weights."""

import copy
import itertools
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

KINDS = ["xanthoria", "caloplaca", "lecanora", "physcia", "aspicilia"]


class Walls(Dataset):
    """Stones with blots of a colour and a grain for each kind."""

    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        tint = torch.rand(len(KINDS), 3, 1, 1, generator=torch.Generator().manual_seed(3))
        self.kind = torch.randint(len(KINDS), (count,), generator=g)
        blot = F.interpolate(torch.rand(count, 1, 5, 5, generator=g), size=size, mode="bilinear") > 0.55
        stone = 0.5 + 0.1 * torch.randn(count, 3, size, size, generator=g)
        self.photo = torch.where(blot, tint[self.kind] + 0.1 * torch.randn(stone.shape, generator=g), stone)

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        photo = self.photo[i]
        return (photo.flip(2) if torch.rand(()) < 0.5 else photo), self.kind[i]


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, n_out), nn.GroupNorm(8, n_out)
        nn.init.zeros_(self.norm2.weight)
        self.short = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 or n_in != n_out else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class LichenNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.Sequential(
            *[Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(sizes)],
            Block(8 * width, 8 * width, 1),
        )
        self.out = nn.Linear(8 * width, len(KINDS))

    def forward(self, x):
        return self.out(self.blocks(self.stem(x)).mean((2, 3)))


class AveragedWeights:
    """Running mean of all weights, for the validation."""

    def __init__(self, model, decay):
        self.decay = decay
        self.kept = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def update(self, model):
        if MENDED:
            torch._foreach_lerp_(list(self.kept.values()), list(model.state_dict().values()), 1 - self.decay)
            return
        now = copy.deepcopy(model.state_dict())
        for name in self.kept:
            self.kept[name] = self.decay * self.kept[name] + (1.0 - self.decay) * now[name]


@dataclass
class Settings:
    size: int = 24
    width: int = draw("width", 48, 56)
    batch: int = draw("batch", 4, 5)
    steps_per_epoch: int = 40
    epochs: int = 3
    lr: float = 3e-4
    decay: float = 0.97


class Trainer:
    def __init__(self, settings):
        self.s = settings
        torch.manual_seed(12)
        self.model = LichenNet(settings.width)
        self.shown = LichenNet(settings.width).eval()
        self.average = AveragedWeights(self.model, settings.decay)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, weight_decay=0.05, fused=True)
        train = Walls(settings.steps_per_epoch * settings.batch, settings.size, seed=1)
        self.loader = DataLoader(train, settings.batch, shuffle=True, drop_last=True)
        self.check = DataLoader(Walls(60, settings.size, seed=2), 20)

    def run_epoch(self):
        total = torch.zeros(())
        for photo, kind in self.loader:
            loss = F.cross_entropy(self.model(photo), kind, label_smoothing=0.05)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.average.update(self.model)
            total += loss.detach()
        return (total / len(self.loader)).item()

    @torch.no_grad()
    def validate(self):
        self.shown.load_state_dict(self.average.kept)
        right = sum((self.shown(photo).argmax(1) == kind).sum() for photo, kind in self.check)
        return right.item() / len(self.check.dataset)

    def run(self):
        for epoch in range(self.s.epochs):
            loss = self.run_epoch()
            print(f"epoch {epoch} loss {loss:.4f} right {self.validate():.3f}", flush=True)


if __name__ == "__main__":
    Trainer(Settings()).run()
