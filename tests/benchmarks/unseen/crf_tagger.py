"""BiLSTM-CRF for named entities, after the well-known tutorial, in batches."""

import argparse

import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KINDS = ("person", "place", "firm", "drug", "dose", "date", "law", "work")
TAGS = ["O"] + [f"{at}-{kind}" for kind in KINDS for at in "BI"]
WORDS = 3000


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.tags = tags
        self.transitions = nn.Parameter(0.1 * torch.randn(tags, tags))  # to, from
        self.start = nn.Parameter(torch.zeros(tags))

    def partition(self, emissions):
        """Log of the sum over all paths."""
        alphas = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            if MENDED:
                alphas = torch.logsumexp(alphas.unsqueeze(1) + self.transitions, 2) + emissions[:, t]
                continue
            following = []
            for tag in range(self.tags):
                scores = alphas + self.transitions[tag] + emissions[:, t, tag].unsqueeze(1)
                following.append(torch.logsumexp(scores, dim=1))
            alphas = torch.stack(following, dim=1)
        return torch.logsumexp(alphas, 1)

    def score(self, emissions, tags):
        """Score of the given path."""
        steps = self.transitions[tags[:, 1:], tags[:, :-1]].sum(1)
        return self.start[tags[:, 0]] + steps + emissions.gather(2, tags.unsqueeze(2)).sum((1, 2))

    def forward(self, emissions, tags):
        return (self.partition(emissions) - self.score(emissions, tags)).mean()


class Tagger(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.3)
        self.emit = nn.Linear(2 * hidden, len(TAGS))
        self.crf = CRF(len(TAGS))

    def forward(self, words, tags):
        features, _ = self.lstm(self.embed(words))
        return self.crf(self.emit(self.drop(features)), tags)


def sentences(count, length):
    words = torch.randint(1, WORDS, (count, length))
    tags = words % len(TAGS)
    return TensorDataset(words, torch.where(torch.rand(count, length) < 0.6, 0, tags))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--length", type=int, default=draw("length", 20, 24))
    parser.add_argument("--hidden", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(1)
    model = Tagger(100, args.hidden)
    loader = DataLoader(sentences(2400, args.length), args.batch, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        total = 0.0
        for words, tags in loader:
            optimizer.zero_grad()
            loss = model(words, tags)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
