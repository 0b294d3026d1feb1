"""Fields of papers from what they cite: two layers over sampled neighbours, with Accelerate."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader

FIELDS = 9


class Citations:
    """Papers with features, and for each the list of those that it cites."""

    def __init__(self, papers, features, seed):
        generator = torch.Generator().manual_seed(seed)
        self.fields = torch.randint(0, FIELDS, (papers,), generator=generator)
        centres = torch.randn(FIELDS, features, generator=generator)
        self.x = centres[self.fields] + 2.5 * torch.randn(papers, features, generator=generator)
        counts = torch.randint(3, 30, (papers,), generator=generator)
        self.begins = F.pad(counts.cumsum(0), (1, 0))
        order = self.fields.argsort()
        of_field = torch.bincount(self.fields, minlength=FIELDS)
        firsts = F.pad(of_field.cumsum(0), (1, 0))[:-1]
        citing = self.fields.repeat_interleave(counts)
        drawn = torch.rand(len(citing), generator=generator)
        alike = order[firsts[citing] + (drawn * of_field[citing]).long()]
        anyone = torch.randint(0, papers, (len(citing),), generator=generator)
        self.cited = torch.where(torch.rand(len(citing), generator=generator) < 0.6, alike, anyone)

    def neighbours(self, papers, count):
        """So many citations of each paper, drawn with replacement."""
        begin, length = self.begins[papers], self.begins[papers + 1] - self.begins[papers]
        at = (torch.rand(*papers.shape, count) * length.unsqueeze(-1)).long()
        return self.cited[begin.unsqueeze(-1) + at]


class Sage(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.of_self, self.of_others = nn.Linear(before, after), nn.Linear(before, after, bias=False)

    def forward(self, x, others):
        return self.of_self(x) + self.of_others(others.mean(-2))


class Reader(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.first, self.second = Sage(features, width), Sage(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, FIELDS)

    def forward(self, x, near, far):
        of_self = F.relu(self.first(x, near))
        of_near = F.relu(self.first(near, far))
        return self.head(F.dropout(F.relu(self.norm(self.second(of_self, of_near))), 0.2, self.training))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--papers", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=96)
    parser.add_argument("--width", type=int, default=draw("width", 112, 128))
    parser.add_argument("--batch", type=int, default=draw("batch", 352, 384))
    parser.add_argument("--near", type=int, default=10)
    parser.add_argument("--far", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    graph = Citations(args.papers, args.features, 5)

    def sample(papers):
        papers = torch.tensor(papers)
        near = graph.neighbours(papers, args.near)
        far = graph.neighbours(near, args.far)
        return graph.x[papers], graph.x[near], graph.x[far], graph.fields[papers]

    loader = DataLoader(range(args.papers), args.batch, shuffle=True, drop_last=True, collate_fn=sample)
    model = Reader(args.features, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=5e-4, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        total, right = torch.zeros(()), torch.zeros((), dtype=torch.long)
        for x, near, far, fields in loader:
            logits = model(x, near, far)
            loss = F.cross_entropy(logits, fields)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
            right += (logits.argmax(1) == fields).sum()
        share = right.item() / (len(loader) * args.batch)
        accelerator.print(f"epoch {epoch}: {total.item() / len(loader):.4f}, right {share:.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
