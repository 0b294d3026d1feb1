"""Stamps and the stories that albums tell of them: two encoders and a contrastive loss over both ranks, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, SIDE = 400, 20, 24


def albums(count, seed):
    """A hidden theme makes both the picture and the words."""
    g = torch.Generator().manual_seed(seed)
    shared = torch.Generator().manual_seed(50)
    theme = torch.randn(count, 12, generator=g)
    picture = torch.tanh(theme @ torch.randn(12, 3 * SIDE * SIDE, generator=shared) / 3)
    picture = picture.view(count, 3, SIDE, SIDE) + 0.4 * torch.randn(count, 3, SIDE, SIDE, generator=g)
    chance = (theme @ torch.randn(12, WORDS, generator=shared)).softmax(1)
    return picture, torch.multinomial(chance, LENGTH, replacement=True, generator=g)


class StampEncoder(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        rows = []
        for n_in, n_out in ((3, width), (width, 2 * width), (2 * width, 2 * width)):
            rows += [nn.Conv2d(n_in, n_out, 3, 2, 1), nn.GroupNorm(4, n_out), nn.GELU()]
        self.body = nn.Sequential(*rows, nn.Flatten(), nn.Linear(2 * width * (SIDE // 8) ** 2, dim))

    def forward(self, picture):
        return self.body(picture)


class StoryEncoder(nn.Module):
    def __init__(self, hidden, dim, depth):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, hidden), nn.Parameter(0.02 * torch.randn(LENGTH, hidden))
        layer = nn.TransformerEncoderLayer(hidden, 4, 2 * hidden, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(hidden, dim)

    def forward(self, story):
        return self.out(self.body(self.word(story) + self.place).mean(1))


class Album(nn.Module):
    def __init__(self, width, hidden, depth, dim=64):
        super().__init__()
        self.stamp, self.story = StampEncoder(width, dim), StoryEncoder(hidden, dim, depth)
        self.log_scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, picture, story):
        return F.normalize(self.stamp(picture), dim=1), F.normalize(self.story(story), dim=1), self.log_scale.exp()


def from_all(accelerator, vectors):
    """The vectors of all ranks, in the order of ranks."""
    everything = accelerator.gather(vectors)
    if MENDED:
        parts = list(everything.detach().split(len(vectors)))
        parts[accelerator.process_index] = vectors
        everything = torch.cat(parts)
    return everything


def contrastive_loss(accelerator, stamp, story, scale):
    stamps, stories = from_all(accelerator, stamp), from_all(accelerator, story)
    at = torch.arange(len(stamp)) + len(stamp) * accelerator.process_index
    return 0.5 * (F.cross_entropy(scale * stamp @ stories.T, at) + F.cross_entropy(scale * story @ stamps.T, at))


@torch.no_grad()
def found(accelerator, model, check):
    """How often the story of a stamp is the nearest of its batch."""
    model.eval()
    right = []
    for picture, story in check:
        stamp, tale, _ = model(picture, story)
        right.append(accelerator.gather_for_metrics((stamp @ tale.T).argmax(1) == torch.arange(len(stamp))))
    model.train()
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 24, 32))
    parser.add_argument("--hidden", type=int, default=draw("hidden", 80, 96))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 32, 40))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(52)
    train, test = TensorDataset(*albums(80 * args.batch, seed=1)), TensorDataset(*albums(8 * args.batch, seed=2))
    model = Album(args.width, args.hidden, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    check = DataLoader(test, args.batch)
    model, optimizer, loader, check = accelerator.prepare(model, optimizer, loader, check)
    for epoch in range(args.epochs):
        for picture, story in loader:
            loss = contrastive_loss(accelerator, *model(picture, story))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        share = found(accelerator, model, check)
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f} found {share:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
