"""Field of a paper from what it cites: GraphSAGE with neighbours drawn for each batch, plain loop."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader

FIELDS = 12


class Library:
    """Citations as rows of neighbours: those of paper i are from start[i] to start[i + 1]."""

    def __init__(self, papers, features, seed):
        g = torch.Generator().manual_seed(seed)
        self.field = torch.randint(FIELDS, (papers,), generator=g)
        degree = torch.randint(2, 30, (papers,), generator=g)
        self.start = torch.cat([torch.zeros(1, dtype=torch.long), degree.cumsum(0)])
        of = torch.arange(papers).repeat_interleave(degree)
        by_field = self.field.argsort()
        first = torch.searchsorted(self.field[by_field], torch.arange(FIELDS + 1))
        low, high = first[self.field[of]], first[self.field[of] + 1]
        same = by_field[(low + torch.rand(len(of), generator=g) * (high - low)).long()]
        any_one = torch.randint(papers, (len(of),), generator=g)
        self.cited = torch.where(torch.rand(len(of), generator=g) < 0.4, same, any_one)
        centres = torch.randn(FIELDS, features, generator=g)
        self.x = 0.25 * centres[self.field] + torch.randn(papers, features, generator=g)

    def neighbours(self, papers, count):
        """So many of each, by chance, with those drawn again that come twice."""
        low = self.start[papers]
        width = self.start[papers + 1] - low
        drawn = (torch.rand(len(papers), count) * width[:, None]).long()
        return self.cited[low[:, None] + drawn]


class Sage(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(features, hidden), nn.Linear(hidden, hidden)])
        self.others = nn.ModuleList([nn.Linear(features, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)])
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, FIELDS)

    def layer(self, at, x, around):
        return F.relu(self.own[at](x) + self.others[at](around.mean(1)))

    def forward(self, x0, x1, x2):
        """Features of the papers, of those around them, of those around these."""
        near = self.layer(0, x1.flatten(0, 1), x2.flatten(0, 1)).unflatten(0, x1.shape[:2])
        here = self.layer(0, x0, x1)
        return self.out(self.norm(self.layer(1, here, near)))


def gathered(library, papers, counts):
    first = library.neighbours(papers, counts[0])
    second = library.neighbours(first.flatten(), counts[1]).view(*first.shape, counts[1])
    return library.x[papers], library.x[first], library.x[second]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--papers", type=int, default=60_000)
    p.add_argument("--features", type=int, default=96)
    p.add_argument("--hidden", type=int, default=draw("hidden", 112, 128))
    p.add_argument("--batch", type=int, default=draw("batch", 576, 640))
    p.add_argument("--counts", type=int, nargs=2, default=[8, 6])
    p.add_argument("--epochs", type=int, default=1)
    args = p.parse_args()

    torch.manual_seed(60)
    library = Library(args.papers, args.features, seed=4)
    order = torch.randperm(args.papers)
    train, test = order[:-1000], order[-1000:]
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True, collate_fn=torch.stack)
    model = Sage(args.features, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        for step, papers in enumerate(loader, 1):
            logits = model(*gathered(library, papers, args.counts))
            loss = F.cross_entropy(logits, library.field[papers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"{epoch} {step} loss {loss.item():.4f}", flush=True)
        model.eval()
        with torch.no_grad():
            logits = torch.cat([model(*gathered(library, part, args.counts)) for part in test.split(250)])
        model.train()
        print(f"{epoch} right {(logits.argmax(1) == library.field[test]).float().mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
