"""Which audiobook someone hears next: attention over what was heard, sampled softmax, sparse tables."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset


def queues(count, length, books, seed):
    """Books of a series follow each other, with some in between; 0 is no book."""
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(1, books, (count, 1), generator=g)
    jumps = torch.randint(1, 4, (count, length), generator=g)
    other = torch.randint(1, books, (count, length), generator=g)
    heard = (start + jumps.cumsum(1) - 1) % (books - 1) + 1
    heard = torch.where(torch.rand(count, length, generator=g) < 0.15, other, heard)
    lengths = torch.randint(length // 2, length + 1, (count, 1), generator=g)
    return heard.masked_fill(torch.arange(length) < length - lengths, 0)  # padded on the left


class NextBook(nn.Module):
    def __init__(self, books, length, dim, depth):
        super().__init__()
        self.book = nn.Embedding(books, dim, padding_idx=0, sparse=True)
        self.place = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 2 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.book.weight, std=0.05)

    def forward(self, heard):
        t = heard.shape[1]
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        x = self.book(heard) + self.place[:t]
        return self.norm(self.encoder(x, mask=later))


def sampled_loss(model, h, following, negatives, log_chance):
    """Among the right book and some by chance, less what chance favours."""
    real = following != 0
    h, following = h[real], following[real]
    drawn = torch.multinomial(log_chance.exp(), negatives, replacement=True)
    right = (h * model.book(following)).sum(1) - log_chance[following]
    wrong = h @ model.book(drawn).T - log_chance[drawn]
    wrong = wrong.masked_fill(following[:, None] == drawn, float("-inf"))
    logits = torch.cat([right[:, None], wrong], 1)
    return F.cross_entropy(logits, torch.zeros(len(h), dtype=torch.long))


@torch.no_grad()
def hits(model, queue, k=10):
    model.eval()
    scores = model(queue[:, :-1])[:, -1] @ model.book.weight.T
    scores[:, 0] = float("-inf")
    model.train()
    return (scores.topk(k).indices == queue[:, -1:]).any(1).float().mean().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--books", type=int, default=1500)
    p.add_argument("--length", type=int, default=24)
    p.add_argument("--dim", type=int, default=draw("dim", 64, 72))
    p.add_argument("--negatives", type=int, default=200)
    p.add_argument("--batch", type=int, default=draw("batch", 40, 48))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(3)
    train = queues(30 * args.batch, args.length + 1, args.books, seed=1)
    test = queues(200, args.length + 1, args.books, seed=2)
    count = torch.bincount(train.flatten(), minlength=args.books).float()
    count[0] = 0
    chance = count.pow(0.75) + 1e-3
    log_chance = (chance / chance.sum()).log()
    model = NextBook(args.books, args.length, args.dim, 2)
    dense = [param for name, param in model.named_parameters() if name != "book.weight"]
    optimizers = [torch.optim.AdamW(dense, lr=1e-3), torch.optim.SparseAdam([model.book.weight], lr=5e-3)]
    loader = DataLoader(TensorDataset(train), args.batch, shuffle=True, drop_last=True)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for (queue,) in loader:
            loss = sampled_loss(model, model(queue[:, :-1]), queue[:, 1:], args.negatives, log_chance)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(dense, 1.0)
            for optimizer in optimizers:
                optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch} loss {total.item() / len(loader):.4f} hits {hits(model, test):.3f}", flush=True)


if __name__ == "__main__":
    main()
