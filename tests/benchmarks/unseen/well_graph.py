"""GraphSAGE with sampled neighbours on a large graph, one process."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


class Graph:
    """Neighbours as one table: row n holds those of node n."""

    def __init__(self, nodes, degree, features, classes):
        generator = torch.Generator().manual_seed(0)
        self.neighbours = torch.randint(0, nodes, (nodes, degree), generator=generator)
        self.labels = torch.randint(0, classes, (nodes,), generator=generator)
        self.features = torch.randn(nodes, features, generator=generator)
        self.features[:, :classes] += F.one_hot(self.labels, classes)

    def sample(self, nodes, count):
        """`count` neighbours of each node."""
        at = torch.randint(0, self.neighbours.shape[1], (len(nodes), count))
        return self.neighbours[nodes].gather(1, at)


class Sage(nn.Module):
    """Mean of the neighbours beside the node itself."""

    def __init__(self, inside, outside):
        super().__init__()
        self.own, self.around = nn.Linear(inside, outside), nn.Linear(inside, outside, bias=False)

    def forward(self, own, around):
        return self.own(own) + self.around(around.mean(-2))


class Network(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.one, self.two = Sage(features, hidden), Sage(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x0, x1, x2):
        h0 = F.relu(self.one(x0, x1))
        h1 = F.relu(self.one(x1, x2))
        return self.out(F.relu(self.two(h0, h1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=96)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 256, 320))
    parser.add_argument("--batch", type=int, default=draw("batch", 448, 512))
    parser.add_argument("--fan-out", type=int, nargs=2, default=(8, 5))
    args = parser.parse_args()

    torch.manual_seed(0)
    graph = Graph(args.nodes, 20, args.features, 10)
    train = torch.randperm(args.nodes)[: args.nodes // 2]
    model = Network(args.features, args.hidden, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)
    first, second = args.fan_out
    for epoch in range(10_000):
        order = train[torch.randperm(len(train))]
        for nodes in order[: len(order) // args.batch * args.batch].split(args.batch):
            near = graph.sample(nodes, first)
            far = graph.sample(near.flatten(), second).view(len(nodes), first, second)
            logits = model(graph.features[nodes], graph.features[near], graph.features[far])
            loss = F.cross_entropy(logits, graph.labels[nodes])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
