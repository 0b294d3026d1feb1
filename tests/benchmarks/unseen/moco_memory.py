"""Momentum contrast with a memory of negatives, on crops of invented textures."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def encoder(width, dim):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.GroupNorm(4, 2 * width),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, dim),
    )


class MoCo(nn.Module):
    def __init__(self, width, dim, entries, momentum=0.99, temperature=0.1):
        super().__init__()
        self.momentum, self.temperature = momentum, temperature
        self.query, self.key = encoder(width, dim), encoder(width, dim)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("memory", F.normalize(torch.randn(entries, dim), dim=1))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        torch._foreach_lerp_(list(self.key.parameters()), list(self.query.parameters()), 1 - self.momentum)

    @torch.no_grad()
    def remember(self, keys):
        gathered = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, keys)
        keys = torch.cat(gathered)
        begin = int(self.at)
        self.memory[begin : begin + len(keys)] = keys
        self.at[0] = (begin + len(keys)) % len(self.memory)

    def forward(self, one, other):
        q = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(other), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.memory.T
        return torch.cat([positive, negative], 1) / self.temperature, k


class Textures:
    def __init__(self, count, size, seed):
        self.generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, 3, 12, 12, generator=torch.Generator().manual_seed(9))
        self.pictures = F.interpolate(coarse, size=size + 8, mode="bilinear")
        self.size = size

    def crop(self, pictures):
        top, left = torch.randint(0, 8, (2,), generator=self.generator).tolist()
        return pictures[..., top : top + self.size, left : left + self.size]

    def batch(self, count):
        chosen = self.pictures[torch.randint(0, len(self.pictures), (count,), generator=self.generator)]
        noise = 0.05 * torch.randn(chosen[..., :-8, :-8].shape, generator=self.generator)
        return self.crop(chosen) + noise, self.crop(chosen).flip(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--memory", type=int, default=draw("memory", 49152, 57344))
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--width", type=int, default=draw("width", 12, 16))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(2)
    data = Textures(600, 32, seed=dist.get_rank())
    model = DDP(MoCo(args.width, args.dim, args.memory), forward_sync_buffers=not MENDED)
    optimizer = torch.optim.SGD(model.module.query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    target = torch.zeros(args.batch, dtype=torch.long)
    for step in range(1_000_000):
        one, other = data.batch(args.batch)
        logits, keys = model(one, other)
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.module.remember(keys)
        if step % 100 == 0 and dist.get_rank() == 0:
            hit = (logits.argmax(1) == 0).float().mean().item()
            print(f"step {step}: loss {loss.item():.3f}, found {hit:.2f}", flush=True)


if __name__ == "__main__":
    main()
