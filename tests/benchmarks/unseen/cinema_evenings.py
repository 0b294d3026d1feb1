"""Recommend films for an evening: two towers with negatives from the batch, on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Evenings(IterableDataset):
    """Evenings without end, drawn anew on each rank: a guest, the films they saw, the next one."""

    def __init__(self, guests, films, seen, batch, seed):
        self.guests, self.films, self.seen, self.batch, self.seed = guests, films, seen, batch, seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            guest = torch.randint(0, self.guests, (self.batch,), generator=generator)
            spread = torch.randint(0, 25, (self.batch, self.seen + 1), generator=generator)
            films = (guest.unsqueeze(1) * 7 + spread) % self.films
            yield guest, films[:, :-1], films[:, -1]


def tower(enter, hidden, leave):
    return nn.Sequential(nn.Linear(enter, hidden), nn.ReLU(), nn.Linear(hidden, leave))


class Towers(nn.Module):
    def __init__(self, guests, films, dim, hidden):
        super().__init__()
        self.guests = nn.Embedding(guests, dim)
        self.films = nn.Embedding(films, dim)
        self.guest_tower = tower(2 * dim, hidden, dim)
        self.film_tower = tower(dim, hidden, dim)

    def forward(self, guest, seen, following):
        asked = torch.cat([self.guests(guest), self.films(seen).mean(1)], dim=1)
        left = F.normalize(self.guest_tower(asked), dim=1)
        right = F.normalize(self.film_tower(self.films(following)), dim=1)
        return left @ right.T / 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guests", type=int, default=4000)
    parser.add_argument("--films", type=int, default=3000)
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 512, 576))
    parser.add_argument("--batch", type=int, default=draw("batch", 1600, 1664))
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Towers(args.guests, args.films, args.dim, args.hidden), gradient_as_bucket_view=True)
    data = Evenings(args.guests, args.films, 10, args.batch, seed=900 + rank)
    loader = DataLoader(data, batch_size=None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    own = torch.arange(args.batch)
    for step, (guest, seen, following) in enumerate(loader, 1):
        scores = model(guest, seen, following)
        same = (following.unsqueeze(1) == following) & ~torch.eye(args.batch, dtype=torch.bool)
        loss = F.cross_entropy(scores.masked_fill(same, float("-inf")), own)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0 and rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
