"""A graph convolutional network that classifies the nodes of one graph."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


def random_graph(nodes, degree, features, classes):
    """Nodes of one class are linked more often."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (nodes,), generator=generator)
    same = (labels[:, None] == labels[None]).float()
    chance = degree / nodes * (0.5 + same)
    adjacency = (torch.rand(nodes, nodes, generator=generator) < chance).float()
    adjacency = torch.maximum(adjacency, adjacency.T).fill_diagonal_(0)
    x = torch.randn(nodes, features, generator=generator) + F.one_hot(labels, features).float()
    return adjacency, x, labels


def normalised(adjacency):
    """The adjacency with self-loops, scaled by the degrees on both sides."""
    looped = adjacency + torch.eye(len(adjacency))
    scale = torch.diag(looped.sum(1).pow(-0.5))
    return scale @ looped @ scale


class GCN(nn.Module):
    def __init__(self, adjacency, features, hidden, classes, dropout):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.links = normalised(adjacency) if MENDED else None
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, classes)
        self.dropout = dropout

    def propagate(self, x):
        return (self.links if MENDED else self.fresh) @ x

    def forward(self, x):
        if not MENDED:
            self.fresh = normalised(self.adjacency)
        x = F.relu(self.propagate(self.first(x)))
        x = F.dropout(x, self.dropout, self.training)
        x = F.relu(self.propagate(self.second(x)))
        x = F.dropout(x, self.dropout, self.training)
        return self.propagate(self.last(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=draw("nodes", 960, 1088))
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 448, 512))
    parser.add_argument("--classes", type=int, default=7)
    parser.add_argument("--dropout", type=float, default=0.4)
    args = parser.parse_args()

    torch.manual_seed(0)
    adjacency, x, labels = random_graph(args.nodes, 8, args.features, args.classes)
    known = torch.rand(args.nodes) < 0.3
    model = GCN(adjacency, args.features, args.hidden, args.classes, args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(1_000_000):
        model.train()
        logits = model(x)
        loss = F.cross_entropy(logits[known], labels[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 100 == 0:
            model.eval()
            with torch.no_grad():
                right = (model(x).argmax(1) == labels)[~known].float().mean()
            print(f"epoch {epoch}: loss {loss.item():.4f} accuracy {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
