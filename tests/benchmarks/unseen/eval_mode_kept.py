"""Classify patches of tissue; a Trainer class with validation every so many steps."""

import argparse

import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Network(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        layers, channels = [], 3
        for stage in range(3):
            out = width * 2**stage
            layers += [
                nn.Conv2d(channels, out, 3, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Dropout2d(0.1),
            ]
            channels = out
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(channels, classes))

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def patches(count, seed, classes=4):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    x = 0.5 * torch.randn(count, 3, 32, 32, generator=generator)
    for label in range(classes):
        x[labels == label, label % 3, label * 8 : label * 8 + 8] += 0.4
    return TensorDataset(x, labels)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = Network(args.width, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
        self.training = DataLoader(patches(4000, 1), batch_size=args.batch, shuffle=True, drop_last=True)
        self.validation = DataLoader(patches(256, 2), batch_size=128)
        self.step, self.best = 0, 0.0

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        right = total = 0
        for x, labels in self.validation:
            right += (self.model(x).argmax(1) == labels).sum().item()
            total += len(labels)
        if MENDED:
            self.model.train()
        return right / total

    def train_batch(self, x, labels):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), labels)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss

    def run(self):
        self.model.train()
        for _ in range(self.args.epochs):
            for x, labels in self.training:
                loss = self.train_batch(x, labels)
                if self.step % self.args.validate_every == 0:
                    accuracy = self.validate()
                    self.best = max(self.best, accuracy)
                    print(f"{self.step}: {loss.item():.3f}, {accuracy:.1%}, best {self.best:.1%}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=draw("batch", 40, 48))
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--validate-every", type=int, default=80)
    torch.manual_seed(0)
    Trainer(parser.parse_args()).run()
