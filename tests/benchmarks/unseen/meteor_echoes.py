"""Classify radar echoes of meteors (overdense, underdense, ...) with a transformer over echoes of varying length."""

import argparse
import math
import random

import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

KINDS = 8


class Echoes(Dataset):
    def __init__(self, n, shortest, longest, channels=6, seed=13):
        g = torch.Generator().manual_seed(seed)
        self.kind = torch.randint(0, KINDS, (n,), generator=g).tolist()
        lengths = torch.randint(shortest, longest + 1, (n,), generator=g).tolist()
        rate = 0.5 + 4 * torch.rand(KINDS, channels, generator=g)
        wobble = 20 * torch.rand(KINDS, channels, generator=g)
        self.echoes = []
        for kind, length in zip(self.kind, lengths, strict=True):
            t = torch.linspace(0, 1, length).unsqueeze(1)
            clean = torch.exp(-rate[kind] * t) * torch.cos(wobble[kind] * t)
            self.echoes.append(clean + 0.4 * torch.randn(length, channels, generator=g))

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        return self.echoes[i], self.kind[i]


class LengthBatches(Sampler):
    """Batches of about the same length, in random order."""

    def __init__(self, lengths, batch, seed):
        self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batch, self.rng = batch, random.Random(seed)

    def __len__(self):
        return len(self.order) // self.batch

    def __iter__(self):
        starts = [self.batch * i for i in range(len(self))]
        self.rng.shuffle(starts)
        for s in starts:
            yield self.order[s : s + self.batch]


def collate(items):
    echoes, kinds = zip(*items, strict=True)
    lengths = torch.tensor([len(e) for e in echoes])
    return pad_sequence(list(echoes), batch_first=True), lengths, torch.tensor(kinds)


def sinusoids(length, dim):
    """Position encodings of "Attention is all you need"."""
    pe = torch.zeros(length, dim)
    for pos in range(length):
        for i in range(0, dim, 2):
            pe[pos, i] = math.sin(pos / (10000 ** (i / dim)))
            pe[pos, i + 1] = math.cos(pos / (10000 ** (i / dim)))
    return pe


class EchoTransformer(nn.Module):
    def __init__(self, channels, dim, heads, layers, longest):
        super().__init__()
        self.project = nn.Linear(channels, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, KINDS)
        if MENDED:
            self.register_buffer("positions", sinusoids(longest, dim), persistent=False)

    def encode_positions(self, x):
        if MENDED:
            return x + self.positions[: x.shape[1]]
        return x + sinusoids(x.shape[1], x.shape[2]).to(x.device)

    def forward(self, echo, lengths):
        x = self.encode_positions(self.project(echo))
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x.masked_fill(padding.unsqueeze(2), 0).sum(1) / lengths[:, None]
        return self.head(x)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--shortest", type=int, default=24)
    p.add_argument("--longest", type=int, default=draw("longest", 52, 56))
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 30, 32))
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    torch.manual_seed(99)
    data = Echoes(1600, args.shortest, args.longest)
    batches = LengthBatches([len(e) for e in data.echoes], args.batch, seed=1)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=collate)
    model = EchoTransformer(6, args.dim, 4, args.layers, args.longest)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-3, total_steps=args.epochs * len(loader))
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(args.epochs):
        model.train()
        total, right, n = torch.zeros(()), torch.zeros(()), 0
        for echo, lengths, kind in loader:
            opt.zero_grad()
            scores = model(echo, lengths)
            loss = loss_fn(scores, kind)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            schedule.step()
            total += loss.detach()
            right += (scores.argmax(1) == kind).sum()
            n += len(kind)
        print(f"epoch {epoch:2d} loss {total.item() / len(loader):.4f} right {right.item() / n:.3f}", flush=True)


if __name__ == "__main__":
    main()
