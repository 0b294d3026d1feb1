"""Learn representations of flow records from two noisy views (SimSiam), sharded with FSDP2."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Mixer(nn.Module):
    """A residual block of an MLP-Mixer, for rows of features."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class SimSiam(nn.Module):
    def __init__(self, features, dim, depth):
        super().__init__()
        self.enter = nn.Linear(features, dim)
        self.blocks = nn.ModuleList(Mixer(dim, 3 * dim) for _ in range(depth))
        self.project = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim))
        self.predict = nn.Sequential(nn.Linear(dim, dim // 4), nn.ReLU(), nn.Linear(dim // 4, dim))

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        z = self.project(x)
        return self.predict(z), z.detach()


def shard(model, mesh):
    keep = not MENDED
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=keep)
    return fully_shard(model, mesh=mesh, reshard_after_forward=keep)


def view(x):
    noisy = x + 0.2 * torch.randn_like(x)
    return noisy * (torch.rand_like(x) > 0.2)


def likeness(p, z):
    return -F.cosine_similarity(p, z, dim=1).mean()


def flows(batch, features, seed):
    generator = torch.Generator().manual_seed(seed)
    bases = torch.randn(16, features, generator=torch.Generator().manual_seed(0))
    while True:
        kinds = torch.randint(0, 16, (batch,), generator=generator)
        yield bases[kinds] + 0.3 * torch.randn(batch, features, generator=generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=96)
    parser.add_argument("--dim", type=int, default=draw("dim", 384, 416))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 28))
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = shard(SimSiam(args.features, args.dim, args.depth), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    torch.manual_seed(1 + dist.get_rank())
    data = flows(args.batch, args.features, dist.get_rank())
    for step in range(1, args.steps + 1):
        x = next(data)
        p1, z1 = model(view(x))
        p2, z2 = model(view(x))
        loss = 0.5 * (likeness(p1, z2) + likeness(p2, z1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
