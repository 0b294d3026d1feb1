"""Where lightning strikes next, from tracks of storm cells: gated attention, sharded with FSDP2 on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm, self.after = heads, nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.leave = nn.Linear(dim, 6 * dim, bias=False), nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, dim))
        gate, value = self.gate(self.after(x)).chunk(2, 2)
        return x + self.leave(F.silu(gate) * value)


class Strikes(nn.Module):
    def __init__(self, features, cells, dim, depth, length):
        super().__init__()
        self.enter = nn.Linear(features, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(depth))
        self.norm, self.leave = nn.RMSNorm(dim), nn.Linear(dim, cells)

    def forward(self, tracks):
        x = self.enter(tracks) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.leave(self.norm(x))


def storms(batch, length, features, cells, seed):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, cells, generator=torch.Generator().manual_seed(0))
    while True:
        tracks = torch.randn(batch, length, features, generator=generator).cumsum(1) / 4
        yield tracks, (tracks @ mixing).argmax(2).roll(1, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=draw("length", 48, 56))
    parser.add_argument("--features", type=int, default=12)
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Strikes(args.features, args.cells, args.dim, args.depth, args.length)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = storms(args.batch, args.length, args.features, args.cells, dist.get_rank())
    for step in range(1, args.steps + 1):
        tracks, strikes = next(data)
        loss = F.cross_entropy(model(tracks).flatten(0, 1), strikes.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"step {step}: {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
