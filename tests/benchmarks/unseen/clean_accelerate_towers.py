"""Two towers, one for guests and one for rooms, that meet in a product: recommendation with Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch.utils.data import DataLoader, Dataset


class Stays(Dataset):
    """Rows of guest, room and what is known of the stay; a batch of them is taken at once."""

    def __init__(self, count, guests, rooms, facts, seed):
        generator = torch.Generator().manual_seed(seed)
        self.guests = torch.randint(0, guests, (count,), generator=generator)
        self.rooms = (self.guests * 7 + torch.randint(0, 12, (count,), generator=generator)) % rooms
        self.facts = torch.randn(count, facts, generator=generator)

    def __len__(self):
        return len(self.guests)

    def __getitems__(self, rows):
        return self.guests[rows], self.rooms[rows], self.facts[rows]


def as_it_is(batch):
    return batch


class Towers(nn.Module):
    def __init__(self, guests, rooms, facts, dim, hidden):
        super().__init__()
        self.guests, self.rooms = nn.Embedding(guests, dim), nn.Embedding(rooms, dim)
        self.of_guest = nn.Sequential(
            nn.Linear(dim + facts, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )
        self.of_room = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.heat = nn.Parameter(torch.tensor(2.0))

    def forward(self, guests, rooms, facts):
        guest = F.normalize(self.of_guest(torch.cat([self.guests(guests), facts], 1)), dim=1)
        room = F.normalize(self.of_room(self.rooms(rooms)), dim=1)
        return self.heat.exp() * guest @ room.T


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guests", type=int, default=2500)
    parser.add_argument("--rooms", type=int, default=1500)
    parser.add_argument("--facts", type=int, default=16)
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 352, 384))
    parser.add_argument("--batch", type=int, default=draw("batch", 416, 448))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = Towers(args.guests, args.rooms, args.facts, args.dim, args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    data = Stays(160_000, args.guests, args.rooms, args.facts, 1)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True, collate_fn=as_it_is)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        total = torch.zeros((), device=accelerator.device)
        for guests, rooms, facts in loader:
            logits = model(guests, rooms, facts)
            same = rooms.unsqueeze(0) == rooms.unsqueeze(1)
            same.fill_diagonal_(False)
            loss = F.cross_entropy(logits.masked_fill(same, -1e4), torch.arange(len(rooms)))
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        mean = accelerator.reduce(total / len(loader), "mean")
        accelerator.print(f"epoch {epoch}: {mean.item():.4f}")
    accelerator.wait_for_everyone()
    accelerator.save(accelerator.get_state_dict(model), "towers.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
