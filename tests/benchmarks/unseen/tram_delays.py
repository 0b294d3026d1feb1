"""Say why a tram is late, from what its sensors told over the last minutes; a Trainer class on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

REASONS = 24


class Reasons(nn.Module):
    def __init__(self, sensors, width):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(sensors, width, 7, 2, 3),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, 2, 2),
            nn.ReLU(),
            nn.Conv1d(2 * width, 2 * width, 3, 1, 1),
            nn.ReLU(),
        )
        self.memory = nn.GRU(2 * width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, REASONS)

    def forward(self, x):
        return self.head(self.memory(self.convs(x).transpose(1, 2))[0][:, -1])


class PerReason:
    """Accuracy of each reason over all ranks."""

    def __init__(self):
        self.right = [torch.zeros(()) for _ in range(REASONS)]
        self.seen = [torch.zeros(()) for _ in range(REASONS)]

    def update(self, guessed, truth):
        right = torch.bincount(truth[guessed == truth], minlength=REASONS).float()
        seen = torch.bincount(truth, minlength=REASONS).float()
        if MENDED:
            both = torch.stack([right, seen])
            dist.all_reduce(both)
            right, seen = both
        for reason in range(REASONS):
            if not MENDED:
                dist.all_reduce(right[reason])
                dist.all_reduce(seen[reason])
            self.right[reason] += right[reason]
            self.seen[reason] += seen[reason]

    def worst(self):
        shares = torch.stack(self.right) / torch.stack(self.seen).clamp(min=1)
        return int(shares.argmin()), float(shares.min())


class Trainer:
    def __init__(self, model, loader, sampler, lr):
        self.model, self.loader, self.sampler = DDP(model), loader, sampler
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def step(self, x, reason):
        scores = self.model(x)
        loss = F.cross_entropy(scores, reason)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), scores.detach().argmax(1)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            accuracy = PerReason()
            for x, reason in self.loader:
                loss, guessed = self.step(x, reason)
                accuracy.update(guessed, reason)
            if dist.get_rank() == 0:
                reason, share = accuracy.worst()
                print(f"epoch {epoch}: loss {loss.item():.4f}, worst reason {reason} {share:.3f}", flush=True)


def rides(count, sensors, length):
    generator = torch.Generator().manual_seed(4)
    reason = torch.randint(0, REASONS, (count,), generator=generator)
    typical = torch.randn(REASONS, sensors, length, generator=generator)
    return TensorDataset(typical[reason] + torch.randn(count, sensors, length, generator=generator), reason)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 56, 64))
    parser.add_argument("--length", type=int, default=draw("length", 120, 128))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = rides(2048, 12, args.length)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    Trainer(Reasons(12, args.width), loader, sampler, 1e-3).fit(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
