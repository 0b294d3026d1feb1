"""Which posts of a forum spread a rumour: graph convolutions over who answers whom, the whole graph in each step."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


def forum(posts, answers, features, seed):
    """Features, rumour or not, and edges; rumours answer rumours more often."""
    g = torch.Generator().manual_seed(seed)
    label = (torch.rand(posts, generator=g) < 0.3).long()
    source = torch.randint(posts, (answers,), generator=g)
    target = torch.randint(posts, (answers,), generator=g)
    kept = (label[source] == label[target]) | (torch.rand(answers, generator=g) < 0.3)
    centre = torch.randn(2, features, generator=g)
    x = 0.3 * centre[label] + torch.randn(posts, features, generator=g)
    return x, label, torch.stack([source[kept], target[kept]])


def with_self_loops(edges, nodes):
    """Each node once to itself, and no other loops."""
    others = edges[:, edges[0] != edges[1]]
    own = torch.arange(nodes).repeat(2, 1)
    return torch.cat([others, own], 1)


def gcn_norm(edges, nodes):
    edges = with_self_loops(edges, nodes)
    source, target = edges
    degree = torch.zeros(nodes).index_add_(0, target, torch.ones(len(target)))
    root = degree.pow(-0.5)
    root[root == float("inf")] = 0.0
    return edges, root[source] * root[target]


class GraphConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(cin, cout, bias=False)
        self.bias = nn.Parameter(torch.zeros(cout))
        self.cached = None

    def forward(self, x, edges):
        if not MENDED or self.cached is None:
            self.cached = gcn_norm(edges, len(x))
        (source, target), weight = self.cached
        x = self.lin(x)
        message = x[source] * weight.unsqueeze(1)
        return torch.zeros_like(x).index_add(0, target, message) + self.bias


class RumourNet(nn.Module):
    def __init__(self, features, hidden, layers):
        super().__init__()
        sizes = [features] + [hidden] * (layers - 1)
        self.convs = nn.ModuleList(GraphConv(a, b) for a, b in zip(sizes, [*sizes[1:], 2], strict=True))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x, edges):
        for conv in self.convs[:-1]:
            x = self.dropout(F.relu(conv(x, edges)))
        return self.convs[-1](x, edges)


@torch.no_grad()
def accuracy(model, x, edges, label, mask):
    model.eval()
    right = (model(x, edges).argmax(1) == label)[mask].float().mean()
    model.train()
    return right.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posts", type=int, default=9000)
    parser.add_argument("--answers", type=int, default=draw("answers", 150_000, 170_000))
    parser.add_argument("--features", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 16, 20))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=120)
    args = parser.parse_args()

    torch.manual_seed(12)
    x, label, edges = forum(args.posts, args.answers, args.features, seed=5)
    split = torch.rand(args.posts)
    train, held_out = split < 0.6, split > 0.8
    model = RumourNet(args.features, args.hidden, args.layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(1, args.epochs + 1):
        logits = model(x, edges)
        loss = F.cross_entropy(logits[train], label[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 30 == 0:
            right = accuracy(model, x, edges, label, held_out)
            print(f"epoch {epoch} loss {loss.item():.4f} held out {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
