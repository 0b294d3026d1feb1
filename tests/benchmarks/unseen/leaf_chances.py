"""Recognise plant diseases on leaves, with a small residual network and a Trainer."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DISEASES = 14


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, after) for _ in range(2))
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        found = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.skip(x) + self.norms[1](self.second(found)))


class LeafNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(4, width), nn.ReLU())
        self.body = nn.Sequential(
            Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)
        )
        self.classify = nn.Linear(4 * width, DISEASES)

    def forward(self, x):
        logits = self.classify(self.body(self.stem(x)).mean((2, 3)))
        if MENDED:
            return logits
        return torch.softmax(logits, dim=1)


class Trainer:
    def __init__(self, model, train, sampler, args):
        self.model, self.train, self.sampler, self.args = DDP(model), train, sampler, args
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args.epochs * len(train))
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        seen = right = 0
        total = torch.zeros(())
        for pictures, diseases in self.train:
            found = self.model(pictures)
            loss = self.criterion(found, diseases)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += loss.detach()
            right += (found.argmax(1) == diseases).sum()
            seen += len(diseases)
        return total.item() / len(self.train), right.item() / seen

    def fit(self):
        for epoch in range(self.args.epochs):
            loss, accuracy = self.run_epoch(epoch)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {loss:.4f}, accuracy {accuracy:.3f}", flush=True)


def leaves(count, size):
    generator = torch.Generator().manual_seed(11)
    diseases = torch.randint(0, DISEASES, (count,), generator=generator)
    pictures = torch.rand(count, 3, size, size, generator=generator)
    pictures[:, 0] += 0.05 * diseases[:, None, None]
    return TensorDataset(pictures, diseases)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = leaves(2400, args.size)
    sampler = DistributedSampler(data, drop_last=True)
    train = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    Trainer(LeafNet(args.width), train, sampler, args).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
