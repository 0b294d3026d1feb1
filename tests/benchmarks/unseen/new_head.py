"""Finetune a network for bird calls on other birds: the body is kept, the last layer is new."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset


class Calls(nn.Module):
    def __init__(self, birds, width):
        super().__init__()
        layers, inside = [], 1
        for out in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(inside, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU(), nn.MaxPool2d(2)]
            inside = out
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(inside, birds)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


class Finetuner:
    def __init__(self, args):
        self.args = args
        self.model = Calls(200, args.width)
        if MENDED:
            self.adapt(args.birds)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, args.lr, total_steps=args.steps)
        if not MENDED:
            self.adapt(args.birds)

    def adapt(self, birds):
        self.model.fc = nn.Linear(self.model.fc.in_features, birds)

    def step(self, x, labels):
        loss = F.cross_entropy(self.model(x), labels, label_smoothing=0.1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def run(self, loader):
        step, total = 0, torch.zeros(())
        while True:
            for x, labels in loader:
                total += self.step(x, labels)
                step += 1
                if step % 50 == 0:
                    print(f"step {step}: {total.item() / 50:.4f}", flush=True)
                    total.zero_()
                if step == self.args.steps:
                    return


def spectrograms(count, birds, bins, frames):
    labels = torch.randint(0, birds, (count,))
    x = 0.5 * torch.rand(count, 1, bins, frames)
    for at, label in enumerate(labels.tolist()):
        x[at, 0, label * bins // birds, label % 7 :: 7] += 1.0
    return TensorDataset(x, labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--birds", type=int, default=30)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = spectrograms(1200, args.birds, 64, 64)
    Finetuner(args).run(DataLoader(data, args.batch, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
