"""Where visitors of a museum go next: a session model with an own path for newcomers, DDP on two ranks."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

ROOMS = 300


class Walks(Dataset):
    """Walks of equal length; the first `known` rows are of members, of whom a profile is known."""

    def __init__(self, n, known, steps, seed=23):
        g = torch.Generator().manual_seed(seed)
        self.known, self.steps = known, steps
        self.profile = torch.randn(n, 24, generator=g)
        doors = torch.randint(0, ROOMS, (ROOMS, 4), generator=g)
        taste = self.profile[:, :4].argmax(1)
        room = torch.randint(0, ROOMS, (n,), generator=g)
        walk = [room]
        for _ in range(steps):
            other = torch.randint(0, 4, (n,), generator=g)
            door = torch.where(torch.rand(n, generator=g) < 0.7, taste, other)
            room = doors[room, door]
            walk.append(room)
        self.walks = torch.stack(walk, 1)

    def __len__(self):
        return len(self.walks)

    def __getitem__(self, i):
        return self.walks[i], self.profile[i], i < self.known


class OneKindBatches(Sampler):
    """Batches of members alone or newcomers alone, in random order; each rank has its share of each epoch."""

    def __init__(self, data, batch, rank, world, seed=0):
        self.data, self.batch, self.rank, self.world, self.seed, self.epoch = data, batch, rank, world, seed, 0

    def __len__(self):
        known, rest = self.data.known, len(self.data) - self.data.known
        return (known // self.batch + rest // self.batch) // self.world

    def __iter__(self):
        rng = random.Random(self.seed + self.epoch)  # the same on all ranks
        batches = []
        for first, last in ((0, self.data.known), (self.data.known, len(self.data))):
            rows = list(range(first, last))
            rng.shuffle(rows)
            batches += [rows[at : at + self.batch] for at in range(0, len(rows) - self.batch + 1, self.batch)]
        rng.shuffle(batches)
        return iter(batches[self.rank : len(self) * self.world : self.world])


class WalkModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.rooms = nn.Embedding(ROOMS, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.member = nn.Sequential(nn.Linear(24, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.newcomer = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.mix = nn.Linear(2 * dim, dim)

    def forward(self, walk, profile, member):
        x = self.rooms(walk)
        state, _ = self.gru(x)
        # a batch is of one kind: only one of the two is used in a step
        if member:
            side = self.member(profile).unsqueeze(1).expand_as(state)
        else:
            side = self.newcomer(x[:, :1]).expand_as(state)
        return self.mix(torch.cat([state, side], 2)) @ self.rooms.weight.T


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 88, 96))
    parser.add_argument("--walk", type=int, default=24)
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Walks(54 * args.batch, 30 * args.batch, args.walk)
    batches = OneKindBatches(data, args.batch, rank, world)
    loader = DataLoader(data, batch_sampler=batches)
    # members and newcomers have layers of their own, and the two ranks may have another kind in the same step
    model = DDP(WalkModel(args.dim), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        batches.epoch = epoch
        sums = torch.zeros(2)
        for walk, profile, member in loader:
            scores = model(walk[:, :-1], profile, bool(member[0]))
            loss = F.cross_entropy(scores.flatten(0, 1), walk[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums[0] += loss.detach()
            sums[1] += (scores[:, -1].detach().argmax(1) == walk[:, -1]).float().mean()
        dist.all_reduce(sums)
        if rank == 0:
            shown = sums / (world * len(loader))
            print(f"epoch {epoch}: loss {shown[0]:.4f}, last room right {shown[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
