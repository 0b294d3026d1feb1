"""Named entities with Accelerate; F1 on held-out sentences every so many steps."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, TAGS, LENGTH = 3000, 5, 32


class Tagger(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, dim)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, TAGS)

    def forward(self, words):
        return self.head(self.encoder(self.words(words) + self.places))


def sentences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    named = (words % 10 < 4) & (words.roll(1, 1) % 2 == 0)
    return TensorDataset(words, torch.where(named, words % 4 + 1, 0))


@torch.no_grad()
def f1(accelerator, model, loader):
    model.eval()
    counts = torch.zeros(3, dtype=torch.long)
    for words, tags in loader:
        guessed, tags = accelerator.gather_for_metrics((model(words).argmax(2), tags))
        hit = (guessed == tags) & (tags > 0)
        counts += torch.stack([hit.sum(), (guessed > 0).sum(), (tags > 0).sum()])
    model.train()
    return 2 * counts[0].item() / max(1, counts[1:].sum().item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--check-every", type=int, default=250)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    training = DataLoader(sentences(8000, 1), batch_size=args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(sentences(200, 2), batch_size=50)
    model = Tagger(args.dim, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    model, optimizer, training, held_out = accelerator.prepare(model, optimizer, training, held_out)
    weights = torch.tensor([0.3, 1.0, 1.0, 1.0, 1.0])
    step, best = 0, 0.0
    for _ in range(10_000):
        for words, tags in training:
            loss = nn.functional.cross_entropy(model(words).transpose(1, 2), tags, weight=weights)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % args.check_every == 0:
                score = f1(accelerator, model, held_out)
                best = max(best, score)
                accelerator.print(f"{step}: loss {loss.item():.4f}, F1 {score:.3f}, best {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
