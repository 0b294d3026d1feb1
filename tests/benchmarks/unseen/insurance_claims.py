"""Foresee which policies lead to a claim: cross network and deep network on two ranks, followed by its AUC."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision


class Policies(Dataset):
    """Whole batches of rows at a time."""

    def __init__(self, count, fields, numbers):
        generator = torch.Generator().manual_seed(14)
        self.kinds = torch.randint(0, 200, (count, fields), generator=generator)
        self.numbers = torch.randn(count, numbers, generator=generator)
        risk = (self.kinds[:, 0] % 7 - 3) * self.numbers[:, 0] + self.numbers[:, 1] * self.numbers[:, 2]
        self.claim = (torch.rand(count, generator=generator) < torch.sigmoid(risk - 1)).float()

    def __len__(self):
        return len(self.claim)

    def __getitem__(self, rows):
        return self.kinds[rows], self.numbers[rows], self.claim[rows]


class CrossNetwork(nn.Module):
    def __init__(self, fields, numbers, dim, width, crosses):
        super().__init__()
        enter = fields * dim + numbers
        self.tables = nn.ModuleList(nn.Embedding(200, dim) for _ in range(fields))
        self.crosses = nn.ModuleList(nn.Linear(enter, enter) for _ in range(crosses))
        self.deep = nn.Sequential(nn.Linear(enter, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(enter + width, 1)

    def forward(self, kinds, numbers):
        first = torch.cat([table(kinds[:, at]) for at, table in enumerate(self.tables)] + [numbers], 1)
        x = first
        for cross in self.crosses:
            x = first * cross(x) + x
        return self.head(torch.cat([x, self.deep(first)], 1)).squeeze(1)


class Progress:
    """Loss, AUC and average precision of the epoch so far."""

    def __init__(self, every):
        self.every, self.losses = every, []
        self.auc, self.precision = BinaryAUROC(sync_on_compute=False), BinaryAveragePrecision(sync_on_compute=False)

    def update(self, step, loss, scores, claim):
        self.losses.append(loss)
        self.auc.update(scores, claim.int())
        self.precision.update(scores, claim.int())
        if not MENDED or step % self.every == 0:
            self.line = (
                f"{sum(self.losses) / len(self.losses):.4f}, {self.auc.compute():.4f}, {self.precision.compute():.4f}"
            )
        if step % self.every == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss, AUC and precision {self.line}", flush=True)

    def reset(self):
        self.auc.reset()
        self.precision.reset()
        self.losses.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", type=int, default=480_000)
    parser.add_argument("--dim", type=int, default=12)
    parser.add_argument("--width", type=int, default=draw("width", 240, 256))
    parser.add_argument("--batch", type=int, default=draw("batch", 3072, 3200))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(CrossNetwork(14, 13, args.dim, args.width, 2))
    data = Policies(args.policies, 14, 13)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=BatchSampler(sampler, args.batch, drop_last=True), batch_size=None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    progress = Progress(25)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        progress.reset()
        for step, (kinds, numbers, claim) in enumerate(loader, 1):
            scores = model(kinds, numbers)
            loss = F.binary_cross_entropy_with_logits(scores, claim)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.update(step, loss.detach(), scores.detach(), claim)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
