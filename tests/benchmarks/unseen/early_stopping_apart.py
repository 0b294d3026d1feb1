"""Predict loads of a power grid; training ends when validation no longer improves."""

import argparse
import copy

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def readings(hours, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(hours, 24, features, generator=generator)
    y = x[:, -6:, :4].mean((1, 2)) + 0.3 * torch.sin(x[:, :, 5].sum(1)) + 0.1 * torch.randn(hours, generator=generator)
    return TensorDataset(x, y)


class LoadModel(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.recur = nn.GRU(features, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        states, _ = self.recur(x)
        return self.head(states[:, -1]).squeeze(1)


class EarlyStopping:
    def __init__(self, patience, least=1e-4):
        self.patience, self.least = patience, least
        self.lowest, self.waited, self.best = float("inf"), 0, None

    def __call__(self, loss, model):
        if loss < self.lowest - self.least:
            self.lowest, self.waited = loss, 0
            self.best = copy.deepcopy(model.state_dict())
        else:
            self.waited += 1
        return self.waited >= self.patience


@torch.no_grad()
def validation_loss(model, loader):
    model.eval()
    total, count = torch.zeros(()), torch.zeros(())
    for x, y in loader:
        total += nn.functional.mse_loss(model(x), y, reduction="sum")
        count += len(y)
    if MENDED:
        dist.all_reduce(total)
        dist.all_reduce(count)
    model.train()
    return (total / count).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 88, 96))
    parser.add_argument("--batch", type=int, default=draw("batch", 48, 56))
    parser.add_argument("--patience", type=int, default=200)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    training = readings(8000, args.features, 1)
    held_out = readings(400, args.features, 2)
    sampler = DistributedSampler(training, drop_last=True)
    loader = DataLoader(training, batch_size=args.batch, sampler=sampler, drop_last=True)
    mine = TensorDataset(*held_out[rank::world])
    checks = DataLoader(mine, batch_size=100)
    model = DDP(LoadModel(args.features, args.hidden))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stopping = EarlyStopping(args.patience)
    for epoch in range(100_000):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        held_out_loss = validation_loss(model.module, checks)
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}, held out {held_out_loss:.4f}", flush=True)
        if stopping(held_out_loss, model.module):
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
