"""Tell the language of old place names, letter by letter, with Accelerate; names of like length share a batch."""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

LANGUAGES = 12
LETTERS = 40


class Names(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, dim, padding_idx=0)
        self.memory = nn.GRU(dim, hidden, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, LANGUAGES)

    def forward(self, names, lengths):
        packed = pack_padded_sequence(self.letters(names), lengths, batch_first=True, enforce_sorted=False)
        _, last = self.memory(packed)
        return self.head(torch.cat([last[-2], last[-1]], 1))


class ByLength:
    """Batches of neighbours in length, in an order that is drawn anew for each epoch."""

    def __init__(self, names, batch, seed):
        self.names, self.batch, self.rng = names, batch, random.Random(seed)

    def __len__(self):
        return len(self.names) // self.batch

    def __iter__(self):
        noisy = sorted(range(len(self.names)), key=lambda at: len(self.names[at][0]) + self.rng.random())
        batches = [noisy[at * self.batch : (at + 1) * self.batch] for at in range(len(self))]
        # two that follow each other go to the two ranks
        couples = [batches[at : at + 2] for at in range(0, len(batches) - 1, 2)]
        self.rng.shuffle(couples)
        for couple in couples:
            yield from couple


def collate(rows):
    names, languages = zip(*rows, strict=True)
    lengths = torch.tensor([len(name) for name in names])
    return pad_sequence(names, batch_first=True), lengths, torch.tensor(languages)


def place_names(count):
    generator = torch.Generator().manual_seed(23)
    typical = torch.rand(LANGUAGES, LETTERS - 1, generator=generator) ** 6
    names = []
    for _ in range(count):
        language = int(torch.randint(0, LANGUAGES, (), generator=generator))
        length = int(torch.randint(6, 36, (), generator=generator))
        names.append((torch.multinomial(typical[language], length, True, generator=generator) + 1, language))
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 96, 104))
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    names = place_names(6000)
    loader = DataLoader(names, batch_sampler=ByLength(names, args.batch, 7), collate_fn=collate)
    model = Names(args.dim, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for letters, lengths, languages in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(letters, lengths), languages)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        accelerator.print(f"epoch {epoch}: {accelerator.reduce(total / len(loader), 'mean').item():.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
