"""Kinds of pages in a knowledge graph with three relations; the whole graph is one batch."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


class Relational(nn.Module):
    def __init__(self, before, after, relations):
        super().__init__()
        self.own = nn.Linear(before, after)
        self.of = nn.ModuleList(nn.Linear(before, after, bias=False) for _ in range(relations))

    def forward(self, x, links):
        found = self.own(x)
        for linear, link in zip(self.of, links, strict=True):
            found = found + torch.sparse.mm(link, linear(x))
        return found


class RGCN(nn.Module):
    def __init__(self, features, width, classes, relations):
        super().__init__()
        self.first = Relational(features, width, relations)
        self.second = Relational(width, width, relations)
        self.head = nn.Linear(width, classes)

    def forward(self, x, links):
        x = F.dropout(F.relu(self.first(x, links)), 0.3, self.training)
        return self.head(F.relu(self.second(x, links)))


def knowledge(pages, features, classes, relations):
    generator = torch.Generator().manual_seed(3)
    kinds = torch.randint(0, classes, (pages,), generator=generator)
    x = torch.randn(pages, features, generator=generator)
    x[:, :classes] += 0.6 * F.one_hot(kinds, classes)
    links = []
    for _ in range(relations):
        edges = torch.randint(0, pages, (2, 6 * pages), generator=generator)
        near = torch.rand(6 * pages, generator=generator) < 0.15
        edges = edges[:, near | (kinds[edges[0]] == kinds[edges[1]])]
        degree = torch.zeros(pages).index_add(0, edges[0], torch.ones(edges.shape[1])).clamp(min=1)
        link = torch.sparse_coo_tensor(edges, 1 / degree[edges[0]], (pages, pages)).coalesce()
        links.append(link.to_sparse_csr())
    return x, links, kinds, torch.rand(pages, generator=generator) < 0.5


@torch.no_grad()
def accuracy(model, x, links, kinds, where):
    model.eval()
    right = (model(x, links).argmax(1) == kinds)[where].float().mean().item()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=draw("pages", 3000, 3400))
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 56, 64))
    parser.add_argument("--classes", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    x, links, kinds, known = knowledge(args.pages, args.features, args.classes, 3)
    model = RGCN(args.features, args.width, args.classes, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3, fused=True)
    for step in range(1, args.steps + 1):
        loss = F.cross_entropy(model(x, links)[known], kinds[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 75 == 0:
            held_out = accuracy(model, x, links, kinds, ~known)
            print(f"step {step}: {loss.item():.4f}, held out {held_out:.3f}", flush=True)


if __name__ == "__main__":
    main()
