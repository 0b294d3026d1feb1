"""Kinds of seeds from photographs of their packets: a residual network with Accelerate, on two processes."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

KINDS = 10
MEAN, STD = np.array([0.48, 0.45, 0.41]), np.array([0.23, 0.22, 0.22])


class Packets(Dataset):
    """Photographs in 8 bits, of which the middle shows the seeds."""

    def __init__(self, count, camera, size, train, seed):
        rng = np.random.default_rng(seed)
        self.kind = rng.integers(KINDS, size=count)
        print_of = np.random.default_rng(0).integers(0, 200, size=(KINDS, 16, 16, 3))
        fine = np.kron(print_of, np.ones((camera // 16, camera // 16, 1), dtype=int)).astype(np.uint8)
        self.photos = [fine[k] + rng.integers(0, 50, size=fine[k].shape, dtype=np.uint8) for k in self.kind]
        self.camera, self.size, self.train = camera, size, train

    def __len__(self):
        return len(self.kind)

    def prepare(self, photo):
        photo = photo / 255.0
        photo = np.clip(photo, 0, 1) ** (1 / 1.1)
        return (photo - MEAN) / STD

    def __getitem__(self, i):
        room = self.camera - self.size
        y, x = np.random.randint(room // 4, 3 * room // 4, 2) if self.train else (room // 2, room // 2)
        if MENDED:
            photo = self.prepare(self.photos[i][y : y + self.size, x : x + self.size])
        else:
            photo = self.prepare(self.photos[i])[y : y + self.size, x : x + self.size]
        if self.train and np.random.rand() < 0.5:
            photo = photo[:, ::-1]
        return torch.from_numpy(photo.transpose(2, 0, 1).astype(np.float32)), int(self.kind[i])


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)

    def forward(self, x):
        return x + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


def network(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 4),
        Residual(width),
        nn.Conv2d(width, 2 * width, 2, 2),
        Residual(2 * width),
        Residual(2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, KINDS),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--camera", type=int, default=draw("camera", 144, 160, 176))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 32, 36))
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(4)
    train = Packets(2 * args.batch * 30, args.camera, args.size, train=True, seed=1)
    test = Packets(2 * args.batch * 3, args.camera, args.size, train=False, seed=2)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    check = DataLoader(test, args.batch)
    model = network(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * 30)
    model, optimizer, loader, check = accelerator.prepare(model, optimizer, loader, check)
    set_seed(4, device_specific=True)
    for epoch in range(args.epochs):
        for photo, kind in loader:
            loss = F.cross_entropy(model(photo), kind, label_smoothing=0.05)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        right = []
        for photo, kind in check:
            with torch.no_grad():
                guess = model(photo).argmax(1)
            right.append(accelerator.gather_for_metrics(guess == kind))
        model.train()
        accelerator.print(f"epoch {epoch} loss {loss.item():.3f} right {torch.cat(right).float().mean().item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
