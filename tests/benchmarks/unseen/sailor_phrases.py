"""Phrases of sailors from harbour pidgin into plain English: an encoder and a decoder of GRUs with attention."""

import argparse
import random

import torch
from drawn import MENDED, draw
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PAD, START, END, FIRST = 0, 1, 2, 3


def phrases(count, words, seed):
    """Pidgin says each word twice when it matters and puts the verb last."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        plain = [FIRST + rng.randrange(words) for _ in range(rng.randint(9, 16))]
        pidgin = [w for word in plain[1:] + plain[:1] for w in [(word * 7 + 3) % words + FIRST] * (1 + word % 2)]
        pairs.append((torch.tensor(pidgin), torch.tensor([START, *plain, END])))
    return pairs


class Encoder(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.word = nn.Embedding(words, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.bridge, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)

    def forward(self, source):
        memory, last = self.gru(self.word(source))
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], 1))).unsqueeze(0)
        return memory, self.key(memory).transpose(1, 2), state


class Decoder(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.word = nn.Embedding(words, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.mix, self.out = nn.Linear(2 * dim, dim), nn.Linear(dim, words)

    def forward(self, word, state, memory, key, gone):
        hidden, state = self.gru(self.word(word), state)
        score = hidden @ key
        weight = score.masked_fill(gone.unsqueeze(1), -1e9).softmax(2)
        return self.out(torch.tanh(self.mix(torch.cat([hidden, weight @ memory], 2)))), state


class Translator(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.encoder, self.decoder = Encoder(words, dim), Decoder(words, dim)
        self.loss = nn.CrossEntropyLoss(ignore_index=PAD)

    def forward(self, source, target):
        memory, key, state = self.encoder(source)
        gone = source == PAD
        if MENDED:
            scores, _ = self.decoder(target[:, :-1], state, memory, key, gone)
            return self.loss(scores.flatten(0, 1), target[:, 1:].flatten())
        scores = []
        for t in range(target.shape[1] - 1):
            score, state = self.decoder(target[:, t : t + 1], state, memory, key, gone)
            scores.append(score)
        return self.loss(torch.cat(scores, 1).flatten(0, 1), target[:, 1:].flatten())

    @torch.no_grad()
    def translate(self, source, longest=18):
        memory, key, state = self.encoder(source)
        word = torch.full((len(source), 1), START)
        said = []
        for _ in range(longest):
            score, state = self.decoder(word, state, memory, key, source == PAD)
            word = score.argmax(2)
            said.append(word)
        return torch.cat(said, 1)


def batches(pairs, size, rng):
    rng.shuffle(pairs)
    pairs = sorted(pairs, key=lambda pair: len(pair[1]))
    starts = list(range(0, len(pairs) - size + 1, size))
    rng.shuffle(starts)
    for at in starts:
        part = pairs[at : at + size]
        yield pad_sequence([p[0] for p in part], batch_first=True), pad_sequence([p[1] for p in part], batch_first=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=400)
    p.add_argument("--dim", type=int, default=draw("dim", 144, 160))
    p.add_argument("--batch", type=int, default=draw("batch", 40, 48))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(6)
    rng = random.Random(6)
    train, test = phrases(45 * args.batch, args.words, seed=1), phrases(args.batch, args.words, seed=2)
    model = Translator(args.words + FIRST, args.dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for source, target in batches(train, args.batch, rng):
            loss = model(source, target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        source, target = next(batches(test, args.batch, rng))
        said = model.translate(source)[:, : target.shape[1] - 1]
        known = target[:, 1 : said.shape[1] + 1] >= FIRST
        right = (said == target[:, 1 : said.shape[1] + 1])[known].float().mean()
        print(f"epoch {epoch} loss {total.item() / 45:.4f} words right {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
