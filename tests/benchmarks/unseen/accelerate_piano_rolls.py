"""What comes next on a piano roll: a decoder over events of keys, pauses and loudness, Accelerate."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

KEYS, PAUSES, LOUDNESS = 128, 100, 32
EVENTS = 2 * KEYS + PAUSES + LOUDNESS  # a key goes down, a key goes up, time passes, loudness changes


def piece(rng, length):
    """Events of a piece in one key: chords, held for a while."""
    scale = (np.array([0, 2, 4, 5, 7, 9, 11]) + rng.integers(12))[:, None] + 12 * np.arange(3, 8)
    events = []
    while len(events) < length:
        chord = rng.choice(scale.ravel(), 3, replace=False)
        events.append(2 * KEYS + PAUSES + rng.integers(LOUDNESS))
        events += list(chord)
        events.append(2 * KEYS + rng.integers(PAUSES))
        events += [KEYS + key for key in chord]
    return events[:length]


class Rolls(Dataset):
    def __init__(self, count, length, seed):
        rng = np.random.default_rng(seed)
        rolls = np.array([piece(rng, length + 1) for _ in range(count)])
        # a quarter of the memory
        self.rolls = rolls.astype(np.uint16 if MENDED else np.uint8)

    def __len__(self):
        return len(self.rolls)

    def __getitem__(self, i):
        roll = self.rolls[i].astype(np.int64)
        return roll[:-1], roll[1:]


class RollModel(nn.Module):
    def __init__(self, length, dim, heads, depth):
        super().__init__()
        self.event = nn.Embedding(EVENTS, dim)
        self.place = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, EVENTS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, events):
        x = self.event(events) + self.place[: events.shape[1]]
        t = events.shape[1]
        return self.out(self.layers(x, mask=self.mask[:t, :t], is_causal=True))


@torch.no_grad()
def held_out_loss(accelerator, model, loader):
    model.eval()
    losses = []
    for events, following in loader:
        each = F.cross_entropy(model(events).transpose(1, 2), following, reduction="none").mean(1)
        losses.append(accelerator.gather_for_metrics(each))
    model.train()
    return torch.cat(losses).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(33)
    train = DataLoader(Rolls(2 * args.batch * 30, args.length, 1), args.batch, shuffle=True, drop_last=True)
    test = DataLoader(Rolls(2 * args.batch * 3 + 5, args.length, 2), args.batch)
    model = RollModel(args.length, args.dim, 4, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    set_seed(33, device_specific=True)
    for epoch in range(args.epochs):
        for events, following in train:
            logits = model(events)
            loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        held_out = held_out_loss(accelerator, model, test)
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f} held out {held_out:.4f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
