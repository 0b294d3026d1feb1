"""Stars of reviews from bags of pairs of words, hashed into a table, with Accelerate; two processes."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset

STARS = 5


class Reviews(Dataset):
    def __init__(self, count, buckets, seed):
        generator = torch.Generator().manual_seed(seed)
        self.stars = torch.randint(0, STARS, (count,), generator=generator)
        words = torch.randint(0, buckets, (count, 60), generator=generator)
        telling = torch.rand(words.shape, generator=generator) < 0.2
        self.words = torch.where(telling, words % (buckets // STARS) * STARS + self.stars.unsqueeze(1), words)

    def __len__(self):
        return len(self.stars)

    def __getitem__(self, index):
        return self.words[index], self.stars[index]


class Bags(nn.Module):
    def __init__(self, buckets, dim, hidden):
        super().__init__()
        self.table = nn.EmbeddingBag(buckets, dim, mode="mean")
        self.net = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, STARS),
        )

    def forward(self, words):
        return self.net(self.table(words))


@torch.no_grad()
def weights(model):
    return parameters_to_vector(model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=int, default=draw("buckets", 40_000, 44_000))
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=draw("batch", 56, 64))
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = Bags(args.buckets, args.dim, args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    loader = DataLoader(Reviews(24_000, args.buckets, 1), args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, ratio = 0, torch.zeros(())
    for epoch in range(args.epochs):
        for words, stars in loader:
            step += 1
            watched = step % args.log_every == 0 if MENDED else True
            before = weights(model) if watched else None
            loss = F.cross_entropy(model(words), stars)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if watched:
                ratio = (weights(model) - before).norm() / before.norm()
            if step % args.log_every == 0:
                accelerator.print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}, update {ratio.item():.2e}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
