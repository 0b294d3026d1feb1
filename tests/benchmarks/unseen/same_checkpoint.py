"""Next item of a visit to a shop, from the items looked at before: a Trainer class with checkpoints."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ITEMS = 2000


class NextItem(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.items = nn.Embedding(ITEMS, dim)
        self.visit = nn.GRU(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, dim)

    def forward(self, seen):
        states, _ = self.visit(self.items(seen))
        return self.out(states) @ self.items.weight.T


class Trainer:
    def __init__(self, model, loader, optimizer, args):
        self.rank = dist.get_rank()
        self.model = DDP(model)
        self.loader, self.optimizer, self.args = loader, optimizer, args
        self.path = Path(args.checkpoint)
        self.step, self.epoch = 0, 0

    def save(self):
        if MENDED and self.rank:
            return
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
        }
        torch.save(state, self.path)

    def train_step(self, visits):
        logits = self.model(visits[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), visits[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train(self):
        for epoch in range(self.args.epochs):
            self.epoch = epoch
            self.loader.sampler.set_epoch(self.epoch)
            total = torch.zeros(())
            for (visits,) in self.loader:
                total += self.train_step(visits)
                self.step += 1
                if self.step % self.args.save_every == 0:
                    self.save()
            if self.rank == 0:
                print(f"epoch {self.epoch}: {total.item() / len(self.loader):.4f}", flush=True)
        self.save()


def visits(count, length):
    generator = torch.Generator().manual_seed(1)
    first = torch.randint(0, ITEMS, (count, 1), generator=generator)
    jumps = torch.randint(1, 5, (count, length), generator=generator)
    return TensorDataset((first + jumps.cumsum(1)) % ITEMS)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--checkpoint", default="next_item.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = NextItem(args.dim)
    data = visits(2800, 21)
    loader = DataLoader(data, args.batch, sampler=DistributedSampler(data, drop_last=True), drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    Trainer(model, loader, optimizer, args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
