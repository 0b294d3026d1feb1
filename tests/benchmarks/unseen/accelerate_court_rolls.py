"""Kind of a case from a court roll with Accelerate: transformer on padded batches, masked mean, gather_for_metrics."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

KINDS, WORDS, PAD = 7, 800, 0


class CourtRolls(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        legal = torch.randn(KINDS, WORDS, generator=torch.Generator().manual_seed(0)).softmax(1)
        self.kind = torch.randint(0, KINDS, (count,), generator=g)
        lengths = torch.randint(36, 49, (count,), generator=g).tolist()
        words = 1 + torch.multinomial(legal[self.kind], 48, replacement=True, generator=g)
        self.rolls = [row[:n].clamp(max=WORDS - 1) for row, n in zip(words, lengths, strict=True)]

    def __len__(self):
        return len(self.rolls)

    def __getitem__(self, i):
        return self.rolls[i], self.kind[i]


def collate(samples):
    rolls, kinds = zip(*samples, strict=True)
    return pad_sequence(rolls, batch_first=True, padding_value=PAD), torch.stack(kinds)


class RollReader(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, dim, padding_idx=PAD), nn.Embedding(48, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, KINDS)

    def forward(self, words):
        real = words != PAD
        x = self.embed(words) + self.place.weight[: words.shape[1]]
        x = self.encoder(x, src_key_padding_mask=~real) * real.unsqueeze(2)
        return self.out(x.sum(1) / real.sum(1, keepdim=True))


def evaluate(accelerator, model, loader):
    model.eval()
    right = count = 0
    with torch.no_grad():
        for words, kind in loader:
            guess, kind = accelerator.gather_for_metrics((model(words).argmax(1), kind))
            right += int((guess == kind).sum())
            count += len(kind)
    model.train()
    return right / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 64, 80))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(8)
    train, test = CourtRolls(2 * args.batch * args.accumulate * 45, seed=1), CourtRolls(90, seed=2)
    loader = DataLoader(train, args.batch, shuffle=True, collate_fn=collate, drop_last=True)
    test_loader = DataLoader(test, 2 * args.batch, collate_fn=collate)
    model = RollReader(args.dim, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for words, kind in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(words), kind)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total / len(loader), reduction="mean").item()
        accelerator.print(f"epoch {epoch} loss {mean:.4f} right {evaluate(accelerator, model, test_loader):.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
