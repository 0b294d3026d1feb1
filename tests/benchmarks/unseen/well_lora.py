"""Low-rank adapters on a frozen language model, one process."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


class LoRA(nn.Module):
    """A frozen linear layer and a low-rank change of it."""

    def __init__(self, layer, rank, alpha=16.0):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.layer(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(b, t, 4, d // 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class Language(nn.Module):
    def __init__(self, vocabulary, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        return self.norm(self.blocks(self.embed(ids))) @ self.embed.weight.T


def adapted(model, rank):
    """Freeze everything; adapters on the queries and values of all blocks."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.q, block.v = LoRA(block.q, rank), LoRA(block.v, rank)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=1200)
    parser.add_argument("--dim", type=int, default=draw("dim", 160, 192))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rank", type=int, default=draw("rank", 4, 8))
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = adapted(Language(args.vocabulary, args.dim, args.layers), args.rank)
    new = [p for p in model.parameters() if p.requires_grad]
    print(f"training {sum(p.numel() for p in new)} parameters", flush=True)
    optimizer = torch.optim.AdamW(new, lr=2e-3)
    for step in range(1_000_000):
        start = torch.randint(0, args.vocabulary, (args.batch, 1))
        ids = (start + 3 * torch.arange(args.length + 1)) % args.vocabulary
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
