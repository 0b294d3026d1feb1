"""Skip-gram word vectors with negative sampling and sparse gradients."""

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn

WORDS, DIM = 40_000, draw("dim", 128, 160)
BATCH, NEGATIVES, WINDOW = draw("batch", 2048, 2560), 6, 4


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Embedding(WORDS, DIM, sparse=True)
        self.context = nn.Embedding(WORDS, DIM, sparse=True)
        nn.init.uniform_(self.centre.weight, -0.5 / DIM, 0.5 / DIM)
        nn.init.zeros_(self.context.weight)

    def forward(self, centre, context, negative):
        v = self.centre(centre)
        positive = (v * self.context(context)).sum(1)
        others = torch.einsum("bd,nd->bn", v, self.context(negative))
        return -(F.logsigmoid(positive).mean() + NEGATIVES * F.logsigmoid(-others).mean())


class Corpus:
    def __init__(self, length, seed=0):
        generator = torch.Generator().manual_seed(seed)
        ranks = torch.rand(length, generator=generator).pow(4) * WORDS
        topics = torch.randint(0, 40, (length // 50 + 1,), generator=generator).repeat_interleave(50)[:length]
        self.text = (ranks.long() // 40 * 40 + topics).clamp(max=WORDS - 1)
        chances = torch.bincount(self.text, minlength=WORDS).float().pow(0.75)
        self.cumulative = (chances / chances.sum()).cumsum(0)

    def batch(self):
        at = torch.randint(WINDOW, len(self.text) - WINDOW, (BATCH,))
        away = torch.randint(1, WINDOW + 1, (BATCH,)) * (2 * torch.randint(0, 2, (BATCH,)) - 1)
        negative = torch.searchsorted(self.cumulative, torch.rand(64 * NEGATIVES)).clamp(max=WORDS - 1)
        return self.text[at], self.text[at + away], negative


def main():
    torch.manual_seed(0)
    corpus = Corpus(1_000_000)
    model = SkipGram()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=2e-3)
    total = torch.zeros(())
    for step in range(1, 1_000_001):
        centre, context, negative = corpus.batch()
        loss = model(centre, context, negative)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 200 == 0:
            print(f"{step}: {total.item() / 200:.4f}", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()
