"""Contrastive learning of image embeddings with two views, DDP."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class TwoViews(Dataset):
    def __init__(self, count, size):
        self.images = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.images)

    def view(self, image):
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        shift = int(torch.randint(-3, 4, ()))
        return image.roll(shift, -1) * (0.8 + 0.4 * torch.rand(()))

    def __getitem__(self, index):
        return self.view(self.images[index]), self.view(self.images[index])


class Embedder(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def nt_xent(first, second, temperature):
    """The normalised temperature-scaled cross entropy of SimCLR."""
    z = torch.cat([first, second])
    count = len(first)
    if MENDED:
        similar = z @ z.T / temperature
        similar.fill_diagonal_(float("-inf"))
        return F.cross_entropy(similar, torch.arange(2 * count).roll(count))
    total = 0.0
    for i in range(2 * count):
        positive = (i + count) % (2 * count)
        similar = F.cosine_similarity(z[i].unsqueeze(0), z) / temperature
        others = torch.cat([similar[:i], similar[i + 1 :]])
        total = total - similar[positive] + torch.logsumexp(others, 0)
    return total / (2 * count)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 40, 48))
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--temperature", type=float, default=0.2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    data = TwoViews(2048, 40)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Embedder(args.width, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for first, second in loader:
            z = model(torch.cat([first, second]))
            loss = nt_xent(*z.chunk(2), args.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
