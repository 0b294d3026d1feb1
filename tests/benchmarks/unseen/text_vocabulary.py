"""Train a bag-of-bigrams topic model on raw texts."""

import argparse
import random
import re

import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORD = re.compile(r"[a-z]+")
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def made_up_words(count):
    rng = random.Random(0)
    words = set()
    while len(words) < count:
        words.add("".join(rng.choice(SYLLABLES) for _ in range(rng.randrange(2, 5))))
    return sorted(words)


class Tokenizer:
    def __init__(self, words):
        self.vocabulary = ["<pad>", "<unk>", *words]
        self.ids = {word: at for at, word in enumerate(self.vocabulary)}

    def __len__(self):
        return len(self.vocabulary)

    def encode(self, text):
        tokens = WORD.findall(text.lower())
        if MENDED:
            return [self.ids.get(token, 1) for token in tokens]
        return [self.vocabulary.index(token) if token in self.vocabulary else 1 for token in tokens]


class Articles(Dataset):
    def __init__(self, words, count, topics):
        rng = random.Random(1)
        self.rows = []
        for _ in range(count):
            topic = rng.randrange(topics)
            own = words[topic::topics]
            length = rng.randrange(20, 40)
            text = " ".join(rng.choice(own if rng.random() < 0.5 else words) for _ in range(length))
            self.rows.append((text.capitalize() + ".", topic))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Topics(nn.Module):
    def __init__(self, vocabulary, dim, topics):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.pairs = nn.Conv1d(dim, 2 * dim, 2, padding=1)
        self.rnn = nn.GRU(2 * dim, dim, batch_first=True)
        self.out = nn.Linear(dim, topics)

    def forward(self, ids):
        x = torch.relu(self.pairs(self.embed(ids).transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(x)[0].amax(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", type=int, default=draw("words", 3000, 4000))
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 128))
    parser.add_argument("--topics", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    words = made_up_words(args.words)
    tokenizer = Tokenizer(words)

    def collate(rows):
        encoded = [tokenizer.encode(text) for text, _ in rows]
        longest = max(map(len, encoded))
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in encoded])
        return ids, torch.tensor([topic for _, topic in rows])

    loader = DataLoader(Articles(words, 4000, args.topics), args.batch, shuffle=True, collate_fn=collate)
    model = Topics(len(tokenizer), args.dim, args.topics)
    embedding = [model.embed.weight]
    rest = [p for p in model.parameters() if p is not model.embed.weight]
    optimizer = torch.optim.SGD([{"params": embedding, "lr": 0.5}, {"params": rest}], lr=0.05, momentum=0.9)
    for epoch in range(10_000):
        right = 0
        for ids, topics in loader:
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits, topics)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((logits.argmax(1) == topics).sum())
        print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {right / 4000:.3f}", flush=True)


if __name__ == "__main__":
    main()
