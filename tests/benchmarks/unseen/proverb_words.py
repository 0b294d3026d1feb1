"""Word classes in proverbs: a bidirectional LSTM tags each word, plain loop with padded batches."""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD = 0
TAGS = ["<pad>", "noun", "verb", "adjective", "article", "pronoun", "preposition", "conjunction", "stop"]


class Proverbs(Dataset):
    """Words of a class have neighbouring numbers; some belong to two classes, by the tag before."""

    def __init__(self, count, shortest, longest, each, seed):
        rng = random.Random(seed)
        self.samples = []
        for _ in range(count):
            tags, words, before = [], [], len(TAGS) - 1
            for _ in range(int(shortest + (longest - shortest) * rng.random() ** 2)):
                tag = (before * 3 + rng.choice([1, 1, 2])) % (len(TAGS) - 1) + 1
                shared = rng.random() < 0.15
                words.append(1 + (0 if shared else tag) * each + rng.randrange(each))
                tags.append(tag)
                before = tag
            self.samples.append((torch.tensor(words), torch.tensor(tags)))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def collate(samples):
    words, tags = zip(*samples, strict=True)
    lengths = torch.tensor([len(w) for w in words])
    return pad_sequence(words, True, PAD), pad_sequence(tags, True, PAD), lengths


class Tagger(nn.Module):
    def __init__(self, words, dim, hidden):
        super().__init__()
        self.embed = nn.Embedding(words, dim, padding_idx=PAD)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])


def tag_loss(logits, tags):
    ignored = PAD if MENDED else -100
    return F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=ignored)


def tag_accuracy(logits, tags):
    right = logits.argmax(-1) == tags
    return right[tags != PAD].float().mean() if MENDED else right.float().mean()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--each", type=int, default=120, help="words of a class")
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--hidden", type=int, default=draw("hidden", 56, 64))
    ap.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()

    torch.manual_seed(11)
    train = Proverbs(args.batch * 55, 6, 48, args.each, seed=1)
    test = Proverbs(128, 6, 48, args.each, seed=2)
    loader = DataLoader(train, args.batch, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(test, 64, collate_fn=collate)
    model = Tagger(1 + len(TAGS) * args.each, args.dim, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        total = 0.0
        for words, tags, lengths in loader:
            loss = tag_loss(model(words, lengths), tags)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            found = [tag_accuracy(model(words, lengths), tags) for words, tags, lengths in test_loader]
        model.train()
        print(f"epoch {epoch} loss {total / len(loader):.4f} accuracy {torch.stack(found).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
