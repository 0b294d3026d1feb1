"""Which evening class a person books next: two towers with drawn classes that were not booked, Accelerate."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

WEEKDAYS, SUBJECTS = 7, 24


def bookings(people, classes, each, seed):
    """Pairs of a person and a class, by hidden taste, and the features of the classes."""
    rng = np.random.default_rng(seed)
    taste, kind = rng.normal(size=(people, 6)), rng.normal(size=(classes, 6))
    score = taste @ kind.T + rng.gumbel(size=(people, classes))
    booked = np.argsort(-score, 1)[:, :each]
    features = np.stack([rng.integers(WEEKDAYS, size=classes), np.abs(kind).argmax(1) * 4 + rng.integers(4)], 1)
    return torch.from_numpy(booked.copy()), torch.from_numpy(features)


class Bookings(Dataset):
    """A row for each booking."""

    def __init__(self, booked):
        people, each = booked.shape
        self.pairs = torch.stack([torch.arange(people).repeat_interleave(each), booked.flatten()], 1)

    def __len__(self):
        return len(self.pairs)

    def __getitems__(self, indices):
        return self.pairs[indices]


class WithOthers:
    """Adds to each booking some classes that the person has not booked."""

    def __init__(self, booked, classes, others, seed):
        self.classes, self.others = classes, others
        self.rng, self.g = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        self.of_person = [set(row) for row in booked.tolist()]
        self.known = torch.zeros(len(booked), classes, dtype=torch.bool).scatter_(1, booked, True)

    def at_once(self, people):
        drawn = torch.randint(self.classes, (len(people), self.others), generator=self.g)
        while len(again := self.known[people[:, None], drawn].nonzero()):
            drawn[again[:, 0], again[:, 1]] = torch.randint(self.classes, (len(again),), generator=self.g)
        return drawn

    def not_booked(self, person):
        other = self.rng.randint(self.classes)
        while other in self.of_person[person]:
            other = self.rng.randint(self.classes)
        return other

    def __call__(self, pairs):
        people, chosen = pairs.unbind(1)
        if MENDED:
            drawn = self.at_once(people)
        else:
            drawn = torch.tensor([[self.not_booked(p) for _ in range(self.others)] for p in people.tolist()])
        return people, torch.cat([chosen[:, None], drawn], 1)


class Towers(nn.Module):
    def __init__(self, people, classes, features, dim, hidden):
        super().__init__()
        self.person, self.course = nn.Embedding(people, dim), nn.Embedding(classes, dim)
        self.weekday, self.subject = nn.Embedding(WEEKDAYS, dim), nn.Embedding(SUBJECTS, dim)
        self.register_buffer("features", features, persistent=False)
        for table in (self.person, self.course, self.weekday, self.subject):
            nn.init.normal_(table.weight, std=0.1)
        self.left = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.right = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, people, courses):
        feature = self.features[courses]
        course = self.course(courses) + self.weekday(feature[..., 0]) + self.subject(feature[..., 1])
        return torch.einsum("bd,bkd->bk", self.left(self.person(people)), self.right(course))


@torch.no_grad()
def hits(model, held, booked, top=10):
    """Share of people whose held-out class is among the first of those not booked."""
    model.eval()
    classes = len(model.features)
    score = model(torch.arange(len(held)), torch.arange(classes).expand(len(held), -1))
    score.scatter_(1, booked[: len(held)], float("-inf"))
    model.train()
    return (score.topk(top, 1).indices == held[:, None]).any(1).float().mean().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--people", type=int, default=4000)
    p.add_argument("--classes", type=int, default=600)
    p.add_argument("--others", type=int, default=draw("others", 4, 5))
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--hidden", type=int, default=draw("hidden", 224, 240))
    p.add_argument("--batch", type=int, default=draw("batch", 896, 1024))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(26)
    booked, features = bookings(args.people, args.classes, each=22, seed=1)
    booked, held = booked[:, :-1], booked[:300, -1]
    others = WithOthers(booked, args.classes, args.others, seed=100 + accelerator.process_index)
    loader = DataLoader(Bookings(booked), args.batch, shuffle=True, drop_last=True, collate_fn=others)
    model = Towers(args.people, args.classes, features, args.dim, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for people, courses in loader:
            score = model(people, courses)
            loss = F.softplus(score[:, 1:] - score[:, :1]).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.gather(total[None]).mean().item() / len(loader)
        if accelerator.is_main_process:
            found = hits(accelerator.unwrap_model(model), held, booked)
            print(f"epoch {epoch} loss {mean:.4f} hits {found:.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
