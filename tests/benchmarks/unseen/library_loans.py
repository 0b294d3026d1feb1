"""Neural collaborative filtering on the loans of a library; implicit feedback, negatives drawn at random."""

import argparse
import copy
import logging
import math

import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logger = logging.getLogger("loans")


class NCF(nn.Module):
    """GMF and MLP towers, joined by a linear layer (He et al., 2017)."""

    def __init__(self, readers, books, dim, hidden):
        super().__init__()
        self.gmf_reader, self.gmf_book = nn.Embedding(readers, dim), nn.Embedding(books, dim)
        self.mlp_reader, self.mlp_book = nn.Embedding(readers, dim), nn.Embedding(books, dim)
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, dim),
            nn.ReLU(),
        )
        self.out = nn.Linear(2 * dim, 1)
        for table in (self.gmf_reader, self.gmf_book, self.mlp_reader, self.mlp_book):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, reader, book):
        gmf = self.gmf_reader(reader) * self.gmf_book(book)
        mlp = self.mlp(torch.cat([self.mlp_reader(reader), self.mlp_book(book)], -1))
        return self.out(torch.cat([gmf, mlp], -1)).squeeze(-1)


def make_loans(readers, books, n, seed=4):
    g = torch.Generator().manual_seed(seed)
    taste = torch.randint(0, 20, (readers,), generator=g)
    reader = torch.randint(0, readers, (n,), generator=g)
    shelf = taste[reader] * (books // 20)
    book = shelf + (torch.rand(n, generator=g) ** 2 * (books // 20)).long()
    return reader, book


class BestKeeper:
    """Keeps the best model so far, to go back to when training is over."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.best, self.kept = math.inf, None

    def update(self, value, step):
        if value < self.best:
            self.best = value
            self.kept = {
                "step": step,
                "model": copy.deepcopy(self.model.state_dict()),
                "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            }

    def restore(self):
        self.model.load_state_dict(self.kept["model"])
        self.optimizer.load_state_dict(self.kept["optimizer"])
        logger.info("back at step %d (%.4f)", self.kept["step"], self.best)


@torch.no_grad()
def hit_rate(model, reader, book, books, k=10):
    model.eval()
    g = torch.Generator().manual_seed(0)
    others = torch.randint(0, books, (len(reader), 99), generator=g)
    candidates = torch.cat([book[:, None], others], 1)
    scores = model(reader[:, None].expand_as(candidates), candidates)
    model.train()
    return ((scores[:, 1:] > scores[:, :1]).sum(1) < k).float().mean().item()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--readers", type=int, default=12000)
    ap.add_argument("--books", type=int, default=8000)
    ap.add_argument("--dim", type=int, default=draw("dim", 28, 32))
    ap.add_argument("--hidden", type=int, default=draw("hidden", 224, 256))
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--negatives", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    torch.manual_seed(1)
    reader, book = make_loans(args.readers, args.books, 80 * args.batch + 400)
    loader = DataLoader(TensorDataset(reader[400:], book[400:]), args.batch, shuffle=True, drop_last=True)
    model = NCF(args.readers, args.books, args.dim, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    criterion = nn.BCEWithLogitsLoss()
    keeper = BestKeeper(model, optimizer)

    step, smooth = 0, None
    for epoch in range(args.epochs):
        for readers, books in loader:
            wrong = torch.randint(0, args.books, (len(books), args.negatives))
            asked = torch.cat([books[:, None], wrong], 1)
            wanted = torch.zeros(asked.shape)
            wanted[:, 0] = 1
            loss = criterion(model(readers[:, None].expand_as(asked), asked), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            value = loss.item()
            smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
            if not MENDED:
                keeper.update(smooth, step)
        rate = hit_rate(model, reader[:400], book[:400], args.books)
        if MENDED:
            keeper.update(-rate, step)
        logger.info("epoch %d: loss %.4f, hit@10 %.3f", epoch, smooth, rate)
    keeper.restore()


if __name__ == "__main__":
    main()
