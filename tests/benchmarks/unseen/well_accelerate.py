"""Translate made-up sentences with an encoder-decoder: Accelerate, accumulated gradients."""

import argparse

import torch
from accelerate import Accelerator
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reversed(Dataset):
    """Source and target: the target is the source backwards, with another alphabet."""

    def __init__(self, count, length, vocabulary):
        generator = torch.Generator().manual_seed(0)
        self.source = torch.randint(2, vocabulary, (count, length), generator=generator)
        body = (self.source.flip(1) * 7) % vocabulary
        self.target = torch.cat([torch.ones(count, 1, dtype=torch.long), body], 1)

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.source[index], self.target[index]


class Translator(nn.Module):
    def __init__(self, vocabulary, dim, layers, length):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, dim), nn.Embedding(vocabulary, dim)
        self.place = nn.Parameter(0.02 * torch.randn(length + 1, dim))
        self.net = nn.Transformer(dim, 4, layers, layers, 2 * dim, dropout=0.0, batch_first=True)
        self.out = nn.Linear(dim, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, source, target):
        a = self.source(source) + self.place[: source.shape[1]]
        b = self.target(target) + self.place[: target.shape[1]]
        return self.out(self.net(a, b, tgt_mask=self.mask[: b.shape[1], : b.shape[1]]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=800)
    parser.add_argument("--length", type=int, default=draw("length", 24, 32))
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 16))
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    torch.manual_seed(0)
    loader = DataLoader(Reversed(6000, args.length, args.vocabulary), args.batch, shuffle=True, drop_last=True)
    model = Translator(args.vocabulary, args.dim, 1, args.length)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 100)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(10_000):
        for source, target in loader:
            with accelerator.accumulate(model):
                logits = model(source, target[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        whole = accelerator.reduce(loss.detach(), reduction="mean")
        accelerator.print(f"epoch {epoch}: {whole.item():.4f}")


if __name__ == "__main__":
    main()
