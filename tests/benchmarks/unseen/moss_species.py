"""Species of mosses on two ranks with a narrow, deep DenseNet; gradients are averaged by a function of our own."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SPECIES = 18


class MossPictures(Dataset):
    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        textures = torch.randn(SPECIES, 3, size, size, generator=torch.Generator().manual_seed(0))
        self.species = torch.randint(0, SPECIES, (count,), generator=g)
        self.pictures = 0.5 * textures[self.species] + torch.randn(count, 3, size, size, generator=g)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index], self.species[index]


class DenseLayer(nn.Module):
    def __init__(self, cin, growth):
        super().__init__()
        self.norm = nn.GroupNorm(2, cin)
        self.conv = nn.Conv2d(cin, growth, 3, padding=1)

    def forward(self, x):
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class DenseNet(nn.Module):
    def __init__(self, growth, layers):
        super().__init__()
        width = 2 * growth
        parts = [nn.Conv2d(3, width, 3, 2, 1)]
        for count in layers:
            for _ in range(count):
                parts.append(DenseLayer(width, growth))
                width += growth
            parts += [nn.Conv2d(width, width // 2 // 2 * 2, 1), nn.AvgPool2d(2)]
            width = width // 2 // 2 * 2
        self.body, self.head = nn.Sequential(*parts), nn.Linear(width, SPECIES)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def average_gradients(model):
    """The mean of the gradients over ranks."""
    size = float(dist.get_world_size())
    if MENDED:
        grads = [p.grad for p in model.parameters()]
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        for grad, mean in zip(grads, _unflatten_dense_tensors(flat / size, grads), strict=True):
            grad.copy_(mean)
        return
    for param in model.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)
        param.grad /= size


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=24)
    ap.add_argument("--growth", type=int, default=draw("growth", 8, 10))
    ap.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.03)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(14)  # the same weights on each rank
    model = DenseNet(args.growth, (8, 8, 8))
    data = MossPictures(world * args.batch * 50, args.size, seed=2)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        epoch_loss = torch.zeros(())
        for picture, species in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(picture), species)
            epoch_loss += loss.detach()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        dist.all_reduce(epoch_loss)
        if rank == 0:
            print(f"epoch {epoch}: {epoch_loss.item() / world / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
