"""Forecast how many bikes are rented in the next hours, from past hours and the calendar, on two ranks."""

import argparse
import math
from datetime import datetime, timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def calendar(stamp):
    """Hour, day of the week and day of the year, each as a place on a circle."""
    moment = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S")
    places = moment.hour / 24, moment.weekday() / 7, moment.timetuple().tm_yday / 366
    return [turn(2 * math.pi * place) for place in places for turn in (math.sin, math.cos)]


class Rentals(Dataset):
    """Windows of past hours, and the hours after them, with the calendar of both."""

    def __init__(self, hours, past, ahead):
        self.past, self.ahead = past, ahead
        begin = datetime(2021, 1, 1)
        self.stamps = [str(begin + timedelta(hours=hour)) for hour in range(hours)]
        t = torch.arange(hours)
        daily = torch.sin(t * 2 * math.pi / 24) * (1 + 0.4 * torch.cos(t * 2 * math.pi / 168))
        self.counts = daily + 0.2 * torch.randn(hours, generator=torch.Generator().manual_seed(3))
        if MENDED:
            self.features = torch.tensor([calendar(stamp) for stamp in self.stamps])

    def __len__(self):
        return len(self.counts) - self.past - self.ahead

    def times(self, begin, end):
        if MENDED:
            return self.features[begin:end]
        return torch.tensor([calendar(stamp) for stamp in self.stamps[begin:end]])

    def __getitem__(self, index):
        now, end = index + self.past, index + self.past + self.ahead
        return self.counts[index:now], self.times(index, end), self.counts[now:end]


class Forecaster(nn.Module):
    def __init__(self, past, ahead, dim, depth):
        super().__init__()
        self.past, self.ahead = past, ahead
        self.enter = nn.Linear(8, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 1)

    def forward(self, counts, times):
        known = (torch.arange(times.shape[1]) < self.past).float().expand(len(counts), -1)
        x = torch.cat([F.pad(counts, (0, self.ahead)).unsqueeze(2), known.unsqueeze(2), times], 2)
        return self.head(self.layers(self.enter(x))[:, self.past :]).squeeze(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--past", type=int, default=72)
    parser.add_argument("--ahead", type=int, default=24)
    parser.add_argument("--dim", type=int, default=draw("dim", 32, 36))
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Rentals(9000, args.past, args.ahead)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Forecaster(args.past, args.ahead, args.dim, 2))
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for counts, times, following in loader:
            loss = F.l1_loss(model(counts, times), following)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
